"""The simulated device finds faults: each mutation of the copy path dies under some schedule."""

from __future__ import annotations

import gc
import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch

from feedd_client import DeviceLoader, block_copy, copier, device, lane, outputs, pinning, streams
from tests.fakes.cuda.fixture import simulated
from tests.fakes.cuda.machine import SCHEDULES
from tests.fakes.feed_client import BATCH_SIZE, Bench
from tests.unit.client import test_device_copies as copies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _lags(batch: dict[str, Any]) -> dict[str, Any]:
    torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return {**batch, "cls": batch["cls"] + 0}


def _stamps(step: int) -> list[int]:
    return list(range(step * BATCH_SIZE, (step + 1) * BATCH_SIZE))


def _leases(folder: Path) -> None:
    """Batches of two slots, which are poisoned when they go back, read long after the host went on."""
    with Bench(folder) as bench:
        dataset = bench.dataset(bench.server(steps=16, slot_count=2))
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for step, batch in enumerate(DeviceLoader(dataset, "cuda", _lags)):
            wrong += (batch["cls"] != torch.tensor(_stamps(step), device="cuda")).sum()
            wrong += (batch["img"][:, 0, 0, 0] != (torch.tensor(_stamps(step), device="cuda") * 7) % 251).sum()
            del batch
        assert int(wrong.item()) == 0
        dataset.close()
        gc.collect()


def _streams(folder: Path) -> None:
    """A trainer that changes its stream between batches."""
    loader = DeviceLoader([{"cls": torch.full((64,), step)} for step in range(10)], "cuda", _lags)
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
    sums, batches = [], iter(loader)
    for step in range(10):
        with torch.cuda.stream(streams[step % 2]):
            sums.append(next(batches)["cls"].sum())
    torch.cuda.synchronize()
    assert [int(one) for one in sums] == [64 * step for step in range(10)]


def _static(folder: Path) -> None:
    """Static batches of a trainer that changes its stream, whose work on a batch is still queued at the next."""
    loader = DeviceLoader([{"cls": torch.full((64,), step)} for step in range(10)], "cuda", static=True)
    consumers = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]  # see above
    sums, addresses, batches = [], set(), iter(loader)
    for step in range(10):
        with torch.cuda.stream(consumers[step % 2]):
            values = next(batches)["cls"]
            torch.cuda._sleep(1)  # type: ignore[no-untyped-call]  # see above
            sums.append(values.sum())
            addresses.add(values.data_ptr())
    torch.cuda.synchronize()
    assert len(addresses) == 1
    assert [int(one) for one in sums] == [64 * step for step in range(10)]


def _containers(folder: Path) -> None:
    copies.test_no_container_hides_a_tensor("detection")


def _memory(folder: Path) -> None:
    copies.test_device_memory_is_bounded_however_far_the_host_is_ahead()


def _capture(folder: Path) -> None:
    copies.test_a_captured_graph_is_left_alone()


