"""`ortlens bench`, `tune`, `survey` and `bisect`: a model in several ways, under options, beside others, and across versions."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import tempfile
from dataclasses import asdict
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortlens.cli.commands import EXIT_NO, EXIT_OK, Command, print_answer, print_note, recommended, width, write_text
from ortlens.errors import UsageError
from ortlens.job.providers import library_from_text
from ortlens.job.request import backend_options, options_from_pairs
from ortlens.job.targets import inputs_from_texts, target_and_inputs
from ortlens.trace.records import same
from ortlens.units import time_from_ns

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from ortlens.analysis.answers.overview import SurveyRow
    from ortlens.backend.basis.options import OrtBackendOptions
    from ortlens.studies.bench import Load
    from ortlens.studies.tune import Trial
    from ortlens.trace.records import SideResult


def _bench(options: argparse.Namespace) -> None:
    chosen = backend_options(options)
    with target_and_inputs(options) as (target, args, kwargs):
        from ortlens.studies.bench import WAYS, bench, under_load
        from ortlens.studies.engine import sides_text
        from ortlens.trace import store
        from ortlens.views.throughput import throughput_svg

        ways = tuple(name.strip() for name in options.ways.split(",") if name.strip()) or WAYS
        rows, capture = bench(target, args, kwargs, ways=ways, seconds=options.seconds, options=chosen or None, name=options.target)
        load: list[Load] = []
        if options.concurrency or options.batch or options.picture:
            call, ran = (options.target, options.input, options.seed, chosen), [row.way for row in rows if row.rounds]
            load = under_load(call, (args, kwargs), ran, options.concurrency or (), options.batch or ())
    tables = [sides_text(rows, width=width()), conclusion(rows), *([sides_text(load, width=width())] if load else [])]
    print_answer(options, "bench", {"rows": rows, "load": load, **recommended(capture)}, "\n\n".join(tables))
    if options.picture is not None:
        write_text(options.picture, throughput_svg(tuple(load)))
    if options.save is not None:
        print_note(f"Saved to {store.save(capture, options.save)}")


BENCH = Command(
    name="bench",
    text="Measure your model eager, through Inductor, through ONNX Runtime, frozen and exported, in turns: one table, one capture.",
    run=_bench,
    asks="Is it faster than eager and than Inductor?\nHow many calls per second do several callers get, and what limits them?",
    examples="""
        ortlens bench mymodels:net --input f32[32,256] -o bench.ortlens  # every way, and the capture
        ortlens bench mymodels:net --input f32[32,256] --ways ortlens,exported --seconds 30 --json
        ortlens bench mymodels:net --input f32[1,256] --concurrency 1 2 4 --batch 1 8 32 --picture load.svg  # throughput, latency
    """,
)


def conclusion(rows: Sequence[SideResult]) -> str:
    """Say which way is fastest, as far as that is sure."""
    faster = sorted((row for row in rows if row.verdict == "faster"), key=lambda row: row.ratio or 1.0)
    if not faster:
        return "No way is faster than eager outside the noise."
    best, *others = faster
    close = [row.way for row in others if (row.ratio_low or 0.0) <= (best.ratio_high or 1.0)]
    beside = f"; {' and '.join(close)} cannot be told apart from it" if close else ""
    return f"Fastest: {best.way}, {best.ratio or 1.0:.2g}x of eager{beside}."


def _tune(options: argparse.Namespace) -> None:
    given, rows, texts = backend_options(options), list[Any](), list[str]()
    with target_and_inputs(options) as (target, args, kwargs):
        from ortlens.backend.basis.options import OrtBackendOptions
        from ortlens.lens.observing.time_budget import TimeBudget
        from ortlens.studies.bench import with_batch
        from ortlens.studies.engine import sides_text
        from ortlens.studies.tune import Tuning

        loads = [*product(options.batch or [None], options.concurrency or [1])]
        for batch, callers in loads:
            tuning = Tuning(target, with_batch((args, kwargs), batch), TimeBudget(options.budget_s / len(loads)), (callers, batch))
            chosen, found = tuning.run(OrtBackendOptions.from_any(given or None))
            texts += [*_load_words(batch, callers), sides_text(found, width=width()), _advice(chosen, found)]
            rows += found
    print_answer(options, "tune", {"rows": rows}, "\n\n".join(texts))


def _load_words(batch: int | None, callers: int) -> list[str]:
    """Say what is tuned for, unless it is one call as it is."""
    said = [f"batches of {batch:,}"] if batch else []
    if callers > 1:
        said.append(f"{callers} callers: faster is what makes more calls per second for all together")
    return [f"For {' and '.join(said)}."] if said else []


TUNE = Command(
    name="tune",
    text="Try the options that may make your model faster, in turns, and list what was measured.",
    run=_tune,
    asks="Which options make it faster on this machine?",
    examples="""
        ortlens tune mymodels:net --input f32[32,256] --budget 60
        ortlens tune mymodels:net --input f32[32,256] --concurrency 1 4 --batch 8  # alone, and the most calls per second of four callers
    """,
)


def _advice(chosen: OrtBackendOptions, rows: Sequence[Trial]) -> str:
    from ortlens._ort import CPU

    changed = ", ".join(f"{row.option}: {row.value}" for row in rows if row.chosen and row.option != "all")
    unset = [field.name for field in dataclasses.fields(chosen) if getattr(chosen, field.name) != field.default]
    faster = sorted((row for row in rows if row.verdict == "faster" and row.option == "call"), key=lambda row: row.ratio or 1.0)
    said = [f"{row.note} It takes {row.ratio or 1.0:.2g} times as long." for row in faster if row.verified][:1]
    alone = [row for row in rows if row.value == CPU and row.verdict in ("faster", "slower")]
    beside = [f"On the CPU's provider alone it takes {row.ratio or 1.0:.2g} times as long." for row in alone]
    if changed:
        return " ".join([f"Keep {changed}.", *beside, *said])
    nothing = "No option" if said else "Nothing with eager's results" if any(row.verdict == "faster" for row in rows) else "Nothing"
    was = "faster outside the noise" if any(row.verdict != "unmeasured" for row in rows) else "measured"
    return " ".join([*said, f"{nothing} was {was}; keep {', '.join(unset) or 'the defaults'}.", *beside])


def _survey(options: argparse.Namespace) -> int:
    from ortlens.studies.cases import cases_from_text
    from ortlens.studies.survey import survey
    from ortlens.views.table import brief_columns, table

    chosen = backend_options(options)  # beside the options of a file of cases, which --options replaces
    variants = [backend_options(options, pairs) for pairs in options.options] or None
    globs = options.only or ["*"]
    cases = [case for case in cases_from_text(options.cases, variants) if any(fnmatch(case.name, glob) for glob in globs)]
    if not cases:
        raise UsageError(f"no case of {options.cases} has a name like {' or '.join(options.only)}")
    client = _client(options.scheduler)
    rows: dict[str, SurveyRow] = {}

    def tell(row: SurveyRow) -> None:
        rows[row.key] = row
        if not row.kept:
            print_note(_line(row))

    frame = survey(
        [dataclasses.replace(case, options=chosen | dict(case.options)) for case in cases],
        client,
        **same(options, "folder", "workers", "time_limit", "memory_limit", "profile", "verify", "retry"),
        reports=not options.no_reports,
        title=options.title or f"Survey of {Path(options.cases).name}",
        tell=tell,
    )
    found = [rows[key] for key in frame.key]
    print_answer(options, "survey", {"rows": found}, table(found, brief_columns(found), width=width(), limit=None))
    if options.folder is not None:
        print_note(f"Page written to {options.folder.absolute() / 'index.html'}")
    return EXIT_OK if (frame.status == "ok").all() else EXIT_NO


SURVEY = Command(
    name="survey",
    text="Run many models, each in a process of its own: a crash, a hang or a lack of memory costs its own case. One page, one table.",
    run=_survey,
    asks="Which of many models run in ONNX Runtime, and how fast?",
    examples="""
        ortlens survey cases.py -o results  # CASES in cases.py: a mapping from names to functions that return (model, args)
        ortlens survey cases.toml -o results --time-limit 120 --memory-limit 4G
        ortlens survey cases.py -o results --options min_partition_nodes=1 --options min_partition_nodes=8 freeze_weights=False
        ortlens survey cases.py -o results --scheduler tcp://head:8786  # on the workers of a Dask cluster
    """,
)


def _client(address: str | None) -> Any:  # noqa: ANN401 - a dask.distributed.Client
    if address is None:
        return None
    from ortlens._versions import require

    try:
        return require("distributed", "--scheduler").Client(address, timeout=10)
    except (OSError, ValueError) as err:
        raise UsageError(f"there is no Dask scheduler at {address}: {err}") from err


def _line(row: SurveyRow) -> str:
    from ortlens.units import percent
    from ortlens.views.wording import visible

    how = row.reason or ("" if row.coverage is None else f"{percent(row.coverage)} in ONNX Runtime")
    name = f"{row.case} ({row.options})" if row.options else row.case
    return visible(f"{name}: {row.status}, {time_from_ns(row.case_ns)}; {how}".rstrip("; "))


def _bisect(options: argparse.Namespace) -> int:
    inputs = inputs_from_texts(options.input)  # a slip here should not wait for an installation
    chosen, environments = options_from_pairs(options.option), [_named(text) for text in options.environment]
    pip_args = shlex.split(options.pip_args)
    libraries = dict(map(library_from_text, options.provider_library))
    if len(options.provider) > 1 or (options.provider and len(options.providers) > 1):
        raise UsageError("--provider is the one of the base; compare several with --providers alone")

    from ortlens.lens.repro.evidence import checked_folder
    from ortlens.studies.bisect import Axes, bisected
    from ortlens.studies.bisect_text import sentences, write_issue
    from ortlens.studies.engine import sides_text
    from ortlens.studies.environments import default_folder

    target: Path | None = options.folder and checked_folder(options.folder.absolute())
    axes = Axes(
        **same(options, "onnxruntime", "torch", "package", "providers", "levels"),
        environments=environments,
        provider=(options.provider or [("CPU", {})])[0],
        libraries=libraries,
        folder=(options.environments or default_folder()).absolute(),
        pip_args=pip_args,
    )
    with tempfile.TemporaryDirectory(prefix="ortlens-bisect-", ignore_cleanup_errors=True) as folder:
        result = bisected(options.target, inputs, axes, folder=Path(folder), options=chosen, **same(options, "seed", "runs", "seconds"))
        if target is not None:
            result = write_issue(result, target, shlex.join(["ortlens", *sys.argv[1:]]))
            print_note(f"Written to {target}")
    timed = [row for row in result.rows if row.call_ns is not None]  # sentences tell of the others
    text = "\n".join([sides_text(timed, width=width()), "", *sentences(result)])
    print_answer(options, "bisect", asdict(result) | {"differs": result.differs}, text)
    return EXIT_NO if result.differs else EXIT_OK


BISECT = Command(
    name="bisect",
    text=(
        "Run your model across versions of onnxruntime, torch or any package, providers, optimisation levels and many runs: which results, "
        "times and memory differ, from which node on, and a text for an issue."
    ),
    run=_bisect,
    asks="Which version, provider or optimisation level makes results, times or memory differ, and at which node?",
    examples="""
        ortlens bisect mymodels:net --input f32[8,256] --onnxruntime 1.30.0 1.31.1 1.32.0
        ortlens bisect model.onnx --levels disable all -o issue  # a folder with the smallest model that differs
        ortlens bisect model.onnx --onnxruntime onnxruntime-openvino==1.24.1 --providers OpenVINOExecutionProvider
        ortlens bisect mymodels:net --input f32[8,256] --torch 2.14.1 --pip-args='-i https://download.pytorch.org/whl/cpu'
        ortlens bisect mymodels:net --input i64[1,16] --package transformers 5.5.3 5.6.1  # which adds a graph break?
        ortlens bisect mymodels:net --input f32[8,256] --runs 2000  # does its memory grow?
    """,
)


def _named(text: str) -> tuple[str, str]:
    name, equals, python = text.partition("=")
    if not equals or not name or not Path(python).expanduser().is_file():
        raise UsageError(
            f"--environment {text}: write NAME=PYTHON, with the path of an interpreter that exists, such as old=/envs/old/bin/python"
        )
    return name, str(Path(python).expanduser())
