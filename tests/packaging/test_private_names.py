"""Private names of another library are touched in one place each, so that a new version is looked at in one place."""

import ast
from functools import cache
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]

# Library -> the one file or package of ortlens that may touch its private names; None: no file may.
HOMES = {
    "torch": Path("ortlens/_torch"),
    "onnxruntime": Path("ortlens/_ort.py"),
    "onnxscript": Path("ortlens/backend/conversion/optimize.py"),
    "onnx": None,
    "onnx_ir": None,
}
Named: TypeAlias = ast.Import | ast.ImportFrom | ast.Attribute | ast.Call
SOURCES = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in sorted((ROOT / "ortlens").rglob("*.py"))}


def private_uses(source: str, library: str) -> list[str]:
    """Find where a module reaches for private names of a library."""
    nodes = _nodes_of(source)
    bound = _names_bound_to(library, nodes)
    named = ((node.lineno, name) for node in nodes for name in _dotted_names(node, bound))
    return [f"{line}: {name}" for line, name in sorted({found for found in named if _is_private(found[1], library)})]


@cache
def _nodes_of(source: str) -> tuple[Named, ...]:
    """What may name something: parsed once for all libraries."""
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom, ast.Attribute, ast.Call)))


def _is_private(dotted: str, library: str) -> bool:
    if dotted.startswith("torch.ops."):
        return False  # operators: an underscore there belongs to the name, as in torch.ops.aten._softmax
    root, *rest = dotted.split(".")
    return root == library and any(part.startswith("_") and not part.startswith("__") for part in rest)


def _names_bound_to(library: str, nodes: tuple[Named, ...]) -> dict[str, str]:
    """Local name -> the dotted name it is bound to, for every import in the file, at any depth."""
    bound: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            bound.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return {local: full for local, full in bound.items() if full.partition(".")[0] == library}


def _dotted_names(node: Named, bound: dict[str, str]) -> list[str]:
    """The dotted names that one node of the tree spells out."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute):
        return [_dotted(node, bound)]
    return _names_in_call(node, bound) if isinstance(node, ast.Call) else []


def _names_in_call(call: ast.Call, bound: dict[str, str]) -> list[str]:
    texts = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if function in {"getattr", "hasattr", "setattr"} and call.args:
        return [f"{_dotted(call.args[0], bound)}.{text}" for text in texts]
    # import_module("torch._dynamo"), __import__, find_spec, patch: whatever takes the path of a module as text.
    return texts


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    start = bound.get(node.id, "") if isinstance(node, ast.Name) else ""
    return ".".join([start, *reversed(parts)])


def test_private_names_are_touched_in_their_one_place_only() -> None:
    violations = [
        f"{path}:{use}"
        for library, home in HOMES.items()
        for path, source in SOURCES.items()
        if library in source and home not in {path, *path.parents}
        for use in private_uses(source, library)
    ]
    assert violations == []


# With `lib` for the library; each must be caught for every library of the table.
VIOLATIONS = (
    "import lib._dynamo as dynamo",
    "import lib.onnx._internal.exporter",
    "from lib import _guards",
    "from lib._functorch.aot_autograd import aot_module",
    "from lib.onnx import _internal",
    "import lib as t\nt._C._cuda_init()",
    "from lib import fx\nfx._symbolic_trace.Tracer",
    "import lib.fx as graphs\ngraphs.Node._erased",
    "def f():\n    import lib\n    return lib.fx._pytree",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lib._guards import CompileId",
    "from pkgutil import resolve_name\nresolve_name('lib._inductor.config')",
    "__import__('lib._dynamo')",
    "import lib\ngetattr(lib, '_dynamo')",
    "import lib\ngetattr(lib.fx, '_x', None)",
)
CLEAN = (
    "import lib\nlib.__version__",
    "import torch\ntorch.ops.aten._softmax.default",
    "import lib.fx.experimental.symbolic_shapes",
    "from lib.export import ExportedProgram",
    "from ortlens import _torch\n_torch.compile_id()",
    "import os\nos._exit(0)",
    "class A:\n    def f(self):\n        return self._lib",
    "text = 'see lib._dynamo'",
)


def test_every_planted_violation_is_caught_and_public_and_foreign_names_are_left_alone() -> None:
    for library in HOMES:
        assert [source for source in VIOLATIONS if not private_uses(source.replace("lib", library), library)] == []
        assert [source for source in CLEAN if private_uses(source.replace("lib", library), library)] == []