def _ring(folder: Path) -> None:
    """The ring by itself: the copy thread waits for each copy before it begins the next, and so hides its wait."""
    ring, stream, moved = pinning.PinnedBuffers(), torch.cuda.Stream(), []  # type: ignore[no-untyped-call]  # see above
    with torch.cuda.stream(stream):
        for step in range(6):
            ring.begin(512)
            moved.append(torch.empty(64, dtype=torch.int64, device="cuda"))
            moved[-1].copy_(ring.stage(torch.full((64,), step)), non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # see above
            done.record(stream)
            ring.end(done)
        assert [int(one.sum()) for one in moved] == [64 * step for step in range(6)]


def _failing(folder: Path) -> None:
    """A transform that fails while copies are queued."""

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no such colour")

    with Bench(folder) as bench:
        dataset = bench.dataset(bench.server(steps=8, slot_count=2))
        with pytest.raises(ValueError, match="colour"):
            list(DeviceLoader(dataset, "cuda", fail))
        dataset.close()
        gc.collect()


SCENARIOS: Final[tuple[Callable[[Path], None], ...]] = (
    _leases,
    _streams,
    _static,
    _containers,
    _memory,
    _capture,
    _ring,
    _failing,
)
COPIED: Final = "slot.copied.record(self._stream)"
# name -> module, what is written there, what the mutant says instead
MUTANTS: Final[dict[str, tuple[ModuleType, dict[str, str]]]] = {
    "no record_stream": (outputs, {"record_stream(batch, stream)": "pass"}),
    "no wait_event": (outputs, {"stream.wait_event(slot.ready)": "pass"}),
    "a slot goes back before its copy": (
        lane,
        {
            "slot.copied.synchronize()": "pass",
            "self._progress.copied(slot.copied_bytes, slot.copy_s())": "pass",
        },
    ),
    "ready before the transforms": (
        copier,
        {"slot.ready.record(self._stream)": "pass", COPIED: f"{COPIED}; slot.ready.record(self._stream)"},
    ),
    "copied on another stream": (
        copier,
        {
            COPIED: "elsewhere = torch.cuda.default_stream(self._device); slot.started.record(elsewhere);"
            " slot.copied.record(elsewhere)"
        },
    ),
    "no cudaHostUnregister": (pinning, {"int(_cudart().cudaHostUnregister(key[1]))": "0"}),
    "the ring does not wait": (pinning, {"event.synchronize()": "pass"}),
    "the consumer's stream at construction": (
        outputs,
        {
            "        self._streams = streams\n": "        self._streams = streams\n"
            "        self._at = streams.current_stream()\n",
            "        stream = self._streams.current_stream()": "        stream = self._at",
        },
    ),
    "a place is free when the host took its batch": (lane, {"slot.taken.synchronize()": "pass"}),
    "the copy thread does not relax": (streams, {"capture.relax()": "pass"}),
    "a block begins at its second tensor": (
        block_copy,
        {"tensor.data_ptr() - self.memory.start": "tensor.data_ptr() - self.memory.start & -512"},
    ),
    "a static batch does not wait for work on another stream": (outputs, {"stream.wait_stream(before)": "pass"}),
    "a failing transform waits for nothing": (copier, {"self._stream.synchronize()": "pass"}),
}
_USERS: Final[dict[ModuleType, tuple[tuple[ModuleType, str], ...]]] = {
    lane: ((device, "CopyLane"), (device, "DevicePass")),
    copier: ((device, "Copier"),),
    outputs: ((device, "Outputs"), (device, "StaticOutputs")),
    streams: ((device, "streams_of"),),
    block_copy: ((copier, "blocks_of"),),
    pinning: ((copier, "PinnedBuffers"), (copier, "register"), (pinning, "PinnedBuffers")),
}


def _mutated(name: str) -> str:
    """Return the source of a mutant."""
    module, changes = MUTANTS[name]
    source = inspect.getsource(module)
    for text, instead in changes.items():
        assert source.count(text) == 1, (name, text)
        source = source.replace(text, instead)
    return source


def test_each_mutant_changes_what_is_there() -> None:
    """The texts that mutants replace stand in the code once: else a mutant would die of that alone."""
    for name in MUTANTS:
        assert _mutated(name)


def _mutate(patch: pytest.MonkeyPatch, name: str) -> None:
    module, _ = MUTANTS[name]
    source = _mutated(name)
    mutant = ModuleType(module.__name__)
    mutant.__dict__.update(__file__=module.__file__, __package__=module.__package__)
    with patch.context() as loading:
        loading.setitem(sys.modules, module.__name__, mutant)  # dataclasses look their module up
        exec(compile(source, f"<{name}>", "exec"), mutant.__dict__)
    for user, attribute in _USERS[module]:
        patch.setattr(user, attribute, getattr(mutant, attribute))
    if module is pinning:
        patch.setattr(mutant, "_registered", pinning._registered)


def _survives(schedule: str, name: str | None, folder: Path) -> bool:
    """Whether everything that the scenarios look at is right under a schedule."""
    try:
        with simulated(schedule) as (found, patch):
            if name is not None:
                _mutate(patch, name)
            for scenario in SCENARIOS:
                scenario(folder)
            gc.collect()
            assert not found.host.registered_count()
    except (AssertionError, RuntimeError):
        return False
    return True


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_dies_under_some_schedule(name: str, short_dir: Path) -> None:
    """What a mutation breaks, some schedule shows."""
    killed = [schedule for schedule in SCHEDULES if not _survives(schedule, name, short_dir)]
    print(f"{name}: killed by {', '.join(killed) or 'none'}")
    assert killed


@pytest.mark.nightly
def test_without_a_mutation_nothing_dies(short_dir: Path) -> None:
    """Under no schedule do the same scenarios find fault with the code as it is."""
    assert [schedule for schedule in SCHEDULES if not _survives(schedule, None, short_dir)] == []
