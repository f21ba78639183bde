"""Which execution provider runs what of a session, from ONNX Runtime's own record, and why the preferred one does not run the rest."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx

from ortlens import _ort
from ortlens.analysis.costs import most_common
from ortlens.analysis.index import grouped
from ortlens.analysis.placement import pieces_of, refusal_words, short_name
from ortlens.backend.basis.node_provenance import captured, iter_nodes, opsets_of
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnxruntime

    from ortlens.trace.recorder import Recorder

_NOT_REGISTERED = "ONNX Runtime did not register it"


class _Placed(NamedTuple):
    """Where the nodes of a model run."""

    owners: Mapping[str, str]  # provider by node of the model; of a node that ONNX Runtime renamed, where it is known
    rows: list[dict[str, Any]]  # fields of a row per provider


def record(  # noqa: PLR0913, PLR0917 - what is known of a session
    recorder: Recorder,
    session: r.Session,
    made: onnxruntime.InferenceSession | Sequence[_ort.Assignment],
    wanted: Sequence[str],
    model: onnx.ModelProto | None,
    rules: Mapping[str, str] | None = None,
) -> None:
    """Record the providers of a session, and of the nodes of its partition.

    `wanted` are the names of the providers that were asked for, in order. `model` is what the session was made of, without its weights; if
    it is not known, nodes stay without a provider. Of a session that is only planned, its subgraphs are given, and `rules` say by node why
    the first provider does not run it.
    """
    placed, preferred = _placed(made, wanted, model), wanted[0]
    why, lacking = _amend(recorder, session.partition_id, placed.owners, preferred, model, rules)
    for row in placed.rows:
        known = {"reason": row.get("reason", why), "lacking": lacking} if row["provider"] == preferred else {}
        recorder.add(r.Placement(session_id=session.session_id, **row | known))


def record_kernels(recorder: Recorder, partition_id: str, preferred: str, model: onnx.ModelProto | None) -> None:
    """Fill in the providers of nodes that ONNX Runtime fused, from the kernels that compute them."""
    found = {name: kernel.provider for kernel in recorder.records(r.Kernel) for name in kernel.onnx_nodes if kernel.provider}
    _amend(recorder, partition_id, found, preferred, model)


def _amend(  # noqa: PLR0913, PLR0917 - as above
    recorder: Recorder,
    partition_id: str,
    owners: Mapping[str, str],
    preferred: str,
    model: onnx.ModelProto | None,
    rules: Mapping[str, str] | None = None,
) -> tuple[str | None, tuple[str, ...]]:
    """Record the provider of nodes that have none yet, and why others are not on the preferred one.

    Return why they are not, where that is known of an operator, and the operators that it lacks.
    """
    elsewhere: list[tuple[str, r.Node]] = []
    taken: set[str] = set()
    for node in recorder.records(r.Node):
        known = [name for name in node.onnx_nodes if name in owners]
        if node.partition_id != partition_id or node.provider is not None or not known:
            continue
        name = next((name for name in known if owners[name] != preferred), known[0])  # of several, the one that splits it off
        recorder.amend(r.Node, (node.graph_id, node.node), provider=owners[name])
        if owners[name] == preferred:
            taken.update(node.onnx_ops)
        else:
            elsewhere.append((name, node))
    by_name = {node.name: node for node in iter_nodes(model.graph)} if elsewhere and model is not None else {}
    types, opsets = (_types(model), opsets_of(model)) if by_name and model is not None and rules is None else ({}, {})
    reasons, lacking = list[str](), Counter[str]()
    for name, node in ((name, node) for name, node in elsewhere if name in by_name):
        op = by_name[name].op_type
        cause, about = ("unlisted", ()) if rules is not None else _refusal(by_name[name], preferred, types, opsets)
        why = refusal_words(preferred, op, cause, about) if rules is None else f"{preferred} {rules.get(name, 'does not run it')}"
        lacks = cause in _LACKS or name in (rules or {})
        reasons += [why] if lacks else []
        lacking[op] += lacks or (cause != "chosen" and bool(taken) and op not in taken)
        recorder.amend(r.Node, (node.graph_id, node.node), reason=why)
    return most_common(reasons) or None, tuple(op for op, count in lacking.most_common() if count)


_LACKS = ("no_kernel", "opset", "dtype")  # causes that are of the operator itself


def _refusal(node: onnx.NodeProto, provider: str, types: Mapping[str, str], opsets: Mapping[str, int]) -> tuple[r.Refusal, tuple[str, ...]]:
    domain = "" if node.domain == "ai.onnx" else node.domain
    read = {types[name] for name in node.input if name in types}
    return _ort.refusal(provider, domain, node.op_type, opsets.get(domain, 1), read)


def _types(model: onnx.ModelProto) -> dict[str, str]:
    """Infer the element types of values, in ONNX Runtime's words; what the model declares where that fails."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # noqa: BLE001 - onnx raises classes of its own
        graph = model.graph
    infos = ((info.name, info.type.tensor_type.elem_type) for info in (*graph.input, *graph.output, *graph.value_info))
    kinds = onnx.TensorProto.DataType
    known = (*infos, *((tensor.name, tensor.data_type) for tensor in graph.initializer))
    return {name: kinds.Name(number).lower() for name, number in known if number and number in kinds.values()}


