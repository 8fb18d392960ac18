"""Batches for other libraries: every value exact, kept batches right, and positions of what the trainer took."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from feedd_client import BadOptionError, DeviceLoader, Normalize, Ragged
from feedd_client.adapters import (
    DaliSource,
    RaggedArrays,
    cupy_iterator,
    dlpack_iterator,
    jax_iterator,
    numpy_iterator,
    tensorflow_dataset,
)
from tests.fakes import other_libraries as fakes
from tests.fakes.feed_data import image_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd_client import FeedDataset
    from tests.fakes.cuda.device import Cuda
    from tests.fakes.feed_client import Bench

STEPS = 7


def _check(batches: list[dict[str, Any]], first: int = 0) -> None:
    """Make sure that all fields of kept batches are those of their samples."""
    for step, batch in enumerate(batches, first):
        numbers = list(range(step * 4, step * 4 + 4))
        assert batch["cls"].tolist() == numbers
        raw = np.asarray(batch["raw"].values.tolist(), np.uint8)
        ends = batch["raw"].offsets.tolist()
        for row, number in enumerate(numbers):
            assert batch["img"][row].tolist() == image_of(number).tolist()
            assert raw[ends[row] : ends[row + 1]].tobytes() == bytes([number % 256]) * (number % 5 + 1)
        assert batch["__key__"] == [f"sample-{number:09d}" for number in numbers]


def _dense(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: batch[name] for name in ("img", "cls")}


def _taken(dataset: FeedDataset) -> int:
    state = dataset.state_dict()
    return int(state["epoch"]) * STEPS + int(state["step"])


def test_numpy_arrays_are_the_batch(bench: Bench) -> None:
    """Kept arrays of more batches than there are slots stay right, share memory with tensors, and states count."""
    dataset = bench.dataset(bench.server(steps=STEPS, slot_count=2))
    kept = []
    for step, arrays in enumerate(numpy_iterator(dataset)):
        kept.append(arrays)
        assert dataset.state_dict()["step"] == step + 1
    gc.collect()
    _check(kept)
    assert isinstance(kept[0]["raw"], RaggedArrays)
    assert isinstance(kept[0]["mat"].shapes, np.ndarray)
    tensor = torch.arange(4)
    (batch,) = numpy_iterator([{"x": tensor, "nested": [tensor]}])
    batch["x"][0] = 9
    assert tensor[0] == 9
    assert isinstance(batch["nested"][0], np.ndarray)


def test_what_numpy_has_not_is_said(cuda: Cuda) -> None:
    """bfloat16, tensors on a device, and batches that are no mappings are errors that say what to do."""
    with pytest.raises(BadOptionError, match=r"bfloat16.*Cast"):
        list(numpy_iterator([{"x": torch.zeros(1, dtype=torch.bfloat16)}]))
    with pytest.raises(BadOptionError, match="mappings"):
        list(numpy_iterator([torch.zeros(1)]))


# ---------------------------------------------------------------------- JAX


@pytest.fixture
def jax() -> Iterator[None]:
    """JAX's interface."""
    with fakes.installed("jax", **fakes.jax()):
        yield


@pytest.mark.usefixtures("jax")
@pytest.mark.parametrize("prefetch", [1, 3])
def test_jax_arrays_are_the_batch(bench: Bench, prefetch: int) -> None:
    """Batches on their way to the device do not count as taken, and kept ones stay right."""
    server = bench.server(steps=STEPS, slot_count=2)
    dataset = bench.dataset(server)
    kept = []
    for step, arrays in enumerate(jax_iterator(dataset, prefetch=prefetch)):
        kept.append(arrays)
        assert _taken(dataset) == step + 1
    _check(kept)
    assert dataset.state_dict()["epoch"] == 1
    assert dataset._stats.step_times.steps == STEPS
    batches = jax_iterator(bench.dataset(server), prefetch=prefetch)
    _check([next(batches) for _ in range(3)])
    del batches
    gc.collect()


