"""The frame that Netron runs in, with one model of a capture for a notebook or a file, or with all of them for the explorer.

The frame is a page of its own: the modules of the installed Netron, read as files and packed, our script that runs them, and rules that
keep it from asking for anything. Nothing of Netron is bundled with ortlens, imported or run in Python.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens._files import write_asked
from ortlens._os_errors import with_clear_os_errors
from ortlens._versions import SupportedRange, require, version_of
from ortlens.errors import CaptureError, OptionalDependencyError, UsageError
from ortlens.model_file import WireError
from ortlens.units import counted
from ortlens.views.markup import asset, policy, render, script_source
from ortlens.views.slim_model import SlimModel, slim_model
from ortlens.views.wording import clipped

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping, Sequence

    from ortlens.trace.records import Capture, Model


OPTIMIZED = ".optimized"  # end of the id of a model as ONNX Runtime runs it, after its own rewrites
MAX_MODEL_BYTES = 64 * 2**20  # models above this are not gone through: their weights are inside, and reading them would hold the page up
_LISTED, _NAMED = 12, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """What a page needs so that the explorer can show ONNX models."""

    frame: bytes  # the frame's HTML, gzip'd: the viewer, without a model. Empty where Netron is not there; models can be saved then
    models: Mapping[str, bytes]  # the models without weights, serialised and gzip'd, by id: `m0`, and `m0.optimized` where it was profiled
    notes: tuple[str, ...]  # sentences about what is not in it, and why
    licence: str  # notice that a page must carry that embeds the frame; empty without one


def embedding(capture: Capture, *, budget_bytes: int | None = None) -> Embedding:
    """Pack a capture's models for the explorer; never raises for what a capture or the installed Netron holds.

    Within `budget_bytes`, gzip'd and frame included, models with many nodes go first, rewritten ones last; sentences say what was left out.
    """
    slim, notes = _slim_models(capture)
    if not slim:
        return Embedding(frame=b"", models={}, notes=tuple(notes), licence="")
    frame, viewer_notes = _viewer_frame(slim)
    if budget_bytes is not None and len(frame) > budget_bytes:
        frame = b""
        viewer_notes = ["Netron does not fit into this page; save a model to open it elsewhere."]
    room = float("inf") if budget_bytes is None else budget_bytes - len(frame)
    models: dict[str, bytes] = {}
    dropped = []
    for name, model in slim.items():
        data = gzip.compress(model.data, 9, mtime=0)
        if len(data) <= room:
            models[name] = data
            room -= len(data)
        else:
            dropped.append(name)
    if dropped:
        notes.append(f"Left out so that the page stays small: {_names(dropped)}. In a notebook, `netron()` shows each of them.")
    return Embedding(frame=frame, models=models, notes=(*viewer_notes, *notes), licence=asset("netron_licence.txt") if frame else "")


def _slim_models(capture: Capture) -> tuple[dict[str, SlimModel], list[str]]:
    """Collect the models that can be drawn, the largest first, the rewritten ones behind, and sentences about the others."""
    found: dict[str, SlimModel] = {}
    absent, damaged, large = [], [], []
    for optimized in (False, True):
        for model in sorted(capture.models, key=lambda model: -model.node_count):
            name = f"{model.model_id}{OPTIMIZED}" if optimized else model.model_id
            data = capture.attachments.get(_attachment(model, optimized=optimized))
            if data is None:
                absent += [] if optimized else [name]
            elif len(data) > MAX_MODEL_BYTES:
                large.append(name)
            else:
                try:
                    found[name] = slim_model(data)
                except WireError as err:
                    damaged.append(f"{clipped(name, 40)} ({err})")
    notes = [f"This capture holds only metadata of {_names(absent)}: redacted captures contain no models."] if absent else []
    notes += [f"Damaged, and left out: {_names(damaged)}."] if damaged else []
    limit = f"Larger than {MAX_MODEL_BYTES // 2**20} MB"
    notes += [f"{limit}, and left out: {_names(large)}. In a notebook, `netron()` shows each of them."] if large else []
    return found, notes


def _names(names: list[str]) -> str:
    listed = ", ".join(clipped(name, 120) for name in names[:_NAMED])
    return f"{listed} and {counted(len(names) - _NAMED, 'other')}" if len(names) > _NAMED else listed


def _viewer_frame(slim: Mapping[str, SlimModel]) -> tuple[bytes, list[str]]:
    """Make the frame for some models, gzip'd, and say what is wrong with the installed Netron; empty where it cannot be used."""
    try:
        viewer = installed_viewer("The ONNX panel")
    except OptionalDependencyError as err:
        return b"", [f"{err}."]
    except UnexpectedFilesError as err:
        why = clipped(str(err), 200)
        return b"", [f"The installed Netron differs from {TESTED} ({why}): models can be saved here and opened in Netron itself."]
    notes = [] if viewer.tested else [f"ortlens was tested with Netron {TESTED}; {viewer.version} is installed."]
    return gzip.compress(frame_html(viewer, list(slim.values())).encode(), 9, mtime=0), notes


