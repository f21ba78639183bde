"""`import ortlens` loads the standard library only, and little of it; readers of captures load neither torch nor ONNX Runtime."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAVY = (
    "torch",
    "numpy",
    "pandas",
    "onnx",
    "onnx_ir",
    "onnxscript",
    "onnxruntime",
    "ipywidgets",
    "IPython",
    "anywidget",
    "matplotlib",
    "netron",
    "tqdm",
)
OWN = 3
"""Modules of ortlens that its import may load: the package, and what its facade is made of."""
STANDARD = 60
"""Modules of the standard library beyond those of a bare interpreter. A millisecond each would make the 60 ms that are aimed at."""

THIRD_PARTY = """
import json, sys, sysconfig
before = set(sys.modules)
import ortlens
roots = {name.partition(".")[0] for name in set(sys.modules) - before} - {"ortlens"}
print(json.dumps(sorted(name for name in roots if name not in sys.stdlib_module_names)))
"""

LOADED = """
import json, sys
before = set(sys.modules)
import ortlens
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# Readers are imported where these names cannot be: a finder in front of all others refuses them.
WITHOUT_RUNTIMES = """
import importlib, json, sys
BLOCKED = {"torch", "onnxruntime", "onnx", "onnxscript", "onnx_ir"}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Refuse())
failed = {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except Exception as err:
        failed[name] = repr(err)
print(json.dumps(failed))
"""


def test_importing_loads_the_standard_library_only(run_python: Callable[..., str]) -> None:
    assert json.loads(run_python(THIRD_PARTY)) == []


def test_planted_heavy_imports_are_seen(root: Path, tmp_path: Path, run_python: Callable[..., str]) -> None:
    # Stand-ins, so that the check is shown to work for packages that are not installed here as well.
    for name in HEAVY:
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "ortlens").mkdir()
    planted = (root / "ortlens" / "__init__.py").read_text(encoding="utf-8") + "".join(f"\nimport {name}" for name in HEAVY)
    (tmp_path / "ortlens" / "__init__.py").write_text(planted + "\n", encoding="utf-8")
    assert json.loads(run_python(THIRD_PARTY)) == sorted(HEAVY)


def test_importing_loads_little(run_python: Callable[..., str]) -> None:
    # Counted, not timed: a busy machine is slow without anything being wrong.
    loaded = json.loads(run_python(LOADED))
    own = [name for name in loaded if name.partition(".")[0] == "ortlens"]
    assert len(own) <= OWN, own
    assert len(loaded) - len(own) <= STANDARD, loaded


def test_readers_import_without_torch_and_onnxruntime(root: Path, run_python: Callable[..., str]) -> None:
    files = [path for room in ("trace", "analysis", "views") for path in (root / "ortlens" / room).rglob("*.py")]
    names = sorted(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in files)
    assert len(names) > 5
    assert json.loads(run_python(WITHOUT_RUNTIMES, json.dumps(names))) == {}


def test_the_block_on_runtimes_blocks(run_python: Callable[..., str]) -> None:
    assert set(json.loads(run_python(WITHOUT_RUNTIMES, json.dumps(["torch", "onnxruntime", "json"])))) == {"torch", "onnxruntime"}