@pytest.mark.usefixtures("jax")
def test_a_resumed_run_gets_what_was_on_its_way(bench: Bench) -> None:
    """A state taken in the middle resumes after the last batch that was yielded, whatever was read ahead."""
    server = bench.server(steps=STEPS)
    dataset = bench.dataset(server)
    batches = jax_iterator(dataset, prefetch=4)
    _check([next(batches) for _ in range(2)])
    resumed = bench.dataset(server)
    resumed.load_state_dict(dataset.state_dict())
    _check(list(jax_iterator(resumed)), first=2)
    del batches
    loader = DeviceLoader(bench.dataset(server), "cpu", lambda batch: batch)
    for step, _ in enumerate(jax_iterator(loader, prefetch=4)):
        assert loader.state_dict()["step"] == step + 1


@pytest.mark.usefixtures("jax")
def test_jax_devices_share_the_rows(bench: Bench) -> None:
    """Devices make a sharding by rows; rows that do not fit, and ragged fields, are errors."""
    source = [_dense(batch) for batch in bench.dataset(bench.server(steps=2))]
    arrays = next(jax_iterator(source, devices=["a", "b"]))
    assert arrays["img"].sharding == ((["a", "b"], ("batch",)), ("batch",))
    with pytest.raises(BadOptionError, match="3 devices"):
        next(jax_iterator(source, devices=["a", "b", "c"]))
    with pytest.raises(BadOptionError, match="Ragged"):
        next(jax_iterator([{"x": Ragged(torch.zeros(2), torch.tensor([0, 2]))}], devices=["a"]))
    with pytest.raises(BadOptionError, match="prefetch=0"):
        jax_iterator(source, prefetch=0)
    with fakes.installed("jax", **fakes.jax(processes=2)):
        sharding = fakes.Sharding((["a"], ("x",)), ("x",))
        assert next(jax_iterator(source, sharding=sharding))["cls"].sharding == ("global", sharding)


@pytest.mark.usefixtures("jax", "cuda")
@pytest.mark.parametrize("cuda", ["random-0"], indirect=True)
def test_jax_takes_gpu_batches_by_dlpack() -> None:
    """Tensors that lie on a GPU already do not go through the host."""
    batch = next(jax_iterator(DeviceLoader([{"x": torch.arange(3)}], "cuda")))
    assert (batch["x"][0], batch["x"][1].is_cuda, batch["x"][1].tolist()) == ("dlpack", True, [0, 1, 2])


# ---------------------------------------------------------------------- DLPack and CuPy


def test_dlpack_arrays_keep_their_memory(bench: Bench) -> None:
    """Through DLPack, too, kept arrays stay right without a copy."""
    dataset = bench.dataset(bench.server(steps=STEPS, slot_count=2))
    _check(list(dlpack_iterator(dataset, np.from_dlpack)))


class _OnItsStream:
    """A CuPy array: its work is queued on CuPy's current stream."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@pytest.mark.parametrize("cuda", ["lazy", "late-copies", "random-0", "random-1"], indirect=True)
def test_cupy_works_on_a_stream_of_its_own(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that CuPy drops while its stream has not read them yet are not overwritten by later ones."""
    own = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    asked: list[int] = []

    def external(address: int) -> Any:
        asked.append(address)
        return own

    monkeypatch.setattr(torch.cuda, "ExternalStream", external)
    streams = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=77))

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        cuda.sleep()
        return {"x": batch["x"] + 0}

    with fakes.installed("cupy", from_dlpack=_OnItsStream, cuda=streams):
        loader = DeviceLoader([{"x": torch.full((64,), step)} for step in range(12)], "cuda", slow)
        sums = []
        for arrays in cupy_iterator(loader):
            with torch.cuda.stream(own):  # what CuPy does with the array
                cuda.sleep()
                sums.append(arrays["x"].tensor.sum())
            del arrays
    with torch.cuda.stream(own):
        assert [int(one) for one in sums] == [64 * step for step in range(12)]
    assert set(asked) == {77}


