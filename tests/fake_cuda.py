"""Stands in for PyTorch's streams and events, and has sessions on the CPU called as on a device.

The sessions, the code around them and the numbers are real. What only a device does is not: its queues, and the replay of a graph, in place
of which the session runs once more on the same buffers.
"""

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from ortlens import _ort
from ortlens.backend.runtime import cuda, devices, session


class Stream:
    """A queue of a device."""

    def __init__(self, device: Any = None, *, handle: int = 4096) -> None:  # noqa: ANN401 - as torch has it
        """Start with nothing queued."""
        self.device, self.cuda_stream = device, handle
        self.waits = 0

    def synchronize(self) -> None:
        """Count the times that the host waited."""
        self.waits += 1


@dataclass
class FakeCuda:
    """What happened, in order."""

    done: list[tuple[Any, ...]] = field(default_factory=list)  # ("record", stream), ("wait", stream), ("run",)
    current: Stream = field(default_factory=lambda: Stream(handle=0))
    own: list[Stream] = field(default_factory=list)  # the streams of sessions
    capturing: bool = False  # whether PyTorch captures a graph
    handles: int = 0  # how often PyTorch was asked for its handle of cuBLAS
    made: list[cuda.DeviceCalls] = field(default_factory=list)  # how each session is called

    def order(self, calls: cuda.DeviceCalls) -> list[str]:
        """Return what happened as text, with the streams by their names."""
        names = {id(self.current): "torch", id(calls._stream): "own"}
        return [" ".join([what, *(names.get(id(stream), "other") for stream in streams)]) for what, *streams in self.done]


def install(monkeypatch: pytest.MonkeyPatch, *, sessions: bool = True, waits: bool = False, rounds: bool = False) -> FakeCuda:
    """Install the stand-in; with `sessions`, every session that the backend makes on the CPU is called through it.

    With `rounds`, sessions that may round to TF32 round their results so.
    """
    fake = FakeCuda()

    class Event:
        def record(self, stream: Stream | None = None) -> None:
            fake.done.append(("record", stream))

        def wait(self, stream: Stream) -> None:
            fake.done.append(("wait", stream))

        def query(self) -> bool:
            return True

    def own(device: Any) -> Stream:  # noqa: ANN401 - as torch has it
        fake.own.append(Stream(device, handle=4096 + len(fake.own)))
        return fake.own[-1]

    given: dict[str, Any] = {
        "Stream": own,
        "Event": Event,
        "current_stream": lambda _device=None: fake.current,
        "current_device": lambda: 0,
        "synchronize": lambda _device=None: fake.done.append(("synchronize",)),
        "is_current_stream_capturing": lambda: fake.capturing,
        "current_blas_handle": lambda: setattr(fake, "handles", fake.handles + 1),
    }
    for name, value in given.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(cuda, "_threads", set())
    if sessions:
        _call_through(fake, monkeypatch, waits=waits, rounds=rounds)
    return fake


def _call_through(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch, *, waits: bool, rounds: bool) -> None:
    class Calls(cuda.DeviceCalls):
        def __init__(self, device: torch.device, given: Any, kinds: Any, needs: cuda.CallNeeds) -> None:  # noqa: ANN401 - of the real one
            super().__init__(device, given, kinds, replace(needs, waits=waits))
            fake.made.append(self)

        def _submit(self, binding: Any, options: Any) -> None:  # noqa: ANN401 - same
            fake.done.append(("run",))
            super()._submit(binding, options)
            if rounds and self.rounds_by():
                for value in binding.get_outputs():
                    result = _ort.tensor_over(value, torch.float32)
                    result.copy_(in_tf32(result))

    kind = devices.DeviceKind(provider=devices.CPU, ort_kind=0, calls=Calls)
    monkeypatch.setattr(cuda, "PROVIDER", devices.CPU)
    monkeypatch.setattr(cuda, "IN_FLOAT32", (devices.CPU, {"use_tf32": "0"}))
    monkeypatch.setattr(session.SessionFactory, "device_of_calls", lambda _: (torch.device("cpu"), kind))


def in_tf32(values: torch.Tensor) -> torch.Tensor:
    """Drop the bits of float32 that TF32 has not."""
    return (values.view(torch.int32) & -(1 << 13)).view(torch.float32)


def in_another_thread(function: Any) -> Any:  # noqa: ANN401 - whatever it returns
    """Call a function in a thread of its own, and return its result."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]
