"""DeviceLoader on simulated devices, and on a real one: whatever a batch is, and however late the device is."""

from __future__ import annotations

import gc
import pickle
import threading
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch

from feedd_client import DeviceLoader, FeedError, Normalize, Ragged
from feedd_client.containers import tensors_of
from tests.budget import PATIENT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fakes.feed_client import Bench

ROWS: Final = 64
_CYCLES: Final = 5_000_000
Pair = namedtuple("Pair", "first second")  # noqa: PYI024 - the kind that collections makes
pytestmark = pytest.mark.usefixtures("cuda")


@dataclass(frozen=True)
class Record:
    """A batch as a dataclass."""

    values: torch.Tensor
    name: str = "record"


class Fields(UserDict[str, Any]):
    """A batch as Hugging Face's BatchEncoding is."""


class Bundle:
    """A batch that moves itself, as a TensorDict does."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def to(self, device: Any, non_blocking: bool = False) -> Bundle:
        """Move."""
        return Bundle(self.values.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Bundle:
        """Pin."""
        return Bundle(self.values.pin_memory())

    def record_stream(self, stream: Any) -> None:
        """Protect."""
        self.values.record_stream(stream)


def _values(step: int) -> torch.Tensor:
    return torch.full((ROWS,), step, dtype=torch.int64)


SHAPES: Final[dict[str, Callable[[torch.Tensor], Any]]] = {
    "dict": lambda values: {"x": values, "name": "a"},
    "UserDict": lambda values: Fields(x=values),
    "list": lambda values: [values, 1],
    "tuple": lambda values: (values, "a"),
    "detection": lambda values: (values, [values[:7], values[7:]]),
    "namedtuple": lambda values: Pair(values, {"x": values}),
    "dataclass": Record,
    "Ragged": lambda values: {"x": Ragged(values, torch.tensor([0, ROWS]))},
    "deep": lambda values: {"x": [({"y": [values]}, [[Pair(values, 1)]])]},
    "list of dicts": lambda values: [{"x": values}, {"x": values}],
    "moves itself": lambda values: {"x": Bundle(values)},
}


def _found(batch: Any) -> list[torch.Tensor]:
    """Return the tensors that hold values, found without the client's walk."""
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, Ragged | Record | Bundle):
        return [batch.values]
    if isinstance(batch, dict | Fields):
        return [one for value in batch.values() for one in _found(value)]
    return [one for value in batch for one in _found(value)] if isinstance(batch, list | tuple) else []


def _types(batch: Any) -> Any:
    if isinstance(batch, dict | Fields):
        return type(batch), {name: _types(value) for name, value in batch.items()}
    return (
        (type(batch), [_types(value) for value in batch]) if isinstance(batch, list | tuple) else type(batch).__name__
    )


def _slow(batch: Any) -> Any:
    """A transform that the device has not run yet when the trainer gets the batch."""
    torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return batch


def _wrong_count(loader: DeviceLoader) -> int:
    """Return how many values were wrong when the device came to look at them, long after the host went on."""
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for step, batch in enumerate(loader):
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        found = _found(batch)
        assert found
        assert all(one.is_cuda for one in found)
        for one in found:
            wrong += (one != step).sum()
        del batch, found, one
    return int(wrong.item())


@pytest.mark.parametrize("shape", SHAPES)
def test_no_container_hides_a_tensor(shape: str) -> None:
    """Whatever containers hold them, tensors arrive on the device, right, in containers of the same types."""
    make = SHAPES[shape]
    assert _wrong_count(DeviceLoader([make(_values(step)) for step in range(12)], "cuda")) == 0
    (on_device,) = DeviceLoader([make(_values(0))], "cuda")
    (on_host,) = DeviceLoader([make(_values(0))], "cpu")
    if shape not in {"Ragged", "moves itself"}:
        assert _types(on_host) == _types(make(_values(0)))
        tensor = type(next(tensors_of(on_device))).__name__
        assert str(_types(on_device)).replace(tensor, "Tensor") == str(_types(on_host))


