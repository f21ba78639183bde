"""Which frame of a stack stands for the user's line."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

import ortlens
from ortlens import _torch
from ortlens.backend.lowering.user_frames import Frame, innermost

OWN = Frame("/home/ada/model.py", 3, "forward")
PYTHON = Frame(str(copy.__file__), 153, "deepcopy")
TORCH = Frame(f"{_torch.torch_folder()}/nn/modules/linear.py", 130, "forward")
ORTLENS = Frame(str(Path(ortlens.__file__).parent / "lens" / "lens.py"), 1, "__call__")
MODEL = Frame("/opt/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py", 300, "forward")
WRAPPER = Frame("/opt/lib/python3.11/site-packages/transformers/utils/generic.py", 912, "wrapper")
HOOK = Frame("/opt/lib/python3.11/site-packages/accelerate/hooks.py", 175, "new_forward")


@pytest.mark.parametrize(
    ("stack", "chosen"),
    [
        ([OWN, PYTHON], OWN),
        ([OWN, TORCH], OWN),
        ([OWN, MODEL, WRAPPER, TORCH], MODEL),
        ([OWN, WRAPPER, HOOK], OWN),
        ([MODEL, HOOK, MODEL._replace(line=301), PYTHON], MODEL._replace(line=301)),
        ([OWN, ORTLENS], OWN),
        ([WRAPPER, TORCH], WRAPPER),
        ([TORCH], TORCH),
        ([PYTHON, TORCH], PYTHON),
        ([], None),
    ],
)
def test_the_innermost_frame_of_the_user_or_of_a_model(stack: list[Frame], chosen: Frame | None) -> None:
    assert innermost(stack) == chosen


def test_a_wrapper_of_the_users_own_is_the_users_code() -> None:
    own = OWN._replace(function="wrapper")
    assert innermost([MODEL, own]) == own


def test_packages_below_pythons_library_are_not_part_of_it() -> None:
    installed = Frame(f"{Path(copy.__file__).parent}/site-packages/einops/einops.py", 5, "rearrange")
    assert innermost([installed, PYTHON]) == installed
