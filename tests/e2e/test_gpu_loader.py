"""On a CUDA device: batches intact whatever the trainer's stream does, registered memory, one stream for ever."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

from feedd_client import DeviceLoader, Normalize, Ragged, pinning
from feedd_client import streams as device_streams
from tests.fakes.cuda.fixture import REAL_PARAM as REAL
from tests.fakes.feed_client import BATCH_SIZE, Bench, check_rich, ids
from tests.fakes.feed_process import FeedProcess
from tests.fakes.forks import FORKS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("cuda")

_SLEEP_CYCLES = 20_000_000  # some 10 ms on a current GPU: far longer than a copy


@pytest.fixture
def bench(short_dir: Path) -> Iterator[Bench]:
    """Servers and datasets of this test."""
    with Bench(short_dir) as bench:
        yield bench


def _keep_busy() -> None:
    torch.cuda._sleep(_SLEEP_CYCLES)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _on_host(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _stamps(epoch: int, step: int) -> list[int]:
    return [epoch * 100_000_000 + step * BATCH_SIZE + row for row in range(BATCH_SIZE)]


def test_stamped_batches_survive_a_slow_consumer(bench: Bench) -> None:
    """With two slots, poisoned on release, and kernels that lag far behind the copies, every stamp is right."""
    server = bench.server(steps=60, slot_count=2)
    loader = DeviceLoader(bench.dataset(server), device="cuda", device_prefetch=3)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for epoch in range(2):
        for step, batch in enumerate(loader):
            _keep_busy()  # the consumer's kernels run long after the loop has gone on
            wanted = torch.tensor(_stamps(epoch, step), device="cuda")
            wrong += (batch["cls"] != wanted).sum()
            picture = (wanted[:, None] * 7 + torch.arange(72, device="cuda")).remainder(251)
            wrong += (batch["img"].flatten(1).long() != picture).sum()
            del batch  # freed while its kernels have not run yet
    assert wrong.item() == 0
    assert server.violations == []


def test_batches_are_the_trainers_to_keep(bench: Bench) -> None:
    """All batches of an epoch may be kept on the device; every field arrives."""
    loader = DeviceLoader(bench.dataset(bench.server(steps=12, slot_count=2)), device="cuda")
    for step, batch in enumerate(list(loader)):
        assert batch["img"].is_cuda
        assert isinstance(batch["raw"], Ragged)
        assert batch["raw"].values.is_cuda
        assert batch["mat"].shapes.is_cuda
        check_rich(_on_host(batch), _stamps(0, step))


def _lags(batch: dict[str, Any]) -> dict[str, Any]:
    """A transform whose result is not there yet when the trainer gets the batch."""
    _keep_busy()
    return {**batch, "cls": batch["cls"] + 0}


def test_the_consumers_stream_is_the_one_that_waits(bench: Bench) -> None:
    """A trainer that switches streams between batches reads right data on each, though transforms lag behind."""
    loader = DeviceLoader(bench.dataset(bench.server(steps=10, slot_count=2)), device="cuda", transforms=_lags)
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]  # torch leaves it untyped
    sums: list[torch.Tensor] = []
    batches = iter(loader)
    for step in range(10):
        with torch.cuda.stream(streams[step % 2]):
            sums.append(next(batches)["cls"].sum())
    torch.cuda.synchronize()
    assert [int(one) for one in sums] == [sum(_stamps(0, step)) for step in range(10)]


def test_normalize_gives_the_cpus_numbers(bench: Bench) -> None:
    """The same transform on the device and on the host agree within the dtype's rounding."""
    normalize = Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), dtype=torch.bfloat16)
    server = bench.server(steps=5)
    here = DeviceLoader(bench.dataset(server), device="cpu", transforms=[normalize])
    there = DeviceLoader(bench.dataset(server), device="cuda", transforms=[normalize])
    for one, two in zip(here, there, strict=True):
        torch.testing.assert_close(one["img"], two["img"].cpu(), rtol=1e-2, atol=1e-2)


def test_the_arena_is_registered_once_and_unregistered_before_it_goes(bench: Bench) -> None:
    """One registration serves all epochs of a session; closing the dataset ends it without a CUDA error."""
    before = dict(pinning._registered)
    dataset = bench.dataset(bench.server(steps=4))
    loader = DeviceLoader(dataset, device="cuda")
    for _ in range(3):
        assert sum(1 for _ in loader) == 4
    added = {key: ok for key, ok in pinning._registered.items() if key not in before}
    assert list(added.values()) == [True]
    del loader
    dataset.close()
    gc.collect()
    assert pinning._registered == before
    torch.zeros(1, device="cuda").cpu()  # a sticky error would surface here


