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
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from ortlens import _ort, _torch
from ortlens._os_errors import clear_os_errors
from ortlens._process import at_cost
from ortlens._versions import require
from ortlens.analysis.generation import first_token_ns, steps_of
from ortlens.analysis.ledger import CallTrace, StepReading, middle_half
from ortlens.errors import SessionError, UsageError
from ortlens.lens.onnx_model import graph_records
from ortlens.lens.onnx_model.explain import MAX_CALLS, STABLE_NS, recorded, watching
from ortlens.lens.onnx_model.onnx_lens import SESSION, OnnxLens
from ortlens.lens.onnx_model.sessions import SessionChoice, threads_of
from ortlens.lens.onnx_model.signature import inputs_of
from ortlens.lens.onnx_model.source import source_of, with_names
from ortlens.trace import records as r
from ortlens.trace.runlog import RunLog

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping

    import pandas as pd

_PROMPT, _NEW = 8, 16  # tokens where the caller names none
_DIMENSIONS = 2  # rows and positions
_GREEDY: Mapping[str, Any] = {"do_sample": False, "num_beams": 1}


def explain_language(target: Any, *, calls: int | None, name: str | None, **others: Any) -> Callable[..., LanguageLens]:
    """Explain a language model, a target for which `is_language_model` holds; `ortlens.explain` calls this."""
    if given := [option for option, value in others.items() if value]:
        raise UsageError(f"a language model in ONNX runs as its own package runs it, without {', '.join(f'{option}=' for option in given)}")

    @clear_os_errors
    def explained(*args: Any, **kwargs: Any) -> LanguageLens:
        model = GenaiModel(target) if isinstance(target, (str, Path)) else OptimumModel(getattr(target, "__self__", target))
        lens = model.lens(name)
        lens.generate(model, args, kwargs, calls)
        return lens

    return explained