def explained(recorder: Recorder, session_id: str, messages: Sequence[str]) -> None:
    """Put what ONNX Runtime said about the making of a session beside the providers and nodes that it explains."""
    session = next((row for row in recorder.records(r.Session) if row.session_id == session_id), None)
    rows = [row for row in recorder.records(r.Placement) if row.session_id == session_id]
    if session is None or not messages or not rows:
        return
    first = min(rows, key=lambda row: row.requested or len(rows) + 1)
    nodes = (node for node in recorder.records(r.Node) if node.partition_id == session.partition_id)
    strayed = [node for node in nodes if node.provider not in (None, first.provider)]
    if not strayed and first.nodes:
        return
    named = {op: said for node in strayed for op in node.onnx_ops if (said := _naming(op, messages))}
    said = next(iter(named.values()), None) or _naming(short_name(first.provider), messages) or messages[0]
    recorder.add(replace(first, reason=said, lacking=tuple(named) or first.lacking))
    for node in strayed:
        why = next((named[op] for op in node.onnx_ops if op in named), None if first.nodes else said)
        if why is not None:
            recorder.amend(r.Node, (node.graph_id, node.node), reason=why)


def _naming(word: str, messages: Sequence[str]) -> str | None:
    pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
    return next((message for message in messages if pattern.search(message)), None)


def _placed(made: Any, wanted: Sequence[str], model: onnx.ModelProto | None) -> _Placed:
    asked, is_planned = {name: place for place, name in enumerate(wanted, start=1)}, isinstance(made, list)
    used, subgraphs = (wanted, made) if is_planned else (made.get_providers(), _ort.assignments(made))
    rows = [_row(name, asked) | {"reason": _NOT_REGISTERED} for name in asked if name not in used]
    if len(used) == 1:
        names = [] if model is None else [node.name for node in iter_nodes(model.graph)]
        return _Placed(dict.fromkeys(names, used[0]), [*rows, _row(used[0], asked, len(names), min(len(names), 1))])
    owners, ends = _owned(model, {name: each.provider for each in subgraphs for name in each.nodes}) if model and subgraphs else ({}, {})
    is_known = bool(owners) and all(end in owners for met in ends.values() for end in met)
    for name in used if subgraphs else ():
        own = [each for each in subgraphs if each.provider == name and each.nodes]
        crossing = [met for met in ends.values() if name in (sides := {owners.get(end) for end in met}) and len(sides) > 1]
        mine = {node for node, owner in owners.items() if owner == name}
        pieces = len(own) if (is_planned and name == wanted[0]) or _compiles(name, own) else pieces_of(mine, ends.values())
        rows.append(_row(name, asked, sum(len(each.nodes) for each in own), pieces, len(crossing) if is_known else None))
    return _Placed(owners, sorted(rows, key=lambda row: row["requested"] or len(rows) + len(asked)))


def _row(provider: str, asked: Mapping[str, int], nodes: int = 0, pieces: int = 0, copies: int | None = 0) -> dict[str, Any]:
    return {"provider": provider, "requested": asked.get(provider), "nodes": nodes, "pieces": pieces, "copies": copies}


def _compiles(provider: str, own: Sequence[_ort.Assignment]) -> bool:
    """Tell whether a provider compiles subgraphs, each of which is a piece, and has no kernels for single nodes."""
    return any(len(each.nodes) > 1 for each in own) or (len(own) > 1 and provider != _ort.CPU and _ort.listed_kernels(provider) == ())


def _owned(model: onnx.ModelProto, assigned: Mapping[str, str]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Find the provider of each node of a model, and the nodes at the ends of each value, its maker first.

    A node that a rewrite made has the name of one that it replaces in its own, `node/MatMulAddFusion`. One that is gone was folded
    into what made its inputs, or else into what reads it.
    """
    in_order = [node.name for node in model.graph.node]
    ends = {value: [node.name] for node in model.graph.node for value in node.output if value}
    for node in model.graph.node:
        for value in dict.fromkeys((*node.input, *captured(node))):
            if value in ends:
                ends[value].append(node.name)
    if len(sides := set(assigned.values())) == 1:
        return dict.fromkeys(in_order, sides.pop()), ends
    names = set(in_order)
    owners = {name: provider for name, provider in assigned.items() if name in names}
    for name, provider in assigned.items():
        stems = (stem for stem in itertools.accumulate(name.split("/"), _joined) if stem in names)
        owners.setdefault(max(stems, key=len, default=name), provider)
    owners = {name: provider for name, provider in owners.items() if name in names}
    _fill(owners, in_order, grouped((reader, maker) for maker, *readers in ends.values() for reader in readers))
    _fill(owners, in_order[::-1], grouped((maker, reader) for maker, *readers in ends.values() for reader in readers))
    return owners, ends


def _joined(before: str, part: str) -> str:
    return f"{before}/{part}"


def _fill(owners: dict[str, str], names: Sequence[str], beside: Mapping[str, Sequence[str]]) -> None:
    """Give nodes without a provider that of all the others beside them, where it is one."""
    for name in names:
        sides = {owners.get(other, "") for other in beside.get(name, ())}
        if name not in owners and len(sides) == 1 and "" not in sides:
            owners[name] = sides.pop()
