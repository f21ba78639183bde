"""Which results of an earlier survey are taken, and what a page makes of hostile ones."""

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch

from ortlens import _versions
from ortlens.analysis.answers.overview import SurveyRow
from ortlens.analysis.speed import AbTiming
from ortlens.backend.basis.ab_timing import no_wait
from ortlens.cli.studies import conclusion
from ortlens.errors import UsageError
from ortlens.studies.apart import ProcessLimits
from ortlens.studies.bench import Load, limit_of
from ortlens.studies.cases import CAPTURE, JOURNAL, Case, CaseExtras
from ortlens.studies.engine import LocalSide, loaded, measured, sides_text, start
from ortlens.studies.survey import TABLE, Job, Results, key_of
from ortlens.trace import store
from ortlens.trace.records import ProcessStatus, SideResult
from ortlens.views.throughput import throughput_svg
from tests.unit.views.sample_captures import SAMPLES

CASE = Case(target="m:net", name="../net <b>")


def job(case: Case = CASE, seconds: float = 10, memory: int | None = 100) -> Job:
    return Job(case=case, key=key_of(case, CaseExtras()), extras=CaseExtras(), limits=ProcessLimits(seconds=seconds, memory_bytes=memory))


def row(status: ProcessStatus = "ok") -> SurveyRow:
    return SurveyRow(case=CASE.name, status=status, key=job().key, reason="" if status == "ok" else "why")


def capture_bytes(folder: Path) -> bytes:
    return store.save(SAMPLES["demo_like"], folder / "made.ortlens").read_bytes()


def test_the_key_depends_on_case_options_extras_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"name": "other", "target": "m:other", "args": (1,), "kwargs": {"a": 1}, "inputs": ("f32[1]",), "seed": 1}
    changes |= {"options": {"min_partition_nodes": 2}, "backend": "inductor"}
    others = [replace(CASE, **{name: value}) for name, value in changes.items()]
    keys = [key_of(CASE, CaseExtras()), key_of(CASE, CaseExtras(verify=True)), *(key_of(case, CaseExtras()) for case in others)]
    assert len(set(keys)) == len(keys)
    assert key_of(replace(CASE, time_limit=3, memory_limit=4), CaseExtras()) == keys[0]
    with pytest.raises(UsageError, match="cannot be sent to another process"):
        key_of(replace(CASE, options={"pre_ort_model_transforms": [lambda model: model]}), CaseExtras())
    monkeypatch.setattr(_versions, "installed", lambda: {"torch": "9.9"})
    assert key_of(CASE, CaseExtras()) not in keys


def test_options_are_said_without_the_keys_of_a_provider() -> None:
    given = {"on_error": "raise", "preferred_execution_providers": [("CPUExecutionProvider", {"api_key": "zq-provider-e6a9"})]}
    said = job(replace(CASE, options=given)).options
    assert said.startswith("on_error='raise', preferred_execution_providers=CPUExecutionProvider, api_key: ")
    assert "zq-provider" not in said


