"""No code of ours reads a sentence that ours wrote, in Python or JavaScript: what code has to know is a field."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROSE = frozenset(
    ["advice", "do", "evidence", "explanation", "hazard", "mitigation", "note", "reason", "sentence", "text", "title", "todo", "why"]
)
"""Fields of our records and views that hold words."""
READING = frozenset(
    [
        "count",
        "endswith",
        "find",
        "index",
        "partition",
        "removeprefix",
        "removesuffix",
        "replace",
        "rpartition",
        "rsplit",
        "split",
        "splitlines",
        "startswith",
    ]
)
MATCHING = frozenset(["findall", "finditer", "fullmatch", "match", "search", "split", "sub"])
WORDED = re.compile(r".*_(?:sentence|sentences|words)|sentence")
"""Functions that return words."""
MENTIONED = re.compile(rf"\.(?:{'|'.join(sorted(PROSE))})\b|{WORDED.pattern}")
OF_DYNAMO = ("analysis/problems/guards.py", "analysis/compare/changes.py")
"""What reads `Recompile.reason`, the text of PyTorch's; texts of breaks are read in `analysis/problems/break_rules.py` alone."""


def is_prose(node: ast.AST, names: frozenset[str]) -> bool:
    """Tell whether an expression is, or is made of, a sentence."""
    if isinstance(node, ast.Attribute):
        return node.attr in PROSE
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        inside = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        return WORDED.fullmatch(called) is not None or any(is_prose(part, names) for part in inside)
    parts = (ast.BoolOp, ast.Subscript, ast.JoinedStr, ast.FormattedValue, ast.NamedExpr, ast.BinOp)
    return isinstance(node, parts) and any(is_prose(part, names) for part in ast.iter_child_nodes(node))


def assigned(nodes: list[ast.AST]) -> frozenset[str]:
    """The names of a function that hold sentences."""
    pairs = [(target, node.value) for node in nodes if isinstance(node, ast.Assign) for target in node.targets]
    pairs += [(node.target, node.value) for node in nodes if isinstance(node, ast.NamedExpr)]
    return frozenset(target.id for target, value in pairs if isinstance(target, ast.Name) and is_prose(value, frozenset()))


def reads(text: str) -> Iterator[str]:
    """Yield each place where a module takes a sentence apart, or looks for something in it."""
    tree = ast.parse(text)
    functions: list[ast.AST] = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in functions or [tree]:
        nodes = list(ast.walk(function))
        names = assigned(nodes)
        for node in nodes:
            found = isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops)
            read: list[ast.expr] = node.comparators if isinstance(node, ast.Compare) and found else []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                read = [node.func.value] if node.func.attr in READING else []
                read += node.args if node.func.attr in MATCHING else []
            if any(is_prose(part, names) for part in read):
                yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


JAVASCRIPT = re.compile(
    rf"\b(?:{'|'.join(sorted((PROSE | {'confidence'}) - {'text', 'title'}))})\b[)\"'\]]*\??\."
    r"(?:startsWith|endsWith|includes|indexOf|match|replace|replaceAll|search|split)\("
    r"|/[^/\n]*[a-z]{3,}(?:\\b|\\s| )[^/\n]*/[a-z]*\.(?:test|exec)\("
)
"""A field of words that is taken apart, or a regular expression on words of a sentence."""


def test_no_python_of_ours_reads_a_sentence_of_ours() -> None:
    modules = {path.relative_to(ROOT / "ortlens").as_posix(): path for path in sorted((ROOT / "ortlens").rglob("*.py"))}
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules.items() if name not in OF_DYNAMO}
    texts = {name: text for name, text in texts.items() if MENTIONED.search(text)}
    assert len(texts) > 60
    assert [f"{name}:{place}" for name, text in texts.items() for place in dict.fromkeys(reads(text))] == []


def test_no_javascript_of_ours_reads_a_sentence_of_ours() -> None:
    found = [
        f"{path.name}: {match[0]}"
        for path in sorted((ROOT / "frontend" / "src").glob("*.js"))
        for match in JAVASCRIPT.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "planted",
    [
        'item.advice.startswith("Nothing to change")',
        '(item.advice or "").startswith("Nothing")',
        "LEFT_OUT in row.note",
        're.search("torch.where", finding.mitigation)',
        "_SETTING.findall(action.do)",
        'coverage_sentence(capture).replace("nothing: ", "", 1)',
        'advice.sentence().partition(";")[0]',
        "_SENTENCES.split(finding.mitigation.strip(), maxsplit=1)",
    ],
)
def test_a_planted_reading_is_found(planted: str) -> None:
    assert len(list(reads(f"def f(item):\n    return {planted}\n"))) == 1


def test_a_planted_reading_of_a_variable_is_found() -> None:
    assert list(reads('def f(look):\n    said = problem_sentence(look)\n    return said.removeprefix("a ")\n')) == [
        "3: said.removeprefix('a ')"
    ]
    assert list(reads("def f(row):\n    return row.file.split('/')\n")) == []


@pytest.mark.parametrize("planted", ["/^1 recompile\\b/.test(sentence)", 'action.confidence.split(" ")', 'get("reason").includes(target)'])
def test_a_planted_reading_in_javascript_is_found(planted: str) -> None:
    assert JAVASCRIPT.search(planted)