def test_streams_and_memory_do_not_grow_with_epochs(bench: Bench) -> None:
    """Every epoch uses the process' one copy stream, and device memory stays within what one epoch may need."""
    loader = DeviceLoader(
        bench.dataset(bench.server(steps=6)), device="cuda", transforms=[Normalize((0.5,) * 3, (0.2,) * 3)]
    )

    def epoch() -> int:
        for _ in loader:
            pass
        torch.cuda.synchronize()
        gc.collect()
        return int(torch.cuda.memory_reserved())

    before = torch.cuda.memory_reserved()
    first = epoch() - before
    streams = dict(device_streams._copy_streams)
    for _ in range(6):
        assert epoch() - before <= 3 * first  # which blocks are free in time differs; epochs do not add up
    assert device_streams._copy_streams == streams


def test_a_break_gives_everything_back(bench: Bench) -> None:
    """A pass left early ends its thread, and the next pass runs on the same session and registration."""
    server = bench.server(steps=20)
    loader = DeviceLoader(bench.dataset(server), device="cuda")
    for _ in range(3):
        for batch in loader:
            assert ids(_on_host(batch)) == _stamps(0, 0)
            break
    assert sum(1 for _ in loader) == 20
    assert len(server.opens) == 1


def test_state_counts_what_the_trainer_took(bench: Bench) -> None:
    """Batches staged on the device and not taken are in the resumed run."""
    server = bench.server(steps=10)
    dataset = bench.dataset(server)
    loader = DeviceLoader(dataset, device="cuda", device_prefetch=4)
    batches = iter(loader)
    seen = [number for _ in range(3) for number in ids(next(batches))]
    resumed = DeviceLoader(bench.dataset(server), device="cuda")
    resumed.load_state_dict(loader.state_dict())
    for batch in resumed:
        seen += ids(batch)
    assert seen == list(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("cuda", ["random-0", REAL], indirect=True)
def test_batches_from_workers_go_through_pinned_buffers(short_dir: Path) -> None:
    """Over a DataLoader with workers, whose memory nobody registered, the same batches arrive, each once."""
    with FeedProcess(short_dir / "feed.sock", steps=30) as server, Bench(short_dir) as bench:
        workers = DataLoader(
            bench.dataset(server.address), batch_size=None, num_workers=2, multiprocessing_context=FORKS
        )
        seen = [number for batch in DeviceLoader(workers, device="cuda") for number in ids(_on_host(batch))]
    assert sorted(seen) == list(range(120))


def test_inline_batches_reach_the_device(bench: Bench) -> None:
    """Without an arena there is nothing to register: payloads go through the pinned ring, intact."""
    loader = DeviceLoader(bench.dataset(bench.server(steps=20, arena=False)), device="cuda")
    for step, batch in enumerate(loader):
        _keep_busy()
        check_rich(_on_host(batch), _stamps(0, step))


def test_stats_tell_the_copies(bench: Bench) -> None:
    """Bytes are those of the batches, and seconds of the device are more than none."""
    dataset = bench.dataset(bench.server(steps=6))
    loader = DeviceLoader(dataset, device="cuda")
    for _ in loader:
        pass
    stats = loader.stats()
    assert 0.5 * stats["bytes"] < stats["h2d_bytes"] <= stats["bytes"]
    assert stats["h2d_s"] > 0


def _numbers(bench: Bench, steps: int) -> Iterator[dict[str, torch.Tensor]]:
    for batch in bench.dataset(bench.server(steps=steps, slot_count=2)):
        yield {"img": batch["img"], "cls": batch["cls"]}


def test_static_batches_have_one_address(bench: Bench) -> None:
    """Work that is queued on one batch is done before the next batch is written there."""
    loader = DeviceLoader(_numbers(bench, 20), device="cuda", static=True)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    places = set()
    for step, batch in enumerate(loader):
        places.add((batch["img"].data_ptr(), batch["cls"].data_ptr()))
        _keep_busy()
        wrong += (batch["cls"] != torch.tensor(_stamps(0, step), device="cuda")).sum()
    assert wrong.item() == 0
    assert len(places) == 1


@pytest.mark.parametrize("cuda", [REAL], indirect=True)
def test_a_cuda_graph_reads_each_batch(bench: Bench) -> None:
    """A graph that was captured on one batch sums every later one."""
    loader = DeviceLoader(_numbers(bench, 12), device="cuda", static=True)
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    for step, batch in enumerate(loader):
        if step == 2:
            with torch.cuda.graph(graph):
                total += batch["cls"].sum()
        if step >= 2:
            graph.replay()
    assert total.item() == sum(sum(_stamps(0, step)) for step in range(2, 12))


def test_a_decoder_reads_the_slot_late(bench: Bench) -> None:
    """Bytes that a decoder copies on its stream are right, though two slots serve all batches."""

    def decode(encoded: Ragged, device: torch.device) -> torch.Tensor:
        _keep_busy()
        return encoded.values.to(device, non_blocking=True)

    loader = DeviceLoader(bench.dataset(bench.server(steps=12, slot_count=2)), device="cuda", decode={"raw": decode})
    kept = [batch["raw"] for batch in loader]
    for step, values in enumerate(kept):
        wanted = b"".join(bytes([number % 256]) * (number % 5 + 1) for number in _stamps(0, step))
        assert bytes(values.cpu().tolist())[: len(wanted)] == wanted
