"""`import ortlens` loads the standard library only, and little of it; readers of captures load neither torch nor ONNX Runtime."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

OWN = 3
"""Modules of ortlens that its import may load: the package, and what its facade is made of."""
STANDARD = 60
"""Modules of the standard library beyond those of a bare interpreter. A millisecond each would make the 60 ms that are aimed at."""


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


def test_importing_loads_little_and_the_standard_library_only(run_python: Callable[..., str]) -> None:
    # Counted, not timed: a busy machine is slow without anything being wrong.
    loaded = json.loads(run_python(LOADED))
    own = [name for name in loaded if name.partition(".")[0] == "ortlens"]
    assert 0 < len(own) <= OWN, own
    standard = [name for name in loaded if name.partition(".")[0] in sys.stdlib_module_names]
    assert len(standard) + len(own) == len(loaded), loaded
    assert len(standard) <= STANDARD, loaded


def test_readers_import_without_torch_and_onnxruntime(root: Path, run_python: Callable[..., str]) -> None:
    files = [path for room in ("trace", "analysis", "views") for path in (root / "ortlens" / room).rglob("*.py")]
    names = sorted(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__") for path in files)
    assert len(names) > 5
    # What runs scripts is imported before them, in every child process too: a script that sets how torch starts must be the first to.
    failed = json.loads(run_python(WITHOUT_RUNTIMES, json.dumps([*names, "ortlens.job.process", "onnxruntime"])))
    assert set(failed) == {"onnxruntime"}, failed  # the block on it works


COMMANDS = """
import sys
from ortlens import cli
def loaded():
    return sorted({"torch", "onnx", "onnxruntime", "numpy", "pandas", "jinja2"} & set(sys.modules))
cli.main(["show", sys.argv[1]])
print(loaded())
cli.main(["export", sys.argv[1], "x"])
cli.main(["report", sys.argv[1], "-o", "x.html"])
print(loaded())
"""


def test_commands_that_read_a_capture_load_little(root: Path, run_python: Callable[..., str]) -> None:
    capture = root / "tests" / "browser" / "captures" / "models.ortlens"
    lines = run_python(COMMANDS, str(capture)).splitlines()
    assert "[]" in lines, "showing it as text"
    assert not {"'torch'", "'onnx'", "'onnxruntime'"} & set(re.findall(r"'\w+'", lines[-1]))


FIRST_CALLS = """
import gc, json, onnx_ir.schemas, onnxscript, sys, torch
from ortlens.backend import api
from torch._export.utils import _collect_all_valid_cia_ops_for_aten_namespace as composites
collecting, scripts, operators, signature = [], [], [], onnx_ir.schemas.OpSignature
check, script, read = api.check_supported, onnxscript.script, signature.from_op_schema
api.check_supported = lambda *names: collecting.append(gc.isenabled()) or check(*names)
onnxscript.script = lambda *args, **kwargs: scripts.append(args) or script(*args, **kwargs)
signature.from_op_schema = lambda schema: operators.append(schema.name) or read(schema)
compiled, x = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)), backend="ortlens"), torch.ones(2, 2)
torch.no_grad()(compiled)(x)
loaded = sorted(name[8:] for name in sys.modules if name.startswith(("ortlens.analysis.", "ortlens.lens", "ortlens.views")))
print(json.dumps([collecting, loaded, scripts, composites.cache_info().currsize, operators.count("Gemm")]))
torch.no_grad()(torch.compile(torch.nn.functional.mish, backend="ortlens"))(x)
compiled(x).sum().backward()
print(len(scripts), [op for op, made in torch._inductor.decomposition.decompositions.items() if "ortlens" in str(made.__module__)])
"""


def test_first_calls_load_what_their_graphs_need_and_change_nothing_of_torchs(run_python: Callable[..., str]) -> None:
    first, then = run_python(FIRST_CALLS).splitlines()
    # By these modules graphs are cut and times compared.
    assert [json.loads(first), then] == [[[False], ["analysis.cut", "analysis.index", "analysis.speed"], [], 1, 1], "1 []"]