class LanguageLens(OnnxLens):
    """The lens over a language model in ONNX; `ortlens.explain(model.generate)(...)` and `ortlens.explain("folder")(...)` make it.

    `steps` has what prefill, decode, the tokenizer and Python take in a call.

    Attributes:
        result: What the call returned: of optimum, that of `generate`; of onnxruntime-genai, the tokens as an array of rows, with the
            prompt. The text, where the prompt is one.
    """

    def generate(self, model: OptimumModel | GenaiModel, args: tuple[Any, ...], kwargs: Mapping[str, Any], calls: int | None) -> None:
        """Call once to warm up, then for stable figures, and record what each part of a call takes."""
        self._model, self._given, traces = model, (args, kwargs), list[CallTrace]()
        clock = time.perf_counter_ns
        deadline = clock() + STABLE_NS
        for count in itertools.count(1):
            model.readings.clear()
            with contextlib.nullcontext() if count > 1 else model.noted(self):
                started = clock()
                result = model.call(*args, **kwargs)
                ended = clock()
            if count > 1 or calls == 1:
                traces.append(CallTrace(started_ns=started, ended_ns=ended, visits=(), steps=tuple(model.readings)))
            if count == (calls or MAX_CALLS) or (calls is None and count > 1 and ended > deadline):
                break
        self.close()
        self.result, middle = result, middle_half(traces)
        self._recorder.replace_all(r.Step, steps_of(middle, ()))
        self._recorder.note(explain_calls=count, first_token_ns=first_token_ns(middle))

    def note_cache(self, taken: int, left: int, *, positions: int | None = None) -> None:
        """Note the bytes of the cache before and after the last step; those of its `positions` where both are one buffer."""
        copied, new = (taken, left - taken) if positions is None else (0, taken // positions)
        self._recorder.note(cache_bytes=taken, cache_copied_bytes=copied, cache_new_bytes=new)

    def began_apart(self, providers: list[str], options: onnxruntime.SessionOptions, create_ns: int, held: int | None) -> RunLog:
        """Record a session that another library made, from its options; return the log for its calls."""
        self._began(providers, threads_of(options, given=True), create_ns=create_ns, held_bytes=held)
        return self._recorder.run_log(SESSION, graph_records.GRAPH)

    def sized(self, sizes: Mapping[str, tuple[int, ...]]) -> None:
        """Take the sizes of the inputs of the last step."""
        self._take_sizes(sizes)

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
        """
        from ortlens.lens.onnx_model import against_torch
        from ortlens.lens.verify.compare_values import Tolerances

        if not callable(getattr(reference, "generate", None)):
            raise UsageError(
                f"verify() of a language model takes the transformers model with the same weights, not {type(reference).__name__}, "
                "which has no generate()"
            )
        given, named = (args, kwargs) if args or kwargs else self._given
        ids, more = self._model.prepared(*given, **named)
        ours = self._model.greedy(ids, {**more, **_GREEDY})
        theirs = {**more, **_GREEDY, **self._model.ends}
        against_torch.verify_tokens(reference, ids, theirs, ours, self._recorder, Tolerances(atol, rtol))
        self._facts["onnx_reference"] = "PyTorch"
        return self.numerics


class _Clocked:
    """Puts clocks around calls."""

    def __init__(self) -> None:
        self.readings: list[StepReading] = []  # of the present call

    def _tokenizer(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a tokenizer; it is told the tokens of the text, or finds them."""
        started = time.perf_counter_ns()
        result = function(*args, **kwargs)
        ended = time.perf_counter_ns()
        tokens = args[0] if not isinstance(args[0], str) else result["input_ids"][0] if hasattr(result, "keys") else result
        self.readings.append(StepReading("tokenizer", started, ended, 1, len(tokens)))
        return result


class OptimumModel(_Clocked):
    """An `ORTModelForCausalLM`, whose `forward` runs a session of onnxruntime."""

    ends: Mapping[str, Any] = {}  # which tokens end a text is known to both sides

    def __init__(self, model: Any) -> None:
        """Take a model of optimum; raise `UsageError` for one of another kind."""
        super().__init__()
        if not isinstance(getattr(model, "session", None), onnxruntime.InferenceSession):
            raise UsageError(
                f"explain() takes models of optimum that generate with one session, as ORTModelForCausalLM: not {type(model).__name__}"
            )
        self._model = model
        self._caches: tuple[Any, Any] = (), ()

    def lens(self, name: str | None) -> LanguageLens:
        """Make the lens, which records the calls of the session."""
        return watching(self._model.session, LanguageLens, name=name)

    def prepared(self, *args: Any, tokenizer: Any = None, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return the tokens of a prompt, in rows, and the other arguments of `generate`; text needs its tokenizer."""
        import torch

        ids, *_ = args or (kwargs.pop("input_ids", None),)
        if isinstance(ids, str):
            if tokenizer is None:
                raise UsageError("a prompt as text needs its tokenizer: explain(model.generate)(text, tokenizer=tokenizer)")
            given = self._tokenizer(tokenizer, ids, return_tensors="pt")
            ids, kwargs = given["input_ids"], {"attention_mask": given["attention_mask"], **kwargs}
        ids = torch.arange(1, 1 + _PROMPT)[None] if ids is None else torch.as_tensor(ids)
        return ids[None] if ids.dim() == 1 else ids, {"max_new_tokens": _NEW, **kwargs}

    def call(self, *args: Any, tokenizer: Any = None, **kwargs: Any) -> Any:
        """Generate, with clocks around the model and the tokenizer."""
        ids, more = self.prepared(*args, tokenizer=tokenizer, **kwargs)
        with _torch.forward_as(self._model, self._through(self._model.forward)):
            result = self._model.generate(ids, **more)
        is_text = isinstance(next(iter(args), None), str)
        return self._tokenizer(tokenizer.decode, result[0], skip_special_tokens=True) if is_text else result

    def _through(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        clock, note = time.perf_counter_ns, self.readings.append

        @functools.wraps(forward)  # generate reads the signature
        def through(input_ids: Any, **kwargs: Any) -> Any:
            started = clock()
            result = forward(input_ids, **kwargs)
            note(StepReading(None, started, clock(), *input_ids.shape))
            self._caches = kwargs.get("past_key_values"), result.past_key_values
            return result

        return through

    @contextlib.contextmanager
    def noted(self, lens: LanguageLens) -> Iterator[None]:
        """Note the inputs and the cache of the last step of a call."""
        kept: deque[Any] = deque(maxlen=1)
        stop = recorded(self._model.session, RunLog("", "", lambda _: None), {}, kept)
        try:
            yield
        finally:
            stop()
        if kept and kept[0]:  # a session with bindings was not given its inputs
            lens.called(kept[0], {})
            lens.note(onnx_inputs_made="those of the last step")
        taken, left = (sum(tensor.nbytes for tensor in _torch.tensors_of(cache)) for cache in self._caches)
        self._caches = (), ()
        if taken:
            lens.note_cache(taken, left)

    def greedy(self, ids: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Generate; return the new tokens, in rows, and the logits of each."""
        from ortlens.lens.onnx_model.against_torch import generated

        return generated(self._model, ids, kwargs)


class GenaiModel(_Clocked):
    """A folder of onnxruntime-genai, whose sessions are its own."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Load the model."""
        super().__init__()
        self._genai, self._folder = require("onnxruntime_genai", "explain() of a folder with genai_config.json"), Path(folder).expanduser()
        config = json.loads((self._folder / "genai_config.json").read_text(encoding="utf-8"))
        self._config = config["model"]
        self.ends = {f"{name}_token_id": self._config[f"{name}_token_id"] for name in ("eos", "pad") if f"{name}_token_id" in self._config}
        with self._clear_errors():
            self._model, self._create_ns, self._held = at_cost(functools.partial(self._genai.Model, str(self._folder)))
        self._log: RunLog | None = None

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            said = " ".join(str(error).split())
            raise SessionError(f"onnxruntime-genai {self._genai.__version__} cannot run {self._folder}: {said}") from error

    def lens(self, name: str | None) -> LanguageLens:
        """Make the lens, over the file of the decoder; the calls are logged as of its session."""
        decoder = self._config["decoder"]
        source = source_of(self._folder / decoder["filename"])
        structure = None if source.structure is None else with_names(source.structure)
        self._inputs, options = () if structure is None else inputs_of(structure), onnxruntime.SessionOptions()
        options.intra_op_num_threads = decoder.get("session_options", {}).get("intra_op_num_threads", 0)
        lens = LanguageLens(source, self._inputs, SessionChoice(providers=()), name=name or self._folder.name, structure=structure)
        named = [key for each in decoder.get("session_options", {}).get("provider_options", []) for key in each]
        known = {provider.lower().removesuffix("executionprovider"): provider for provider in onnxruntime.get_all_providers()}
        self._log = lens.began_apart([*(known.get(key.lower(), key) for key in named), _ort.CPU], options, self._create_ns, self._held)
        lens.note(version_onnxruntime_genai=self._genai.__version__)
        return lens

    @functools.cached_property
    def _tokens(self) -> Any:
        with self._clear_errors():
            return self._genai.Tokenizer(self._model)

    def prepared(self, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Return the tokens of a prompt, in rows, and the other arguments."""
        prompt, *_ = args or (kwargs.pop("input_ids", None),)
        if isinstance(prompt, str):
            prompt = self._tokenizer(self._tokens.encode, prompt)
        ids = np.atleast_2d(np.arange(1, 1 + _PROMPT) if prompt is None else np.asarray(prompt))
        if ids.dtype.kind not in "iu" or ids.ndim != _DIMENSIONS or not ids.size:
            raise UsageError(f"a prompt is a text, or whole numbers in rows of one length, not {prompt!r}")
        return ids.astype(np.int32), {"max_new_tokens": _NEW, **kwargs}

    def _generator(self, ids: Any, max_new_tokens: int, **search: Any) -> Any:
        rows, length = ids.shape
        params = self._genai.GeneratorParams(self._model)
        params.set_search_options(batch_size=rows, max_length=length + max_new_tokens, **search)
        return self._genai.Generator(self._model, params)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Generate, with clocks around the model and the tokenizer."""
        ids, more = self.prepared(*args, **kwargs)
        clock, (rows, positions) = time.perf_counter_ns, ids.shape
        with self._clear_errors():
            started = clock()
            self._latest = generator = self._generator(ids, **more)
            generator.append_tokens(ids)
            while True:
                generator.generate_next_token()
                self.readings.append(StepReading(None, started, clock(), rows, positions))
                if generator.is_done():
                    break
                started, positions = clock(), 1
            result = np.stack([generator.get_sequence(row) for row in range(rows)])
        for reading in self.readings:
            if self._log is not None and reading.apart is None:
                self._log.record(*(reading.started_ns,) * 2, *(reading.ended_ns,) * 2, 0)
        return self._tokenizer(self._tokens.decode, result[0]) if isinstance(next(iter(args), None), str) else result

    @contextlib.contextmanager
    def noted(self, lens: LanguageLens) -> Iterator[None]:
        """Note the sizes of the inputs and the cache of the last step of a call."""
        yield
        decoder, last = self._config["decoder"], self._latest.token_count() - 1
        names = {key: decoder["inputs"].get(f"past_{key}_names", "") for key in ("key", "value")}
        layers, inputs = range(decoder.get("num_hidden_layers", 0)), {each.name for each in self._inputs}
        # Only names that the model has: others end the process in onnxruntime-genai 0.14.
        pairs = [
            (names[key] % layer, decoder["outputs"][f"present_{key}_names"] % layer)
            for key in names
            for layer in layers
            if "%d" in names[key] and names[key] % layer in inputs
        ]
        before = {past: self._latest.get_input(past) for past, _ in pairs}
        after = [self._latest.get_output(present) for _, present in pairs]
        rows = len(self.readings) and self.readings[-1].rows
        sizes = {decoder["inputs"].get("input_ids"): (rows, 1), decoder["inputs"].get("attention_mask"): (rows, last)}
        lens.sized(
            {name: size for name, size in {**sizes, **{name: value.shape for name, value in before.items()}}.items() if name in inputs}
        )
        lens.note(onnx_inputs_made="those of the last step")
        taken, left = (sum(value.nbytes for value in values) for values in (before.values(), after))
        if taken:
            lens.note_cache(taken, left, positions=next(iter(before.values())).shape[2] if taken == left else None)

    def greedy(self, ids: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Generate; return the new tokens, in rows, and the logits of each."""
        with self._clear_errors():
            generator, tokens, logits = self._generator(ids, **kwargs), [], []
            generator.append_tokens(ids)
            while not generator.is_done():
                logits.append(generator.get_logits().reshape(len(ids), -1, self._config["vocab_size"])[:, -1].copy())
                generator.generate_next_token()
                tokens.append(generator.get_next_tokens().copy())
        return np.stack(tokens, 1), np.stack(logits, 1)