def test_a_result_is_found_again_with_its_files(tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    assert results.kept(job(), retry=False) is None
    written = results.keep(
        job(), replace(row(), coverage=0.5, graphs=1, fallbacks=("aten.sort (2)",)), {CAPTURE: capture_bytes(tmp_path)}, "said"
    )
    assert written.capture is not None
    assert Path(written.capture).parent.parent == tmp_path / "out"
    assert results.kept(job(), retry=True) == replace(written, kept=True)
    (tmp_path / "out").rename(tmp_path / "moved")
    moved = Results(tmp_path / "moved").kept(job(), retry=False)
    assert moved is not None
    assert (moved.capture or "").startswith(str(tmp_path / "moved"))


@pytest.mark.parametrize(
    ("status", "asked", "again"),
    [
        ("ok", (True, 10, 100), False),
        ("failed", (False, 10, 100), False),
        ("failed", (True, 10, 100), True),
        ("crashed", (False, 99, 999), False),
        ("timeout", (False, 10, 100), False),
        ("timeout", (False, 11, 100), True),
        ("memory", (False, 99, 100), False),
        ("memory", (False, 10, 101), True),
        ("memory", (False, 10, None), True),
        ("lost", (False, 10, 100), True),
    ],
)
def test_which_results_are_taken_again(status: ProcessStatus, asked: tuple[bool, float, int | None], again: object, tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    results.keep(job(), row(status), {}, "")
    retry, seconds, memory = asked
    assert (results.kept(job(seconds=seconds, memory=memory), retry=retry) is None) is again


def test_a_damaged_result_and_that_of_another_key_are_none(tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    results.keep(job(), row(), {}, "")
    file = results.place(job()) / "row.json"
    other = json.loads(file.read_text(encoding="utf-8"))
    other["row"]["key"] = "0" * 64
    row_of_numbers = '{"row": {"case": 1, "status": "ok"}, "limits": [1, 1]}'
    for text in ("", "{", "[]", '{"row": {}}', row_of_numbers, '{"row": null}', json.dumps(other)):
        file.write_text(text, encoding="utf-8")
        assert results.kept(job(), retry=False) is None, text


def test_what_a_process_recorded_before_its_end_is_in_its_row(tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    data = capture_bytes(tmp_path)
    written = results.keep(job(), row("crashed"), {CAPTURE: data}, "")
    assert written.graphs == len(SAMPLES["demo_like"].graphs)
    assert written.reason == "why"
    assert results.keep(job(), row("crashed"), {JOURNAL: b"no journal"}, "").graphs is None


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be created"):
        Results(tmp_path / "no" / "out")


def test_the_page_of_the_docs_lists_the_columns() -> None:
    page = (Path(__file__).parents[3] / "docs" / "survey.md").read_text(encoding="utf-8")
    for column in TABLE.columns:
        assert f"| `{column.name}` | {column.dtype} | {column.unit} |" in page
        assert column.meaning in page


LOAD = Load("eager", 4, "2 threads", 1e4, 4e4, 1.1, 190_000, 200_000, 300_000, 100_000, 1 << 20)


@pytest.mark.parametrize(
    ("gain", "of_processes", "others", "own_cores", "said"),
    [(1.1, 60, 0, 1, "GIL"), (1.1, 99, 0, 1, "cores"), (1.1, 60, 0, 2, "cores"), (1.1, 60, 1, 1, "other"), (1.6, 60, 1, 1, "")],
)
def test_what_keeps_callers_from_a_core_each(gain: float, of_processes: int, others: int, own_cores: int, said: str) -> None:
    note = limit_of(replace(LOAD, gain=gain), AbTiming([100] * 10, [of_processes] * 10), 2, others, own_cores)
    assert (bool(note), said in note) == (bool(said), True)


def test_the_table_and_the_picture_of_throughput() -> None:
    rows = [replace(LOAD, way="<b>", callers=who, note="busy") for who in ("1 thread", "2 threads")]
    rows += [replace(LOAD, callers="2 processes"), Load("eager", 8, note="batch 8: no")]
    head, *_, last, busy, failed = sides_text(rows).splitlines()
    assert head.startswith("way    batch  callers      calls/s  items/s  gain")
    assert " ".join(last.split()).startswith("eager 4 2 processes 10,000 40,000")
    assert (busy, failed) == ("<b>: busy", "eager: not measured: batch 8: no")
    drawn = ET.fromstring(throughput_svg(tuple(rows)))  # noqa: S314 - made here
    assert [len(drawn.findall(f"{{*}}{shape}")) for shape in ("circle", "polyline")] == [3, 2]


def test_callers_call_at_the_same_time_without_gradients_if_those_are_off() -> None:
    met, together = dict[int, bool](), threading.Barrier(3)

    def call() -> None:
        if threading.get_ident() not in met:
            met[threading.get_ident()] = torch.is_grad_enabled()
            together.wait(timeout=60)

    with torch.no_grad():
        times = loaded(call, no_wait, 3)
    assert ([*met.values()], min(map(len, times)) > 0) == ([False] * 3, True)
    side = LocalSide(name="side", make=lambda: lambda: None, callers=2)
    start([side])
    assert (side.round() or 0) > 0


EAGER = SideResult(way="eager", verdict="reference", call_ns=100_000, ratio=1.0, ratio_low=1.0, ratio_high=1.0, first_ns=5, rounds=20)
FAST = SideResult(
    way="ortlens", verdict="faster", call_ns=50_000, ratio=0.5, ratio_low=0.45, ratio_high=0.55, first_ns=10**9, max_abs=1e-7, rounds=20
)
FAILED = SideResult(way="inductor", verdict="unmeasured", note="no compiler")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (RuntimeError("no \x1b[96mmore\x1b[0m\nand a trace"), r"RuntimeError: no more at \S*test_results\.py:\d+: raise error"),
        (UsageError("no more:\n  do this"), "no more: do this"),
    ],
)
def test_a_side_that_fails_in_some_round_is_a_row_and_the_next_one_the_base(error: Exception, note: str) -> None:
    left = iter(range(3 + 30))

    def failing() -> int:
        if next(left) < 10:
            return 1
        raise error

    sides = [LocalSide(name="first", make=lambda: failing), LocalSide(name="second", make=lambda: lambda: 1)]
    start(sides)
    first, second = measured(sides, most=10, is_over=lambda: False)
    assert (first.status, first.verdict) == ("failed", "unmeasured")
    assert re.fullmatch(note, first.note)
    assert (second.status, second.verdict, second.rounds) == ("ok", "reference", 10)
    assert measured(sides[:1], most=10, is_over=lambda: False) == (first,), "where no side runs, its reason is left"


def test_the_table_and_its_conclusion() -> None:
    text = sides_text((EAGER, FAST, FAILED)).splitlines()
    assert text[0].split() == ["way", "call", "ratio", "ratio_low", "ratio_high", "verdict", "max_abs", "first"]
    assert text[3].split() == ["ortlens", "50.0", "µs", "0.5", "0.45", "0.55", "faster", "1.0e-07", "1.00", "s"]
    assert text[4:] == ["inductor: not measured: no compiler"]
    assert conclusion((EAGER, FAST, FAILED)) == "Fastest: ortlens, 0.5x of eager."
    near = replace(FAST, way="exported", ratio=0.53, ratio_low=0.5)
    assert conclusion((EAGER, near, FAST)) == "Fastest: ortlens, 0.5x of eager; exported cannot be told apart from it."
    assert conclusion((EAGER, replace(FAST, verdict="same"))) == "No way is faster than eager outside the noise."
    assert " inf " in sides_text((EAGER, replace(FAST, max_abs=float("inf")))), "other shapes or NaN"
