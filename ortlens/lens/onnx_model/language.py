"""Language models in ONNX that generate tokens: an `ORTModelForCausalLM` of optimum, or a folder of onnxruntime-genai.

Each runs as its own package runs it, which is imported only for a target of its own. What is clocked are calls from Python: of the model,
and of the tokenizer; the rest of a call is Python around them. What onnxruntime-genai does for a prompt, until it has chosen the first
token, is its prefill: it also allocates the cache.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnxruntime

from ortlens import _ort
from ortlens._os_errors import clear_os_errors
from ortlens._process import at_cost
from ortlens._versions import require
from ortlens.analysis.generation import first_token_ns, steps_of
from ortlens.analysis.ledger import CallTrace, StepReading, middle_half
from ortlens.errors import SessionError, UsageError
from ortlens.lens.onnx_model import graph_records
from ortlens.lens.onnx_model.explain import MAX_CALLS, STABLE_NS, watching
from ortlens.lens.onnx_model.onnx_lens import SESSION, OnnxLens
from ortlens.lens.onnx_model.sessions import SessionChoice
from ortlens.lens.onnx_model.signature import inputs_of
from ortlens.lens.onnx_model.source import source_of, with_names
from ortlens.trace import records as r

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pandas as pd

_PROMPT, _NEW = 8, 16  # tokens where the caller names none
_DIMENSIONS, _CACHE_DIMENSIONS = 2, 4  # rows and positions; rows, heads, positions, and the size of a head
_CACHE = "past"  # how the names of the inputs with the cache begin


def explain_language(target: Any, *, calls: int | None, name: str | None, **others: Any) -> Callable[..., LanguageLens]:
    """Explain a language model, a target for which `is_language_model` holds; `ortlens.explain` calls this."""
    if given := [option for option, value in others.items() if value]:
        raise UsageError(f"a language model in ONNX runs as its own package runs it, without {', '.join(f'{option}=' for option in given)}")

    @clear_os_errors
    def explained(*args: Any, **kwargs: Any) -> LanguageLens:
        model = GenaiModel(target) if isinstance(target, (str, os.PathLike)) else OptimumModel(getattr(target, "__self__", target))
        return model.lens(name).generate(model, args, kwargs, calls)

    return explained


class LanguageLens(OnnxLens):
    """The lens over a language model in ONNX; `ortlens.explain(model.generate)(...)` and `ortlens.explain("folder")(...)` make it.

    `steps` has what prefill, decode, the tokenizer and Python take in a call.

    Attributes:
        result: What the call returned: of optimum, that of `generate`; of onnxruntime-genai, the tokens as an array of rows, with the
            prompt. The text, where the prompt is one.
    """

    def generate(self, model: OptimumModel | GenaiModel, args: tuple[Any, ...], kwargs: Mapping[str, Any], calls: int | None) -> Self:
        """Call once to warm up, then for stable figures, and record what each part of a call takes; return the lens."""
        self._model, self._given, traces, clock = model, (args, kwargs), list[CallTrace](), time.perf_counter_ns
        deadline, log = clock() + STABLE_NS, self._recorder.run_log(SESSION, graph_records.GRAPH)
        for count in itertools.count(1):
            started = clock()
            result = model.call(*args, **kwargs)
            traces.append(CallTrace(started_ns=started, ended_ns=clock(), visits=(), steps=tuple(model.readings)))
            for reading in model.readings:
                if self.session is None and not reading.apart:
                    log.record(*(reading.started_ns,) * 2, *(reading.ended_ns,) * 2, 0)
            if count == (calls or MAX_CALLS) or (calls is None and count > 1 and clock() > deadline):
                break
        self.close()
        self.result, middle = result, middle_half(traces[1:] or traces)
        self._recorder.replace_all(r.Step, steps_of(middle, ()))
        self._recorder.note(explain_calls=count, first_token_ns=first_token_ns(middle))
        self._note_cache(*model.last_cache())
        return self

    def _note_cache(self, past: list[Any], is_shared: bool) -> None:  # noqa: FBT001 - passed by place
        """Note what the last step did to the cache, and take the sizes of its inputs."""
        if not past or past[0].ndim != _CACHE_DIMENSIONS:
            return
        (rows, _, positions, _), taken, caches = past[0].shape, sum(each.nbytes for each in past), iter(past)
        self._recorder.note(cache_bytes=taken, cache_copied_bytes=0 if is_shared else taken, cache_new_bytes=taken // positions)
        names = [each.name for each in self._signature]
        sizes = {name: (rows, positions + (not is_shared) if "mask" in name else 1) for name in names}
        self._take_sizes(sizes | {name: tuple(next(caches, past[0]).shape) for name in names if name.startswith(_CACHE)})
        self.note(onnx_inputs_made="as in the last step")

    def _session_to(self, study: str) -> onnxruntime.InferenceSession:
        if self.session is None:
            raise UsageError(f"the session is inside onnxruntime-genai; to {study} the model, explain its file: {self._source.path}")
        return self.session

    def verify(self, reference: Any, *args: Any, atol: Any = None, rtol: Any = None, **kwargs: Any) -> pd.DataFrame:
        """Compare tokens, and the logits that they are chosen from, with those of a transformers model with the same weights.

        Both generate greedily, whatever the call of `explain` did. Compared is up to the first token that differs, since after it the
        two compute different things; it is a finding, with the margin of its logits on both sides: the largest minus the second. Where
        the logits agree, rounding decided between two tokens, and that has no verdict.

        Args:
            reference: The model, in evaluation mode, with a `generate` like that of transformers.
            *args: A prompt, as for `explain`; by default that of its call.
            atol: As for `Lens.verify`.
            rtol: Likewise.
            **kwargs: Arguments of `generate`.

        Returns:
            The frame `numerics`, with a row for `tokens` and one for `logits`.

        Raises:
            UsageError: `reference` has no `generate`, or it raises.
            SessionError: The model raises.
        """
        from ortlens.lens.onnx_model import against_torch
        from ortlens.lens.verify.compare_values import Tolerances

        if not callable(getattr(reference, "generate", None)):
            raise UsageError(f"verify() takes the transformers model with the same weights; {type(reference).__name__} has no generate()")
        given, named = (args, kwargs) if args or kwargs else self._given
        ids, more = self._model.prepared(*given, **named)
        more |= {"do_sample": False, "num_beams": 1}
        against_torch.verify_tokens(reference, ids, more, self._model.greedy(ids, **more), self._recorder, Tolerances(atol, rtol))
        self._facts["onnx_reference"] = "PyTorch"
        return self.numerics


class _Model:
    """What both kinds share: text to tokens and back, with clocks around that."""

    readings: list[StepReading]  # of the present call
    _generate: Any  # generates from tokens, with clocks around the model

    @property
    def _tokens(self) -> Any:
        """The tokenizer, where the model comes with one."""
        raise UsageError("a prompt as text needs its tokenizer: explain(model.generate)(text, tokenizer=tokenizer)")

    def prepared(self, prompt: Any = None, *, input_ids: Any = None, tokenizer: Any = None, **more: Any) -> tuple[Any, dict[str, Any]]:
        """Return the tokens of a prompt, in rows, and the other arguments of `generate`."""
        given = input_ids if prompt is None else prompt
        if isinstance(given, str):
            given = self._clocked((tokenizer or self._tokens).encode, given)
        ids = np.atleast_2d(np.asarray(np.arange(1, 1 + _PROMPT) if given is None else given.cpu() if hasattr(given, "cpu") else given))
        if ids.dtype.kind not in "iu" or ids.ndim != _DIMENSIONS or not ids.size:
            raise UsageError(f"a prompt is a text, or whole numbers in rows of one length, not {prompt!r}")
        return ids, {"max_new_tokens": _NEW, **more}

    def call(self, prompt: Any = None, *, tokenizer: Any = None, **more: Any) -> Any:
        """Generate; return text for text."""
        self.readings = []
        ids, more = self.prepared(prompt, tokenizer=tokenizer, **more)
        result = self._generate(ids, **more)
        return self._clocked((tokenizer or self._tokens).decode, result[0]) if isinstance(prompt, str) else result

    def _clocked(self, function: Callable[[Any], Any], given: Any) -> Any:
        """Call a function of a tokenizer."""
        started = time.perf_counter_ns()
        result = function(given)
        self.readings.append(StepReading("tokenizer", started, time.perf_counter_ns(), 1, len(result if isinstance(given, str) else given)))
        return result


class OptimumModel(_Model):
    """An `ORTModelForCausalLM`, whose `forward` runs a session of onnxruntime."""

    def __init__(self, model: Any) -> None:
        """Take a model of optimum; raise `UsageError` for one of another kind."""
        if not isinstance(getattr(model, "session", None), onnxruntime.InferenceSession):
            raise UsageError(f"explain() takes models of optimum with one session, as ORTModelForCausalLM, not {type(model).__name__}")
        self._model, self._past = model, None

    def lens(self, name: str | None) -> LanguageLens:
        """Make the lens, which records the calls of the session."""
        return watching(self._model.session, LanguageLens, name=name)

    def _generate(self, ids: Any, **more: Any) -> Any:
        import torch

        from ortlens import _torch

        forward, clock = self._model.forward, time.perf_counter_ns

        @functools.wraps(forward)  # generate reads the signature
        def through(input_ids: Any, **kwargs: Any) -> Any:
            started = clock()
            result = forward(input_ids, **kwargs)
            self.readings.append(StepReading(None, started, clock(), *input_ids.shape))
            self._past = kwargs.get("past_key_values")
            return result

        with _torch.forward_as(self._model, through):
            return self._model.generate(torch.as_tensor(ids, device=self._model.device), **more)

    def last_cache(self) -> tuple[list[Any], bool]:
        """Return what the last step took, and whether it was written in place; what is returned is new, also with bindings."""
        from ortlens import _torch

        past, self._past = self._past, None
        return _torch.tensors_of(past), False

    def greedy(self, ids: Any, **more: Any) -> tuple[Any, Any]:
        """Generate; return the new tokens, in rows, and the logits of each."""
        from ortlens.lens.onnx_model.against_torch import generated

        return generated(self._model, ids, more)


class GenaiModel(_Model):
    """A folder of onnxruntime-genai, whose sessions are its own."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Load the model."""
        self._genai, self._folder = require("onnxruntime_genai", "explain() of a folder with genai_config.json"), Path(folder).expanduser()
        self._config = json.loads((self._folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
        with self._clear_errors():
            self._model, self._create_ns, self._held = at_cost(lambda: self._genai.Model(str(self._folder)))

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise SessionError(f"onnxruntime-genai {self._genai.__version__} cannot run {self._folder}: {str(error).strip()}") from error

    def lens(self, name: str | None) -> LanguageLens:
        """Make the lens, over the file of the decoder, with the options that the folder has for its session."""
        decoder, options = self._config["decoder"], onnxruntime.SessionOptions()
        settings, source = decoder.get("session_options", {}), source_of(self._folder / decoder["filename"])
        options.intra_op_num_threads = settings.get("intra_op_num_threads", 0)
        known = {provider.lower().removesuffix("executionprovider"): provider for provider in onnxruntime.get_all_providers()}
        named = [known.get(key.lower(), key) for each in settings.get("provider_options", []) for key in each]
        choice = SessionChoice(providers=tuple((key, {}) for key in (*named, _ort.CPU)), options=options)
        structure = None if source.structure is None else with_names(source.structure)
        self._inputs = () if structure is None else inputs_of(structure)
        lens = LanguageLens(source, self._inputs, choice, name=name or self._folder.name, structure=structure)
        lens.began(None, create_ns=self._create_ns, held_bytes=self._held)
        lens.note(version_onnxruntime_genai=self._genai.__version__)
        return lens

    @functools.cached_property
    def _tokens(self) -> Any:
        with self._clear_errors():
            return self._genai.Tokenizer(self._model)

    def _generator(self, ids: Any, max_new_tokens: int, **search: Any) -> Any:
        params, (rows, length) = self._genai.GeneratorParams(self._model), ids.shape
        params.set_search_options(**{"batch_size": rows, "max_length": length + max_new_tokens, **search})
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(ids.astype(np.int32))
        return generator

    def _generate(self, ids: Any, **more: Any) -> Any:
        clock, (rows, positions) = time.perf_counter_ns, ids.shape
        with self._clear_errors():
            started = clock()
            self._latest = generator = self._generator(ids, **more)
            while True:
                generator.generate_next_token()
                self.readings.append(StepReading(None, started, clock(), rows, positions))
                if generator.is_done():
                    return np.stack([generator.get_sequence(row) for row in range(rows)])
                started, positions = clock(), 1

    def last_cache(self) -> tuple[list[Any], bool]:
        """Return what the last step took, and whether it was written in place: then it has room for all tokens."""
        # Only inputs that the model has: others end the process in onnxruntime-genai 0.14.
        past = [self._latest.get_input(each.name) for each in self._inputs if each.name.startswith(_CACHE)]
        return past, bool(past) and past[0].shape[2] >= self._latest.token_count()

    def greedy(self, ids: Any, **more: Any) -> tuple[Any, Any]:
        """Generate; return the new tokens, in rows, and the logits of each."""
        tokens, logits = [], []
        with self._clear_errors():
            generator = self._generator(ids, **more)
            while not generator.is_done():
                logits.append(generator.get_logits().reshape(len(ids), -1, self._config["vocab_size"])[:, -1].copy())
                generator.generate_next_token()
                tokens.append(generator.get_next_tokens().copy())
        return np.stack(tokens, 1), np.stack(logits, 1)
