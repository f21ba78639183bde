"""What `--json` prints, held against the published schema."""

import json
from functools import cache
from typing import Any

import pytest

from docs.json_schema import json_schema


@cache
def _answers() -> dict[tuple[str, str | None], Any]:
    jsonschema = pytest.importorskip("jsonschema")
    whole = _strict(json_schema())
    jsonschema.Draft202012Validator.check_schema(whole)
    found = {}
    for one in whole["anyOf"]:
        keys = one["properties"]
        name = keys["schema"]["const"], keys["table"]["const"] if one["title"] == "table" else None
        found[name] = jsonschema.Draft202012Validator({**one, "$defs": whole["$defs"]})
    return found


def _strict(part: Any) -> Any:  # noqa: ANN401 - a part of a schema
    """Allow no key that the schema does not name; readers of an older schema have to."""
    if isinstance(part, list):
        return [_strict(item) for item in part]
    if not isinstance(part, dict):
        return part
    closed = {"additionalProperties": False} if isinstance(part.get("required"), list) else {}
    return {**{name: _strict(item) for name, item in part.items()}, **closed}


def answered(text: str) -> Any:  # noqa: ANN401 - an answer
    """Parse an answer as every parser does, and fail if it is not as its schema says."""
    found = json.loads(text, parse_constant=pytest.fail)
    validator = _answers()[found["schema"], found["table"] if found["schema"].startswith("ortlens/table/") else None]
    assert [f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(found)] == []
    return found
