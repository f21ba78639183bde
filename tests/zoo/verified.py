"""Verify models without faults: none may be called wrong. `python -m tests.zoo.verified [NAME ...]`; without names, all of them."""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

import ortlens
from tests.zoo.programs import PROGRAMS, Program
from tests.zoo.table import ARCHITECTURES

NAMES = (
    *("AlbertModel", "BertModel", "CanineModel", "ConvBertModel", "DebertaModel", "DistilBertModel", "FNetModel", "ModernBertModel"),
    *("BloomForCausalLM", "FalconForCausalLM", "GemmaForCausalLM", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "LlamaForCausalLM"),
    *("OPTForCausalLM", "PhiForCausalLM", "Qwen3ForCausalLM", "GptOssForCausalLM", "MixtralForCausalLM", "MambaForCausalLM"),
    *("RwkvForCausalLM", "BartModel", "T5Model", "ConvNextModel", "MobileNetV2Model", "ResNetModel", "SwinModel"),
    *("ViTForImageClassification", "Wav2Vec2Model", "WhisperModel", "CLIPModel", "BlipModel", "PatchTSTModel"),
)
"""Architectures that are called as they are, without gradients."""

TRAINED = ("BertModel", "GPT2LMHeadModel", "ViTForImageClassification", "T5Model")
RETYPED = {
    "BertModel, float64": ("BertModel", torch.float64),
    "GPT2LMHeadModel, float16": ("GPT2LMHeadModel", torch.float16),
    "LlamaForCausalLM, float64": ("LlamaForCausalLM", torch.float64),
}
MODELS = (*NAMES, *(f"{name}, training" for name in TRAINED), *RETYPED, *PROGRAMS)

RULES = ("call_differs", "numbers_differ", "loses_accuracy", "fusion_changes_numbers", "nonfinite_origin", "lens_failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What `verify` said of one model.

    Attributes:
        compared: Rows with a verdict.
        open: Rows without.
        wrong: Wrong rows and findings, each in words; none are expected.
        cpu_s: Seconds of CPU time of `verify` alone.
    """

    compared: int
    open: int
    wrong: tuple[str, ...]
    cpu_s: float


def verified(name: str) -> Outcome:
    """Compile and verify one model."""
    torch.manual_seed(0)
    train, call = _program(PROGRAMS[name]) if name in PROGRAMS else _architecture(name)
    with contextlib.nullcontext() if train else torch.no_grad():
        lens, verify = call()
        started = time.process_time()
        numerics: pd.DataFrame = verify()
        spent = time.process_time() - started
    rows = numerics[numerics.ok == False]  # noqa: E712 - a column with gaps
    wrong = [f"{row['scope']} {row['node']}: {row['note'] or row['max_abs']}" for row in rows.to_dict("records")]
    silent = numerics[numerics.ok.isna() & (numerics.note == "")]
    wrong += [f"{row['scope']} {row['node']}: neither a verdict nor a reason" for row in silent.to_dict("records")]
    wrong += [f"{row['rule']}: {row['title']}" for row in lens.findings.to_dict("records") if row["rule"] in RULES]
    return Outcome(compared=int(numerics.ok.notna().sum()), open=int(numerics.ok.isna().sum()), wrong=tuple(wrong), cpu_s=spent)


def _program(program: Program) -> tuple[bool, Callable[[], tuple[ortlens.Lens, Callable[[], pd.DataFrame]]]]:
    def call() -> tuple[ortlens.Lens, Callable[[], pd.DataFrame]]:
        first = (program.first or program.inputs)()
        lens = ortlens.explain(program.build(), calls=1, dynamic=program.dynamic)(*first)
        return lens, lambda: lens.verify(*program.inputs())

    return program.train, call


def _architecture(name: str) -> tuple[bool, Callable[[], tuple[ortlens.Lens, Callable[[], pd.DataFrame]]]]:
    plain, dtype = RETYPED.get(name, (name.removesuffix(", training"), torch.float32))
    train = name.endswith(", training")

    def call() -> tuple[ortlens.Lens, Callable[[], pd.DataFrame]]:
        model = ARCHITECTURES[plain].build().to(dtype).train(train)
        inputs: dict[str, Any] = ARCHITECTURES[plain].inputs()
        lens = ortlens.explain(model, calls=1)(**inputs)
        return lens, lambda: lens.verify(**inputs)

    return train, call


def main(names: list[str]) -> int:
    """Verify models and print a line for each."""
    warnings.simplefilter("ignore")
    bad = []
    for name in names or MODELS:
        try:
            found = verified(name)
            said = f"{found.compared:5} compared {found.open:4} open {found.cpu_s:7.2f} s CPU"
            wrong = found.wrong
        except Exception as error:  # noqa: BLE001 - a failure is a line too
            said, wrong = "fails", (f"{type(error).__name__}: {error}"[:300],)
        bad += [name] if wrong else []
        print(f"{name:40} {said}", *wrong, sep="\n    ", flush=True)  # noqa: T201 - this program's output
        torch.compiler.reset()
    print(f"{len(names or MODELS)} models, called wrong or failing: {', '.join(bad) or 'none'}")  # noqa: T201 - likewise
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