def attached_model(capture: Capture, name: object, *, optimized: bool) -> tuple[Model, bytes]:
    """Find a model by its id or its partition's, and its bytes; `optimized` is known only where it was profiled."""
    model = next((model for model in capture.models if name in (model.partition_id, model.model_id)), None)
    if model is None:
        raise UsageError(_nothing_called(capture, name))
    found = capture.attachments.get(_attachment(model, optimized=optimized))
    if found is not None:
        return model, found
    if optimized and _attachment(model, optimized=False) in capture.attachments:
        raise UsageError(
            f"the optimized version of model {model.model_id} is not known: only a profile records it. "
            f"Without optimized=True, the converted model is shown"
        )
    raise CaptureError(
        f"model {model.model_id} of partition {model.partition_id} is not in this capture, "
        f"only its metadata ({counted(model.node_count, 'node')}). "
        "Redacted captures leave models out: load the capture as it was saved, or record it again"
    )


def _attachment(model: Model, *, optimized: bool) -> str:
    # Never `model.path`: a loaded capture may name any file of this machine there.
    return f"models/{model.model_id}{OPTIMIZED if optimized else ''}.onnx"


def _nothing_called(capture: Capture, name: object) -> str:
    asked = clipped(repr(name), 80)
    if not capture.models:
        return f"there is no partition or model {asked}: this capture has none. A backend other than ortlens creates no ONNX models"
    pairs = [f"{model.partition_id} ({model.model_id})" for model in capture.models]
    more = f" and {len(pairs) - _LISTED} more, see .partitions" if len(pairs) > _LISTED else ""
    return f"there is no partition or model {asked} in this capture; it has {', '.join(pairs[:_LISTED])}{more}"


def page_policy() -> dict[str, str]:
    """List what a page must allow for the frame to work: a frame without its own URL inherits the page's rules.

    All these sources are made in the frame; nothing is loaded.
    """
    scripts = f"{script_source(asset('netron.js'))} blob:"
    return {"script-src": scripts, "worker-src": "blob:", "style-src": "'unsafe-inline'", "img-src": "data:"}


def frame_html(viewer: Viewer, models: Sequence[SlimModel], *, shown: tuple[str, bytes] | None = None) -> str:
    """Make the page that goes into the frame; it loads nothing, and its own rules forbid it to.

    `models` tell which operators it must know. It opens `shown` by itself; without, it waits for the page around to hand a model over.
    """
    used = {operator for model in models for operator in model.operators}
    opsets = {opset for model in models for opset in model.opsets}
    packed = {
        "version": viewer.version,
        "modules": viewer.modules,
        "styles": viewer.styles,
        "body": viewer.body,
        "operators": json.dumps(operators_for(viewer, used, opsets)),
    }
    code = _packed(json.dumps(packed).encode())
    # Not the script's hash: where a page around allows inline scripts only, the modules are run by one that the script makes.
    # That the nonce can be known is no matter: markup that got in through a name can hold no script that runs, only handlers.
    nonce = hashlib.sha256(code.encode()).hexdigest()[:32]
    rules = policy(more={"script-src": f"'nonce-{nonce}' blob:", "worker-src": "blob:", "img-src": "data:"})
    return render(
        "netron.html",
        licence=asset("netron_licence.txt"),
        rules=rules,
        style=asset("netron.css"),
        code=code,
        shown=shown and shown[0],
        model=shown and _packed(shown[1]),
        nonce=nonce,
        script=asset("netron.js"),
    )


