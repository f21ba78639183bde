"""Language models of optimum and of onnxruntime-genai, made of a random tiny one of transformers: `make test-language`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from onnxruntime_genai.models.builder import create_model
from optimum.onnxruntime import ORTModelForCausalLM
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ortlens
from ortlens import cli
from ortlens.lens.onnx_model.language import _Model

pytestmark = pytest.mark.filterwarnings("ignore")  # optimum exports by an exporter that torch deprecates
TEXT, PROMPT, NEW, SLEEP_NS = "Why,oh,why?", torch.arange(5, 11)[None], 12, 200_000_000
# onnxruntime-genai takes any layer with as many outputs as there are words for the last one.
SIZES = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model of transformers with its tokenizer, beside `optimum` and `genai`."""
    folder = tmp_path_factory.mktemp("models") / "transformers"
    tokenizer = Tokenizer(models.BPE({chr(code): code - 33 for code in range(33, 127)}, []))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES, initializer_range=0.2, bos_token_id=95, eos_token_id=96)).save_pretrained(folder)
    ORTModelForCausalLM.from_pretrained(folder, export=True).save_pretrained(folder.parent / "optimum")
    create_model(None, str(folder), str(folder.parent / "genai"), "fp32", "cpu", str(folder.parent / "cache"))
    return folder


@pytest.fixture(params=["optimum", "genai"])
def explain(request: pytest.FixtureRequest, made: Path) -> Callable[..., Any]:
    folder, tokenizer = made.parent / request.param, {"tokenizer": PreTrainedTokenizerFast.from_pretrained(made)}
    target, more = (folder, {}) if request.param == "genai" else (ORTModelForCausalLM.from_pretrained(folder).generate, tokenizer)
    return lambda prompt, **options: ortlens.explain(target, **options)(prompt, max_new_tokens=NEW, **more)


def test_roles_add_up_to_the_wall_and_each_has_its_own(explain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    clocked, read = _Model._clocked, list[int]()

    def slowly(function: Callable[[object], object], given: object) -> object:
        started = time.perf_counter_ns()
        time.sleep(SLEEP_NS / 1e9)
        read.extend((started, time.perf_counter_ns()))
        return function(given)

    monkeypatch.setattr(_Model, "_clocked", lambda self, function, given: clocked(self, lambda text: slowly(function, text), given))
    capture = explain(TEXT, calls=2).captured()
    wall_ns, figures = read[-1] - read[-4], capture.figures
    assert 2 * SLEEP_NS <= capture.steps[0].ns <= sum(step.ns for step in capture.steps) == pytest.approx(wall_ns, rel=0.05)
    assert [(step.calls, step.tokens) for step in capture.steps] == [(2, 2 * len(TEXT) + NEW), (1, len(TEXT)), (NEW - 1, NEW - 1), (0, 0)]
    assert SLEEP_NS < figures.first_token_ns < wall_ns - SLEEP_NS
    assert min(step.ns for step in capture.steps) > 0
    shared = any("GroupQueryAttention" in node.target for node in capture.nodes)
    assert (figures.cache_copied_bytes, figures.cache_new_bytes) == (0 if shared else figures.cache_bytes, 1024)


def test_a_changed_weight_is_named_as_the_first_token_that_differs(explain: Callable[..., Any], made: Path) -> None:
    lens, reference = explain(PROMPT, calls=1), LlamaForCausalLM.from_pretrained(made).eval()
    wanted = torch.as_tensor(lens.result)[0, PROMPT.shape[1] :]
    assert lens.verify(reference).ok.tolist() == [True, True]
    reference.lm_head.weight.data[wanted[NEW // 2]].neg_()
    found = reference.generate(PROMPT, max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True)
    tokens = found.sequences[0, PROMPT.shape[1] :]
    first = int((tokens != wanted).nonzero()[0])
    top, second = found.logits[first][0].topk(2).values.tolist()
    assert lens.verify(reference).ok.tolist() == [False, False]
    said = f"token {first + 1} of {NEW} differs from PyTorch's: {wanted[first]} instead of {tokens[first]}; the margin of its logits"
    assert said in lens.findings.title.item()
    assert f"and {top - second:.3g} in PyTorch" in lens.findings.title.item()


def test_what_does_not_suit_is_refused(explain: Callable[..., Any], made: Path) -> None:
    for refused in (lambda: explain(TEXT, dry_run=True), lambda: explain(0.5), lambda: explain(PROMPT, calls=1).verify(torch.nn.ReLU())):
        with pytest.raises(ortlens.UsageError, match=r"without dry_run=|whole numbers in rows|ReLU has no generate"):
            refused()
    assert [cli.main(["explain", f"{made.parent}/genai", *more]) for more in (["--input", "i64[1,8]:90"], ["--profile"])] == [0, 2]
