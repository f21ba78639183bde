"""Calls of a model's `generate`: the model is compiled in place while the call lasts, and each of its calls is clocked.

`generate` itself stays Python: compiled, its loop breaks the graph several times a token, in lines that no user can change.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import time
from typing import TYPE_CHECKING, Any

import torch

from ortlens.analysis.ledger import StepReading
from ortlens.backend.runtime.ab_timing import waiting_for
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_TOKENS = ("decoder_input_ids", "decoder_inputs_embeds", "input_ids", "inputs_embeds")
"""Arguments of the models of transformers that hold the positions to compute; of other models it is the first tensor."""


class Generating:
    """A `generate` method, called with its model compiled or not."""

    def __init__(self, generate: Callable[..., Any], compiler: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Compile the parts of a method for which `is_generate` holds, which happens at their first call."""
        self._generate = generate
        self.readings: list[StepReading] = []  # the calls of the model since this list was cleared, in order
        modules = _modules(generate.__self__)  # type: ignore[attr-defined]  # it is a method
        self.parts = tuple(module.forward for module in modules)  # of the model, and of an encoder that `generate` calls by itself
        self._plain = self._around(modules, self.parts)
        self._fast = self._around(modules, [compiler(part) for part in self.parts])

    def _around(
        self, modules: Sequence[torch.nn.Module], forwards: Iterable[Callable[..., Any]]
    ) -> list[tuple[torch.nn.Module, Callable[..., Any]]]:
        """Pair each module with what it is given as its `forward`; the first is the model, the second its encoder."""
        pairs = enumerate(zip(modules, forwards, strict=True))
        return [(module, self._clocked(forward, is_encoder=place > 0)) for place, (module, forward) in pairs]

    def compiled(self, *args: Any, **kwargs: Any) -> Any:
        """Call `generate` with the model compiled."""
        with _in_place(self._fast):
            return self._generate(*args, **kwargs)

    def uncompiled(self, *args: Any, **kwargs: Any) -> Any:
        """Call `generate` with the model as it is."""
        with _in_place(self._plain):
            return self._generate(*args, **kwargs)

    def _clocked(self, forward: Callable[..., Any], *, is_encoder: bool) -> Callable[..., Any]:
        clock, note, wait = time.perf_counter_ns, self.readings.append, waiting_for(self._generate.__self__)  # type: ignore[attr-defined]  # as above

        @functools.wraps(forward)  # generate reads the signature
        def through(*args: Any, **kwargs: Any) -> Any:
            wait()
            started = clock()
            result = forward(*args, **kwargs)
            wait()
            note(StepReading(is_encoder, started, clock(), *_rows_and_positions(args, kwargs)))
            return result

        return through


def bypassed(model: object) -> r.Finding:
    """Report that nothing was compiled, because `generate` does not call what `torch.compile` returned."""
    name = type(model).__name__
    return r.Finding(
        rule="compiled_model_bypassed",
        severity="warning",
        title=f"nothing was compiled: `generate` of a compiled {name} calls the uncompiled model",
        evidence=f"torch.compile(model) returned a module that was never called; its generate is the method of the {name} inside",
        hazard="The program runs at PyTorch's speed, and this capture stays empty.",
        mitigation="Compile the model in place, with `model.compile(backend=lens)` or "
        "`model.forward = torch.compile(model.forward, backend=lens)`, or call `ortlens.explain(model.generate)(**inputs)`.",
        subject=name,
    )


def is_generate(target: object) -> bool:
    """Tell whether a target is `model.generate`, the method of a module that calls the module once per token."""
    return inspect.ismethod(target) and isinstance(target.__self__, torch.nn.Module) and target.__name__ == "generate"


def _modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """List the model, and the encoder that `generate` of transformers calls before it."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return [model]
    encoder = getattr(model, "get_encoder", lambda: None)()
    return [model, encoder] if isinstance(encoder, torch.nn.Module) and encoder is not model else [model]


@contextlib.contextmanager
def _in_place(forwards: list[tuple[torch.nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    before = [(module, module.__dict__.get("forward")) for module, _ in forwards]
    for module, forward in forwards:
        module.forward = forward  # as users do who compile a model in place
    try:
        yield
    finally:
        for module, own in before:
            if own is None:
                del module.forward
            else:
                module.forward = own


def _rows_and_positions(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int, int]:
    named = (kwargs.get(name) for name in _TOKENS)
    for value in (*named, *args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() > 1:
            return value.shape[0], value.shape[1]
    return 1, 1