def _packed(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode("ascii")


_MAX_NAME = 80
_MAX_LINK_BYTES = 2 * 2**20  # of a model behind a link in a notebook; a larger one is saved from Python


@with_clear_os_errors
@dataclass(frozen=True)
class NetronView:
    """An ONNX model as Netron draws it. A notebook shows it; elsewhere `save` writes it to a file.

    Attributes:
        name: Id of the model, `m0` or `m0.optimized`.
        partition_id: Partition that it was made from.
        model: The model as it was recorded, serialised: what `onnx.load_from_string` reads.
        viewer: The installed Netron; None where its files are not what they should be.
        trouble: Why there is no viewer.
    """

    name: str
    partition_id: str
    model: bytes
    viewer: Viewer | None
    trouble: str = ""

    @cached_property
    def slim(self) -> SlimModel:
        """The model without its weights, as it is drawn."""
        try:
            return slim_model(self.model)
        except WireError as err:
            raise CaptureError(
                f"model {self.name} in this capture is damaged: {err}. Record it again, or load another copy of the capture"
            ) from err

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model to a file that opens by itself.

        Args:
            path: `*.onnx` for the model as it was recorded, anything else for one HTML page with Netron in it, which needs no network.

        Returns:
            The absolute path of the file.

        Raises:
            UsageError: It cannot be written there.
        """
        data = self.model if Path(path).suffix.lower() == ".onnx" else self._page().encode("utf-8")
        return write_asked(path, data, "the model")

    def __repr__(self) -> str:
        """Say on one line what it is and how to see it; never raises."""
        where = (
            f".save('{self.name}.html') writes one file for any browser"
            if self.viewer
            else f"{self.trouble}; .save('{self.name}.onnx') writes the model"
        )
        return f"<ONNX model {self.name} of partition {self.partition_id} in Netron: displayed in a notebook; {where}>"

    def _repr_html_(self) -> str:
        """Return a frame that may run scripts and nothing else; never raises."""
        is_linked = self.viewer is None and len(self.model) <= _MAX_LINK_BYTES
        data = base64.b64encode(self.model).decode("ascii") if is_linked else ""
        try:
            page = "" if self.viewer is None else self._page()
            return render("netron_view.html", view=self, facts=self._facts(), notes=self._notes(), page=page, data=data)
        except OSError:  # no file descriptor is left for the template
            return f"<p>{escape(repr(self))}</p>"

    def _page(self) -> str:
        if self.viewer is None:
            rules = f"<meta http-equiv='Content-Security-Policy' content=\"{policy()}\">"
            return f"<!doctype html><meta charset='utf-8'>{rules}<title>{escape(self.name)}</title>{self._repr_html_()}"
        return frame_html(self.viewer, [self.slim], shown=(self.name, self.slim.data))

    def _facts(self) -> str:
        how = "as ONNX Runtime runs it" if self.name.endswith(OPTIMIZED) else "as it was converted"
        nodes = counted(self.slim.node_count, "node")
        return f"ONNX model {self.name.removesuffix(OPTIMIZED)} of partition {self.partition_id}, {how}: {nodes}"

    def _notes(self) -> str:
        if self.viewer is None:
            return ""
        left_out = f"Drawn without the values of {counted(self.slim.left_out_tensors, 'weight')}. " if self.slim.left_out_tensors else ""
        untested = "" if self.viewer.tested else f"ortlens was tested with Netron {TESTED}; this is {self.viewer.version}. "
        return f"{left_out}{untested}Drawn by Netron {self.viewer.version}; nothing leaves this page."


def netron_view(capture: Capture, name: object, *, optimized: bool) -> NetronView:
    """Show a model, by its id or its partition's; `optimized` takes what ONNX Runtime made of it.

    An optimised model is known only where it was profiled; else this raises `UsageError`.
    """
    model, data = attached_model(capture, name, optimized=optimized)
    viewer, trouble = None, ""
    try:
        viewer = installed_viewer("lens.netron()")
    except UnexpectedFilesError as err:
        trouble = f"this needs Netron {TESTED}; the installed version has unexpected files ({clipped(str(err), 200)})"
    shown = clipped(model.model_id, _MAX_NAME) + (OPTIMIZED if optimized else "")
    view = NetronView(name=shown, partition_id=clipped(model.partition_id, _MAX_NAME), model=data, viewer=viewer, trouble=trouble)
    _ = view.slim  # a damaged model is an error of this call, not of a later display
    return view


TESTED = SupportedRange(low=(9, 0), high=(9, 4))
"""Versions whose files were seen to work in a browser: 9.0.0 and 9.3.3. Others are tried, and say so."""

_MODULES = ("text", "base", "grapher", "dagre", "protobuf", "onnx", "onnx-proto", "view")
_IMPORT = re.compile(r"^import \* as (\w+) from '\./([\w-]+)\.js';$", re.MULTILINE)
_EXPORT = re.compile(r"^export const (?:(\w+)|\{ ([\w, ]+) \}) = ", re.MULTILINE)
_LATER = re.compile(r"\bimport\('\./([\w-]+)\.js'\)")
_OTHER_MODULE_SYNTAX = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_BODY = re.compile(r"<body[^>]*>(.*)</body>", re.DOTALL)
_NEEDED_IDS = ("target", "sidebar", "sidebar-title", "toolbar", "zoom-in-button")
_NOT_SHOWN = ("examples",)  # of an operator: pages of Python


class UnexpectedFilesError(Exception):
    """The installed Netron is laid out otherwise than the versions that this was written for; the message says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """What a page needs of Netron."""

    version: str  # version of the installed package; `unknown` without metadata
    modules: dict[str, str]  # bodies of functions of `need` and `later` that return what a module exports, by the module's name
    styles: tuple[str, ...]  # style sheets
    body: str  # markup that the modules expect to find
    operators: tuple[dict[str, Any], ...]  # what Netron knows about operators of ONNX, each version of each

    @property
    def tested(self) -> bool:
        """Whether this version is one of those that were tested."""
        return self.version != "unknown" and TESTED.holds(self.version)


def installed_viewer(feature: str) -> Viewer:
    """Read the installed Netron, once per process and installation; raise `UnexpectedFilesError` for an unexpected layout.

    `feature` is what the user asked for, as the subject of a sentence: `"lens.netron()"`.
    """
    folder = _folder()
    if folder is None:
        require("netron", feature=feature)  # raises, and says what to install
        raise UnexpectedFilesError("the package 'netron' has no folder")
    return _viewer(folder, version_of("netron") or "unknown")


def operators_for(viewer: Viewer, used: Collection[tuple[str, str]], opsets: Collection[tuple[str, int]]) -> list[dict[str, Any]]:
    """Select the operator definitions that some models need: those in force under their operator sets, without examples.

    `used` has domains and types of operators, `opsets` domains and versions.
    """
    newest: dict[tuple[str, str, int], dict[str, Any]] = {}
    for operator in viewer.operators:
        name = (str(operator["module"]), str(operator["name"]))
        for version in (version for domain, version in opsets if domain == name[0] and name in used):
            held = newest.get((name[0], name[1], version), {}).get("version", -1)
            if held < operator.get("version", 0) <= version:
                newest[name[0], name[1], version] = operator
    distinct = {(name, kind, operator.get("version", 0)): operator for (name, kind, _), operator in newest.items()}
    return [{key: value for key, value in distinct[at].items() if key not in _NOT_SHOWN} for at in sorted(distinct)]


def _folder() -> Path | None:
    try:
        spec = find_spec("netron")
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


@lru_cache(maxsize=2)
def _viewer(folder: Path, version: str) -> Viewer:
    page = _text(folder / "index.html")
    body = _BODY.search(page)
    if body is None or any(f'id="{name}"' not in body[1] for name in _NEEDED_IDS):
        raise UnexpectedFilesError("index.html lacks parts of the page that the viewer draws into")
    return Viewer(
        version=version,
        modules={name: _function_body(name, _text(folder / f"{name}.js")) for name in _MODULES},
        styles=(_text(folder / "grapher.css"), *_STYLE.findall(page)),
        body=_narrow(body[1]),
        operators=_operators(folder / "onnx-metadata.json"),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as err:
        raise UnexpectedFilesError(f"{path.name} cannot be read: {err}") from err


def _function_body(name: str, source: str) -> str:
    """Turn a module into the body of a function: static imports ask `need`, dynamic ones `later`, exports are returned."""
    exported = ", ".join(one or several for one, several in _EXPORT.findall(source))
    missing = sorted({wanted for _, wanted in _IMPORT.findall(source)} - set(_MODULES))
    if missing:
        raise UnexpectedFilesError(f"{name}.js needs {', '.join(missing)}, which drawing ONNX models has not needed so far")
    text = _IMPORT.sub(r"const \1 = need('\2');", source)
    text = _LATER.sub(r"later('\1')", _EXPORT.sub(lambda found: f"const {found[1] or '{ ' + found[2] + ' }'} = ", text))
    other = _OTHER_MODULE_SYNTAX.search(text)
    if other or not exported:
        raise UnexpectedFilesError(f"{name}.js has unexpected syntax: {other[0][:80] if other else 'it exports nothing'}")
    return f"{_narrow(text)}\nreturn {{ {exported} }};"


def _narrow(text: str) -> str:
    """Drop indentation, a tenth of what remains after packing; not where a text of several lines may hold some."""
    lines = text.splitlines()
    if any(line.count("`") % 2 for line in lines):
        return text
    return "\n".join(line.strip() for line in lines if line.strip())


def _operators(path: Path) -> tuple[dict[str, Any], ...]:
    try:
        found = json.loads(_text(path))
        if not all(isinstance(operator, dict) and "name" in operator and "module" in operator for operator in found):
            raise UnexpectedFilesError(f"{path.name} does not list operators")
    except (ValueError, TypeError) as err:
        raise UnexpectedFilesError(f"{path.name} is not JSON: {err}") from err
    return tuple(found)
