"""What to type for what was not recorded: a screen suggests only what its reader can type where it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Want: TypeAlias = Literal["explain", "measure", "profile", "verify"]
Place: TypeAlias = Literal["lens", "magic", "command", "saved"]

WANTS: tuple[Want, ...] = ("explain", "measure", "profile", "verify")

_TEXTS: Mapping[Place, Mapping[Want, str]] = {
    # A lens that is at hand, by its name.
    "lens": {
        "explain": "{name} = ortlens.explain({model})({x})",
        "measure": "{name}.measure({x})",
        "profile": "{name}.profile({x})",
        "verify": "{name}.verify({reference})",
    },
    # A magic that kept no lens.
    "magic": {
        "explain": "%ortlens -o lens {call}",
        "measure": "%ortlens -o lens {call}",
        "profile": "%ortlens -o lens --profile {call}",
        "verify": "%ortlens -o lens --verify {call}",
    },
    "command": {
        "explain": "ortlens explain {target}",
        "measure": "ortlens explain {target}, without --calls",
        "profile": "ortlens explain {target} --profile",
        "verify": "ortlens explain {target} --verify{command_reference}",
    },
    # A capture by itself, and a page that outlives its lens.
    "saved": {
        "explain": "lens = ortlens.explain({model})({x})",
        "measure": "lens = ortlens.explain({model})({x})",
        "profile": "lens = ortlens.explain({model})({x}); lens.profile({x})",
        "verify": "lens = ortlens.explain({model})({x}); lens.verify({reference})",
    },
}
_TORCH = {"model": "model", "x": "x", "reference": "x", "call": "model(x)", "target": "MODULE:NAME --input ...", "command_reference": ""}
_ONNX = {
    "model": '"model.onnx"',
    "x": "",
    "reference": "module",
    "call": '"model.onnx"',
    "target": "model.onnx",
    "command_reference": " --reference MODULE:NAME",
}


@dataclass(frozen=True, slots=True)
class Hints:
    """Words for one place."""

    place: Place
    name: str = "lens"  # of the lens there

    def text(self, want: Want, *, is_onnx: bool = False) -> str:
        """Return what to type for a model of PyTorch, or for an ONNX model; empty for what there is not: the parts of a call of one."""
        if is_onnx and want == "measure":
            return ""
        if is_onnx and (self.place, want) == ("magic", "verify"):  # the magic takes no module
            return f"{self.text('explain', is_onnx=True)}, then lens.verify(module)"
        return _TEXTS[self.place][want].format(name=self.name, **(_ONNX if is_onnx else _TORCH))


LENS, MAGIC, COMMAND, SAVED = Hints("lens"), Hints("magic"), Hints("command"), Hints("saved")