@pytest.mark.parametrize("shape", ["UserDict", "dataclass", "moves itself"])
def test_what_transforms_return_is_protected(shape: str) -> None:
    """A transform's own containers are safe from reuse of their memory, too."""
    loader = DeviceLoader([{"x": _values(step)} for step in range(12)], "cuda", lambda one: SHAPES[shape](one["x"] + 0))
    assert _wrong_count(loader) == 0


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_cannot_be_walked_is_named(device: str) -> None:
    """An object nobody can look into is an error that names its place and type, from the source or a transform."""

    class Opaque:
        def __init__(self) -> None:
            self.hidden = _values(1)

    with pytest.raises(FeedError, match=r"Opaque.*batch\['x'\]\[1\]"):
        list(DeviceLoader([{"x": [1.0, Opaque()]}], device))
    if device == "cuda":
        with pytest.raises(FeedError, match="Opaque"):
            list(DeviceLoader([{"x": _values(0)}], device, lambda batch: {"x": Opaque()}))


def test_times_tell_the_device_and_whether_its_memory_is_registered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy thread takes batches in advance; a step is the trainer's. A device that refuses the arena is told."""
    dataset = bench.dataset(bench.server(steps=6))
    loader = DeviceLoader(dataset, "cuda", device_prefetch=2)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    times = dataset._stats.step_times
    assert (times.steps, times.unpinned) == (2, False)
    assert 0 < times.copy_s < 60
    assert times.device.startswith("cuda")
    loader.close()
    monkeypatch.setattr("feedd_client.copier.register", lambda *_: False)
    other = bench.dataset(bench.server(steps=6))
    assert len(list(DeviceLoader(other, "cuda"))) == 6
    assert other._stats.step_times.unpinned


def test_device_memory_is_bounded_however_far_the_host_is_ahead() -> None:
    """A trainer that never waits for its device gets no more memory than its prefetch needs, step after step."""
    size_bytes = 4 << 20
    before = torch.cuda.memory_reserved()
    for batch in DeviceLoader(({"x": torch.zeros(size_bytes, dtype=torch.uint8)} for _ in range(40)), "cuda"):
        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        batch["x"].add_(1)
        del batch
    assert torch.cuda.memory_reserved() - before <= 5 * size_bytes


def test_a_captured_graph_is_left_alone() -> None:
    """Copies, allocations and waits of the copy thread go on while the trainer captures a CUDA graph."""
    capturing, copied = threading.Event(), threading.Event()

    def source() -> Iterator[dict[str, torch.Tensor]]:
        for step in range(4):
            if step == 1:
                assert capturing.wait(PATIENT_S)
            yield {"x": torch.full((1000 << step,), step)}
        copied.set()

    loader = DeviceLoader(source(), "cuda", device_prefetch=4)
    batches = iter(loader)
    first = next(batches)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        first["x"].add_(1)
        capturing.set()
        assert copied.wait(PATIENT_S)
    assert [int(batch["x"].sum()) for batch in batches] == [1000 * 2, 2 * 4000, 3 * 8000]


