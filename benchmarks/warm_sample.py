"""One sample of the second process in `bench_compile.py`: from `import torch` to the first answer, with what an earlier process left."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

WAYS = ("file", "ortlens", "dynamo", "frozen", "inductor")
"""A saved ONNX file in a bare session; `torch.compile` with a filled `cache_dir`; with a backend that returns Dynamo's graph as it is; a
saved frozen callable; Inductor with its caches."""
_TOLERANCE = 1e-4


def prepare(model: torch.nn.Module, x: torch.Tensor, way: str, folder: Path) -> None:
    """What the first process leaves behind."""
    if way == "file":
        torch.onnx.export(model, (x,), str(folder / "model.onnx"), dynamo=True, verbose=False)
    elif way == "frozen":
        import ortlens

        ortlens.freeze(model, x).save(folder / "frozen")
    else:
        _call_of(model, x, way, folder)()


def _call_of(model: torch.nn.Module, x: torch.Tensor, way: str, folder: Path) -> Callable[[], Any]:
    """A function that does everything from here to the first answer."""
    if way == "file":

        def from_file() -> Any:  # noqa: ANN401 - of onnxruntime
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"])
            return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])

        return from_file
    if way == "frozen":

        def from_folder() -> Any:  # noqa: ANN401 - any result
            import ortlens

            return ortlens.load_frozen(folder / "frozen")(x)

        return from_folder
    if way == "dynamo":
        from models import dynamo_alone

        return lambda: torch.compile(model, backend=dynamo_alone)(x)
    options = {"cache_dir": str(folder / "cache")} if way == "ortlens" else None
    return lambda: torch.compile(model, backend=way, options=options)(x)


def main(asked: Mapping[str, Any]) -> None:
    """Prepare, or take the sample and print it as the last line."""
    from models import build

    torch.set_num_threads(asked["threads"])
    folder = Path(asked["folder"])
    model, x = build(asked["model"], quick=asked["quick"])
    with torch.no_grad():
        expected = model(x)
        if asked["prepare"]:
            prepare(model, x, asked["way"], folder)
            return
        call = _call_of(model, x, asked["way"], folder)
        for name in [name for name in sys.modules if name.split(".")[0] in {"onnxruntime", "ortlens"}]:
            raise AssertionError(f"{name} is imported before the clock starts")
        started = time.perf_counter(), time.process_time()
        result = call()
        found = {"s": time.perf_counter() - started[0], "cpu_s": time.process_time() - started[1]}
    torch.testing.assert_close(result, expected, atol=_TOLERANCE, rtol=_TOLERANCE)
    print(json.dumps(found))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
