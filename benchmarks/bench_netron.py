"""ONNX models in Netron: what the frame weighs on a page, and how soon a model is drawn in headless Chromium.

The models are blocks of a product, an activation and a normalisation, in a row, with a weight each; seven nodes a block. A time is that
from the click on the panel until the model is drawn, unpacking and starting Netron included. Times are medians. Needs the package
netron, and for the times playwright and Debian's chromium.

Usage: python benchmarks/bench_netron.py [--quick] [--json FILE]
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import tempfile
from pathlib import Path

import onnx
from measure import Row, Table, parser_for, report, start
from onnx import TensorProto, helper

from ortlens.trace.records import Capture, Model
from ortlens.views.netron import embedding
from ortlens.views.report import report_page

_FRAME_KB = 250.0
_BLOCKS = {"21": 3, "147": 21, "2,002": 286}
_PATIENCE_MS = 300_000


def block(number: int) -> list[onnx.NodeProto]:
    """Seven nodes from one hidden value to the next."""
    before, after, own = f"h{number}", f"h{number + 1}", f"b{number}"
    steps = [
        ("Gemm", [before, f"{own}.w", f"{own}.b"], f"{own}.1"),
        ("Mul", [f"{own}.1", f"{own}.s"], f"{own}.2"),
        ("Tanh", [f"{own}.2"], f"{own}.3"),
        ("Mul", [f"{own}.3", f"{own}.1"], f"{own}.4"),
        ("Add", [f"{own}.4", before], f"{own}.5"),
        ("Relu", [f"{own}.5"], f"{own}.6"),
        ("Identity", [f"{own}.6"], after),
    ]
    return [helper.make_node(kind, reads, [writes], name=f"{own}/{kind}_{n}") for n, (kind, reads, writes) in enumerate(steps)]


def capture_of(blocks: int) -> Capture:
    """A capture that holds a model of so many blocks."""
    nodes = [node for number in range(blocks) for node in block(number)]
    weights = [
        helper.make_tensor(f"b{number}.{name}", TensorProto.FLOAT, shape, bytes(4 * size), raw=True)
        for number in range(blocks)
        for name, shape, size in (("w", [64, 64], 4096), ("b", [64], 64), ("s", [], 1))
    ]
    first, last = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in ("h0", f"h{blocks}"))
    graph = helper.make_graph(nodes, "blocks", [first], [last], weights)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()
    model = Model(model_id="m0", partition_id="p0", node_count=len(nodes))
    return Capture(name="blocks", models=(model,), attachments={"models/m0.onnx": data})


def sizes() -> list[Row]:
    """What a page carries."""
    packed = {name: embedding(capture_of(blocks)) for name, blocks in _BLOCKS.items()}
    frame = max(len(one.frame) for one in packed.values())
    models = [
        Row(name=f"a model of {name} nodes, without weights", value=len(one.models["m0"]) * 4 / 3e3, unit="kB")
        for name, one in packed.items()
    ]
    return [Row(name="the frame, once per page", value=frame * 4 / 3e3, unit="kB", goal=_FRAME_KB), *models]


def times(rounds: int) -> list[Row]:
    """From the click on the panel to the drawn model."""
    from playwright.sync_api import sync_playwright

    rows = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, blocks in _BLOCKS.items():
            file = Path(folder) / f"{blocks}.html"
            file.write_text(report_page(capture_of(blocks)), encoding="utf-8")
            taken = []
            for _ in range(rounds):
                page = browser.new_page(viewport={"width": 1280, "height": 800})
                page.goto(file.as_uri())
                page.wait_for_selector("[data-ortlens-ready]")
                before = page.evaluate("performance.now()")
                page.click("[data-tab=onnx]")
                if page.get_by_text("Draw it").count():
                    page.click("text=Draw it")
                page.frame_locator(".ol-onnx-frame").locator("html[data-shown]").wait_for(state="attached", timeout=_PATIENCE_MS)
                taken.append((page.evaluate("performance.now()") - before) / 1e3)
                page.close()
            rows.append(Row(name=f"{name} nodes", value=statistics.median(taken), unit="s", detail={"longest": max(taken)}))
        browser.close()
    return rows


def main() -> None:
    """Run and print."""
    options = parser_for(__doc__).parse_args()
    start(options)
    if importlib.util.find_spec("netron") is None:
        report("ONNX models in Netron", [Table(title="Nothing is measured", remarks=["the package netron is missing"])], options)
        return
    tables = [Table(title="What a page carries, gzip in base64", rows=sizes())]
    if shutil.which("chromium") and importlib.util.find_spec("playwright"):
        tables.append(Table(title="From the click to the drawn model", rows=times(1 if options.quick else 5)))
    else:
        tables.append(Table(title="From the click to the drawn model", remarks=["playwright or chromium is missing"]))
    report("ONNX models in Netron", tables, options)


if __name__ == "__main__":
    main()