def test_passes_of_one_loader_do_not_share_buffers() -> None:
    """Two passes at once, of batches that differ in size, each get their own values."""
    loader = DeviceLoader([{"x": torch.full((7 * (1 + step % 5),), step)} for step in range(30)], "cuda")
    sums = [(int(one["x"].sum()), int(two["x"].sum())) for one, two in zip(loader, loader, strict=True)]
    assert sums == [(7 * (1 + step % 5) * step,) * 2 for step in range(30)]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_transform_that_stops_is_an_error(device: str) -> None:
    """StopIteration out of a transform ends the run with an error, and not the epoch without a word."""
    helper = iter([1, 2])

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "n": next(helper)}

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DeviceLoader([{"x": _values(step)} for step in range(10)], device, transform))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_transforms_draw_what_their_batch_says(bench: Bench, device: str) -> None:
    """Numbers of context.generator depend on seed, epoch, step and rank, so a resumed run draws them again."""
    server = bench.server(steps=6)

    def draw(batch: dict[str, Any], context: Any) -> dict[str, Any]:
        noise = torch.rand(3, generator=context.generator, device=context.generator.device)
        return {"noise": noise, "at": (context.epoch, context.step, context.rank)}

    def drawn(loader: Any) -> list[Any]:
        return [(batch["at"], batch["noise"].tolist()) for batch in loader]

    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    whole = DeviceLoader(bench.dataset(server, seed=5), device, draw)
    torch.manual_seed(1)
    first = drawn(whole)
    assert torch.rand(3).tolist() == expected  # the trainer's own generator is where it was
    second = drawn(whole)
    assert [at for at, _ in first + second] == [(epoch, step, 0) for epoch in range(2) for step in range(6)]
    assert len({str(noise) for _, noise in first + second}) == 12
    broken = DeviceLoader(bench.dataset(server, seed=5), device, draw)
    batches = iter(broken)
    assert drawn([next(batches) for _ in range(2)]) == first[:2]
    state = broken.state_dict()
    resumed = DeviceLoader(bench.dataset(server, seed=5), device, draw)
    resumed.load_state_dict(state)
    assert drawn(resumed) == first[2:]
    assert drawn(DeviceLoader(bench.dataset(server, seed=6), device, draw)) != first
    broken.close()


def test_a_failing_transform_gives_no_slot_back_that_is_still_read(bench: Bench) -> None:
    """The pass ends with the transform's error only after the copies that were queued have read their slot."""

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("no such colour")

    server = bench.server(steps=8, slot_count=2)
    dataset = bench.dataset(server)
    with pytest.raises(ValueError, match="colour"):
        list(DeviceLoader(dataset, "cuda", fail))
    dataset.close()
    gc.collect()


def test_fields_named_on_host_stay_there(bench: Bench) -> None:
    """A field that transforms decode by themselves reaches them on the CPU, whole, and is the trainer's to keep."""
    seen = []

    def decode(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch["raw"].values.is_cuda)
        return batch

    loader = DeviceLoader(bench.dataset(bench.server(steps=8, slot_count=2)), "cuda", decode, on_host=["raw"])
    kept = list(loader)
    assert seen == [False] * 8
    for step, batch in enumerate(kept):
        assert batch["img"].is_cuda
        for row in range(4):
            number = step * 4 + row
            assert batch["raw"].bytes(row) == bytes([number % 256]) * (number % 5 + 1)
    with pytest.raises(FeedError, match="jpg"):
        list(DeviceLoader([{"x": _values(0)}], "cuda", on_host=["jpg"]))


def test_channels_last_is_the_order_of_images() -> None:
    """The loader's option makes Normalize write channels last, and puts other images in that order."""
    pixels = torch.arange(2 * 4 * 5 * 3, dtype=torch.int64).to(torch.uint8).view(2, 4, 5, 3)
    normalize = Normalize((0.5,) * 3, (0.5,) * 3)
    (plain,) = DeviceLoader([{"img": pixels}], "cuda", normalize)
    (ordered,) = DeviceLoader([{"img": pixels}], "cuda", normalize, channels_last=True)
    assert ordered["img"].stride() == (60, 1, 15, 3)
    assert plain["img"].stride() == (60, 20, 5, 1)
    assert torch.equal(plain["img"].cpu(), ordered["img"].cpu())


def test_a_loader_may_be_pickled_after_a_pass() -> None:
    """Frameworks that copy or spawn what they were given can do so at any time."""
    loader = DeviceLoader([{"x": _values(0)}], "cuda")
    assert len(list(loader)) == 1
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 1


def test_closing_ends_the_copy_thread() -> None:
    """A loader used as a context manager leaves no thread, and its pass is over."""
    with DeviceLoader([{"x": _values(step)} for step in range(9)], "cuda") as loader:
        batches = iter(loader)
        next(batches)
    assert next(batches, None) is None
    assert not any(thread.name == "feedd-device-copy" for thread in threading.enumerate())
    assert "device_prefetch=2" in repr(loader)
