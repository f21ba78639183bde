"""Language models of optimum and of onnxruntime-genai, made of a random tiny one of transformers: `make test-language`."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from optimum.onnxruntime import ORTModelForCausalLM
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ortlens
from ortlens import SessionError, UsageError, cli
from ortlens.lens.onnx_model import language
from ortlens.lens.onnx_model.language import LanguageLens

pytestmark = pytest.mark.filterwarnings("ignore")  # optimum exports by an exporter that torch deprecates
TEXT, NEW, SLEEP_S = "Why,oh,why?", 12, 0.2


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model of transformers with its tokenizer, beside `optimum` and `genai`."""
    folder = tmp_path_factory.mktemp("models") / "transformers"
    letters = {chr(code): code - 33 for code in range(33, 127)}
    ends = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = Tokenizer(models.BPE(letters | {"<s>": 94, "</s>": 95}, []))
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **ends).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 94, "eos_token_id": 95, "initializer_range": 0.2}
    LlamaForCausalLM(LlamaConfig(**sizes, **heads)).save_pretrained(folder)
    ORTModelForCausalLM.from_pretrained(folder, export=True).save_pretrained(folder.parent / "optimum")
    build = [
        sys.executable,
        "-m",
        "onnxruntime_genai.models.builder",
        "-i",
        folder,
        "-o",
        folder.parent / "genai",
        "-p",
        "fp32",
        "-e",
        "cpu",
    ]
    subprocess.run([*map(str, build), "-c", str(folder.parent / "cache")], check=True, capture_output=True)
    return folder


@pytest.fixture
def reference(made: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(made).eval()


@pytest.fixture(params=["optimum", "genai"])
def explain(request: pytest.FixtureRequest, made: Path) -> Callable[..., Any]:
    """Explains a generation of a kind, of a text unless tokens are given."""
    folder, tokenizer = made.parent / request.param, PreTrainedTokenizerFast.from_pretrained(made)
    if request.param == "genai":
        return lambda prompt=TEXT, **more: ortlens.explain(str(folder), **more)(prompt, max_new_tokens=NEW)
    model = ORTModelForCausalLM.from_pretrained(folder)
    return lambda prompt=TEXT, **more: ortlens.explain(model.generate, **more)(prompt, tokenizer=tokenizer, max_new_tokens=NEW)


def test_roles_add_up_to_the_wall_and_each_has_its_own(explain: Callable[..., LanguageLens], monkeypatch: pytest.MonkeyPatch) -> None:
    walls: list[int] = []
    tokenize = language._Clocked._tokenizer
    calls: dict[type, Any] = {kind: kind.call for kind in (language.OptimumModel, language.GenaiModel)}

    def slow(self: language._Clocked, function: Callable[..., object], *args: object, **kwargs: object) -> object:
        def later(*given: object, **named: object) -> object:
            time.sleep(SLEEP_S)
            return function(*given, **named)

        return tokenize(self, later, *args, **kwargs)

    def clocked(self: language.OptimumModel | language.GenaiModel, *args: object, **kwargs: object) -> object:
        started = time.perf_counter_ns()
        result = calls[type(self)](self, *args, **kwargs)
        walls.append(time.perf_counter_ns() - started)
        return result

    monkeypatch.setattr(language._Clocked, "_tokenizer", slow)
    for kind in calls:
        monkeypatch.setattr(kind, "call", clocked)
    lens = explain(calls=2)
    steps = {step.role: step for step in lens.captured().steps}
    assert sum(step.ns for step in steps.values()) == pytest.approx(walls[1], rel=0.05)
    assert steps["tokenizer"].ns >= 2 * SLEEP_S * 1e9 > max(steps[role].ns for role in ("prefill", "decode"))
    assert [(role, step.calls, step.tokens) for role, step in steps.items()][1:3] == [
        ("prefill", 1, len(TEXT)),
        ("decode", NEW - 1, NEW - 1),
    ]
    figures = lens.captured().figures
    assert SLEEP_S * 1e9 < (figures.first_token_ns or 0) < walls[1]
    assert figures.cache_copied_bytes in (0, figures.cache_bytes)
    assert figures.cache_new_bytes == 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, their size, float32
    assert "the first after" in lens.summary()


def test_a_changed_weight_is_named_as_the_first_token_that_differs(
    explain: Callable[..., LanguageLens], reference: LlamaForCausalLM
) -> None:
    prompt = torch.arange(5, 11)[None]
    lens = explain(prompt.tolist(), calls=1)
    assert lens.verify(reference).ok.tolist() == [True, True]
    wanted = torch.as_tensor(lens.result)[0, prompt.shape[1] :]
    assert torch.equal(wanted, reference.generate(prompt, max_new_tokens=NEW, do_sample=False)[0, prompt.shape[1] :])
    with torch.no_grad():
        reference.lm_head.weight[wanted[NEW // 2]].neg_()
    found = reference.generate(prompt, max_new_tokens=NEW, do_sample=False, output_logits=True, return_dict_in_generate=True)
    tokens = found.sequences[0, prompt.shape[1] :]
    first = int((tokens != wanted).nonzero()[0])
    top = found.logits[first][0].topk(2).values
    assert lens.verify(reference).ok.tolist() == [False, False]
    (finding,) = lens.captured().findings
    assert finding.title == f"token {first + 1} of {NEW} differs from that of LlamaForCausalLM: {wanted[first]} instead of {tokens[first]}"
    assert f"and {float(top[0] - top[1]):.3g} in PyTorch" in finding.evidence


def test_what_does_not_suit_is_refused(made: Path, explain: Callable[..., LanguageLens], capsys: pytest.CaptureFixture[str]) -> None:
    folder, model = str(made.parent / "genai"), ORTModelForCausalLM.from_pretrained(made.parent / "optimum")
    with pytest.raises(UsageError, match="without dry_run="):
        explain(dry_run=True)
    with pytest.raises(UsageError, match="which has no generate"):
        explain(calls=1).verify(torch.nn.Linear(1, 1))
    with pytest.raises(UsageError, match="needs its tokenizer"):
        ortlens.explain(model.generate)(TEXT)
    with pytest.raises(UsageError, match="whole numbers in rows"):
        ortlens.explain(folder)(0.5)
    with pytest.raises(SessionError, match="nonsense"):
        ortlens.explain(folder)(TEXT, nonsense=1)
    assert cli.main(["explain", folder, "--input", "i64[1,8]:90", "--input", "max_new_tokens=4"]) == 0
    assert "4 tokens in" in capsys.readouterr().out
    assert cli.main(["explain", folder, "--profile"]) == 2
