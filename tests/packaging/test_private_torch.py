"""Private names of torch are touched in one package, so that a new torch is looked at in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = Path("ortlens/_torch")
FILES = sorted(path.relative_to(ROOT) for path in (ROOT / "ortlens").rglob("*.py"))


def private_uses(source: str) -> list[str]:
    """Find where a module reaches for private names of torch.

    Args:
        source: Python source text.

    Returns:
        `line: dotted name` for each imported module path, imported name, attribute chain and string handed to an
        importing function, that starts at torch and has a component with one leading underscore; empty when clean.
    """
    tree = ast.parse(source)
    bound = _names_bound_to_torch(tree)
    found = {(getattr(node, "lineno", 0), name) for node in ast.walk(tree) for name in _torch_names(node, bound) if _is_private(name)}
    return [f"{line}: {name}" for line, name in sorted(found)]


def _is_private(dotted: str) -> bool:
    if dotted.startswith("torch.ops."):
        return False  # operators: an underscore there belongs to the name, as in torch.ops.aten._softmax
    root, *rest = dotted.split(".")
    return root == "torch" and any(part.startswith("_") and not part.startswith("__") for part in rest)


def _names_bound_to_torch(tree: ast.AST) -> dict[str, str]:
    """Local name -> what it stands for, for every import in the file, wherever it is."""
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            bound.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return {local: full for local, full in bound.items() if full.partition(".")[0] == "torch"}


def _torch_names(node: ast.AST, bound: dict[str, str]) -> list[str]:
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
    # import_module("torch._dynamo"), __import__, find_spec, patch: whatever takes the path of a module of torch as text.
    return texts


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    start = bound.get(node.id, "") if isinstance(node, ast.Name) else ""
    return ".".join([start, *reversed(parts)])


@pytest.mark.parametrize("path", [path for path in FILES if path.parent != ALLOWED], ids=str)
def test_no_other_file_touches_private_names_of_torch(path: Path) -> None:
    assert private_uses((ROOT / path).read_text(encoding="utf-8")) == []


def test_the_files_that_may_touch_them_do() -> None:
    allowed = [path for path in FILES if path.parent == ALLOWED and path.name != "__init__.py"]
    assert allowed
    assert sum(bool(private_uses((ROOT / path).read_text(encoding="utf-8"))) for path in allowed) >= len(allowed) - 1


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch._dynamo as dynamo",
        "import torch.onnx._internal.exporter",
        "from torch import _guards",
        "from torch._functorch.aot_autograd import aot_module",
        "from torch.onnx import _internal",
        "from torch._subclasses import FakeTensorMode",
        "import torch\ntorch._dynamo.reset()",
        "import torch as t\nt._C._cuda_init()",
        "from torch import fx\nfx._symbolic_trace.Tracer",
        "import torch.fx as graphs\ngraphs.Node._erased",
        "def f():\n    import torch\n    return torch.fx._pytree",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch._guards import CompileId",
        "import importlib\nimportlib.import_module('torch._inductor.config')",
        "__import__('torch._dynamo')",
        "import torch\ngetattr(torch, '_dynamo')",
        "import torch\ngetattr(torch.fx, '_x', None)",
    ],
)
def test_a_planted_violation_is_caught(source: str) -> None:
    assert private_uses(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "import torch\ntorch.ops.aten._softmax.default",
        "import torch.fx.experimental.symbolic_shapes",
        "from torch.export import ExportedProgram",
        "from ortlens import _torch\n_torch.compile_id()",
        "import os\nos._exit(0)",
        "class A:\n    def f(self):\n        return self._torch",
        "text = 'see torch._dynamo'",
    ],
)
def test_public_and_foreign_names_are_left_alone(source: str) -> None:
    assert private_uses(source) == []