# ---------------------------------------------------------------------- TensorFlow


def test_tensorflow_gets_tensors_ragged_tensors_and_texts(bench: Bench) -> None:
    """The signature is the first batch's, the first batch is not lost, and the next epoch is another one."""
    server = bench.server(steps=3)
    fields = ("img", "cls", "raw", "__key__")

    class Chosen:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            return ({name: batch[name] for name in fields} for batch in dataset)

    dataset = bench.dataset(server)
    with fakes.installed("tensorflow", **fakes.tensorflow()):
        data = tensorflow_dataset(Chosen())
        assert data.element_spec["img"].shape == (None, 4, 6, 3)
        first, second = list(data), list(data)
        with pytest.raises(BadOptionError, match=r"several dimensions.*mat"):
            tensorflow_dataset(bench.dataset(server))
        with pytest.raises(BadOptionError, match="none"):
            tensorflow_dataset([])
        loose = Ragged(torch.arange(9), torch.tensor([0, 2, 5]))  # memory may be longer than the samples
        ((found,),) = [[batch["x"].values.tolist()] for batch in tensorflow_dataset([{"x": loose}])]
    assert found == [0, 1, 2, 3, 4]
    assert [batch["cls"].tolist()[0] for batch in first] == [0, 4, 8]
    assert [batch["cls"].tolist()[0] for batch in second] == [100_000_000, 100_000_004, 100_000_008]
    assert first[0]["raw"].row_splits.tolist() == [0, 1, 3, 6, 10]
    assert first[1]["__key__"].tolist() == [f"sample-{number:09d}" for number in range(4, 8)]


# ---------------------------------------------------------------------- DALI


@pytest.mark.parametrize("no_copy", [False, True])
def test_dali_is_fed_by_leases(bench: Bench, no_copy: bool) -> None:
    """DALI gets encoded files and numbers of every batch, read late or at once, and positions follow the trainer."""
    dataset = bench.dataset(bench.server(steps=STEPS, slot_count=2))
    source = DaliSource(dataset, ["raw", "cls"], held_batches=3 if no_copy else 0)
    pipeline = fakes.DaliPipeline(source, 2, depth=3, no_copy=no_copy)
    for epoch in range(2):
        steps = 0
        for step, (files, labels) in enumerate(source.taken(pipeline)):
            numbers = [epoch * 100_000_000 + number for number in range(step * 4, step * 4 + 4)]
            assert labels.tolist() == numbers
            assert [file.tobytes() for file in files] == [bytes([n % 256]) * (n % 5 + 1) for n in numbers]
            assert _taken(dataset) == epoch * STEPS + step + 1
            steps += 1
        assert steps == STEPS
    assert (dataset.state_dict()["epoch"], dataset.state_dict()["step"]) == (2, 0)
    with pytest.raises(BadOptionError, match="jpg"):
        next(iter(DaliSource(dataset, ["jpg"])))


def test_shapes_reach_dali() -> None:
    """Ragged fields of several dimensions become arrays of these shapes."""
    ragged = Ragged(torch.arange(10), torch.tensor([0, 4, 10]), torch.tensor([[2, 2], [2, 3]]))
    ((rows,),) = DaliSource([{"x": ragged}], ["x"])
    assert [row.tolist() for row in rows] == [[[0, 1], [2, 3]], [[4, 5, 6], [7, 8, 9]]]


def test_adapters_take_what_a_device_loader_makes(bench: Bench) -> None:
    """Transforms on the CPU run before the hand-over."""
    normalize = Normalize((0.0,) * 3, (1 / 255,) * 3, fields=["img"])
    loader = DeviceLoader(bench.dataset(bench.server(steps=2)), "cpu", normalize)
    for step, arrays in enumerate(numpy_iterator(loader)):
        wanted = np.stack([image_of(number) for number in range(step * 4, step * 4 + 4)])
        np.testing.assert_allclose(arrays["img"], np.moveaxis(wanted, -1, 1), atol=1e-4)
