"""Run vulture over the package, the tests and the documentation, with the names that only look unused taken out.

Three kinds of names are used in ways that no reader of source text can see: fields of dataclasses and named tuples (a record's field is
a column of a frame, read by its name), attributes set on an object of another library for that library to read, and
the functions that entry points name. All are looked up here rather than kept in a list by hand, so that a list cannot
hide what has really died.
"""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[2]
# Called by their names: module hooks, and the protocols of IPython, pathlib, pytest, html.parser, mkdocs and torch.
PROTOCOL_NAMES = [
    "__getattr__",
    "__dir__",
    "_repr_*_",
    "_ipython_display_",
    "has_side_effects",
    "with_segments",
    "load_ipython_extension",
    "unload_ipython_extension",
    "pytest_*",
    "pytestmark",
    "handle_*",
    "on_files",
    "on_page_*",
    "log_message",
    *("inputs_at", "outputs_at", "resize", "spares"),  # read by the code that call.py generates
    *("prepare_for_serialization", "post_compile", "set_triton_bundle", "populate_cache"),  # of torch's caches
]
MIN_CONFIDENCE = 60  # vulture's level for a function, method or attribute that nothing names


def dead_code(*paths: Path) -> list[str]:
    """Find code that nothing uses."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for path in paths for file in _python_files(path)}
    seen_elsewhere = {name for tree in trees.values() for name in (*_dataclass_fields(tree), *_attributes_set_on_others(tree))}
    finder = Vulture(
        ignore_names=[*PROTOCOL_NAMES, *_entry_point_names()],
        ignore_decorators=["@pytest.fixture*", "@traitlets.*", "@kind", "@changed", "@torch_op", "@decomposes*", "@plant", "@graph_plant"],
    )
    finder.scavenge([str(path) for path in paths])
    unused = finder.get_unused_code(min_confidence=MIN_CONFIDENCE)
    found = [item.get_report() for item in unused if item.name not in seen_elsewhere]  # as patterns, they take vulture half a minute
    return found + [f"{file}: unread private variable '{name}'" for file, tree in trees.items() for name in _unread_private(tree)]


def _python_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _unread_private(tree: ast.Module) -> list[str]:
    """Find private variables of a module that it never reads, which vulture passes over."""
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    targets = (target for node in tree.body for target in getattr(node, "targets", [getattr(node, "target", None)]))
    return [item.id for item in targets if isinstance(item, ast.Name) and re.match("_[^_]", item.id) and item.id not in read]


def _dataclass_fields(tree: ast.Module) -> list[str]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    records = [node for node in classes if any("dataclass" in ast.unparse(d) or "NamedTuple" in ast.unparse(d) for d in _made_by(node))]
    statements = [statement for node in records for statement in node.body]
    return [item.target.id for item in statements if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)]


def _made_by(node: ast.ClassDef) -> list[ast.expr]:
    return [*node.decorator_list, *node.bases]


def _attributes_set_on_others(tree: ast.Module) -> list[str]:
    written = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return [node.attr for node in written if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})]


def _entry_point_names() -> list[str]:
    return [point.attr for point in importlib.metadata.distribution("ortlens").entry_points if point.attr]  # a plugin is a module


def main() -> int:
    """Print the findings; return 1 when there are any."""
    found = dead_code(ROOT / "ortlens", ROOT / "tests", ROOT / "docs")
    sys.stdout.write("".join(f"{line}\n" for line in found) or "no dead code\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
