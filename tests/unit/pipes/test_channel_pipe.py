"""FIFOs of a channel: what readers get, and what they may do."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import select
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import pytest

from feedd.channels.channel import Channel, Compression, Distribution, RecordWrapper
from feedd.channels.epoch_list import EpochList
from feedd.channels.job import Cluster
from feedd.config import load
from feedd.daemon.signals import StopRequests
from feedd.errors import BadRequest, BadSample, BadShard, CacheUnavailable, NotFound
from feedd.pipes.channel_pipe import EpochEnding
from feedd.pipes.epoch_reader import EpochReader
from feedd.pipes.pipe_run import PipePlan, serve_pipes
from tests.budget import PATIENT_S
from tests.fakes import pipe_readers
from tests.fakes.fetchers import until
from tests.fakes.recordio import recordio
from tests.unit.pipes.serving import begun, channel_at, data_in, serving

if TYPE_CHECKING:
    from pathlib import Path

SIZES = [10, 0, 300_000, 1_600_000, 5]  # empty, in memory, in a file, and in several pieces of a small buffer


def _has_bytes(reader: int) -> bool:
    return bool(select.select([reader], [], [], 0)[0])


async def read(path: Path) -> bytes:
    """Read a FIFO in a thread."""
    return await asyncio.to_thread(pipe_readers.whole, path)


async def test_epochs_are_the_objects_one_after_the_other(tmp_path: Path) -> None:
    """Every epoch has all bytes, hidden files included, in the order of the keys; FIFOs exist in advance."""
    content = data_in(tmp_path / "data", SIZES)
    (tmp_path / "data" / "_hidden").write_bytes(b"last")
    async with serving(tmp_path / "ml", channel_at(tmp_path / "data"), buffer_bytes=4 << 20) as pipes:
        for epoch in range(3):
            assert await read(pipes.fifo(epoch)) == b"".join(content) + b"last"
            assert pipes.fifo(epoch + 1).is_fifo()
            assert pipes.fifo(epoch + 2).is_fifo()
        totals = await pipes.end()
    assert totals.epochs[EpochEnding.WHOLE] == 3
    assert totals.object_count == 3 * 6
    assert totals.size_bytes == 3 * (sum(SIZES) + 4)


@pytest.mark.parametrize("compression", Compression)
async def test_each_object_is_a_record(tmp_path: Path, compression: Compression) -> None:
    """RecordWrapperType RecordIO, of plain and of compressed objects."""
    content = data_in(tmp_path / "data", SIZES)
    if compression is Compression.GZIP:
        for number, data in enumerate(content):
            (tmp_path / "data" / f"{number:03d}.bin").write_bytes(gzip.compress(data))
    channel = channel_at(tmp_path / "data", record_wrapper=RecordWrapper.RECORDIO, compression=compression)
    async with serving(tmp_path / "ml", channel) as pipes:
        assert await read(pipes.fifo(0)) == recordio(*content)


async def test_compressed_objects(tmp_path: Path) -> None:
    """CompressionType Gzip, with objects of several members; what is not gzip ends the command, by its name."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.gz").write_bytes(gzip.compress(b"a" * 3_000_000) + gzip.compress(b"b"))
    (folder / "b.gz").write_bytes(gzip.compress(b""))
    channel = channel_at(folder, compression=Compression.GZIP)
    async with serving(tmp_path / "ml", channel) as pipes:
        assert await read(pipes.fifo(0)) == b"a" * 3_000_000 + b"b"
    (folder / "c.gz").write_bytes(b"plain")
    with pytest.raises(BadShard) as caught:
        async with serving(tmp_path / "ml", channel) as pipes:
            await read(pipes.fifo(0))
    assert caught.value.object == f"file://{folder}/c.gz"


@pytest.mark.parametrize("epoch_count", [1, 3])
async def test_a_second_cancellation_leaves_no_fifo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch_count: int
) -> None:
    """An error may end the pipes just when a signal does: a reader that opens a FIFO without a writer waits forever.

    Of three epochs, the first one ends before the third one begins.
    """
    closing, may_end, close = asyncio.Event(), asyncio.Event(), EpochReader.close

    async def wait_and_close(reader: EpochReader) -> None:
        closing.set()
        await may_end.wait()
        await close(reader)

    monkeypatch.setattr(EpochReader, "close", wait_and_close)
    data_in(tmp_path / "data", [3_000_000])
    pipes = begun(tmp_path / "ml", channel_at(tmp_path / "data"))
    with ExitStack() as readers:
        for epoch in range(epoch_count):
            await until(pipes.fifo(epoch).exists)
            reader = os.open(pipes.fifo(epoch), os.O_RDONLY | os.O_NONBLOCK)
            readers.callback(os.close, reader)
            if epoch < 2:
                await until(partial(_has_bytes, reader))
            else:
                await closing.wait()
        for _ in range(2):
            pipes.task.cancel()
            await closing.wait()
            await asyncio.sleep(0.01)
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await pipes.task
    assert not [*pipes.fifo(0).parent.iterdir()]


async def test_a_node_without_channels_waits_for_its_signal(tmp_path: Path) -> None:
    """The channel is for another instance group: this node has no FIFO, and no error."""
    data_in(tmp_path / "data", [10])
    nodes = Cluster(("a", "b"), "b", {"first": ("a",), "second": ("b",)})
    pipes = begun(tmp_path / "ml", channel_at(tmp_path / "data", groups=("first",)), nodes=nodes)
    folder = pipes.fifo(0).parent
    await until(folder.exists)
    await asyncio.sleep(0.05)
    assert not pipes.task.done()
    assert not [*folder.iterdir()]
    pipes.stop.ask("test")
    assert await asyncio.wait_for(pipes.task, PATIENT_S) == {}


async def test_an_augmented_manifest(tmp_path: Path) -> None:
    """Each attribute of each line is a record, with the objects' bytes for references, in the order of the names."""
    images = data_in(tmp_path / "images", [300_000, 20, 30, 40] * 20)
    lines = [
        {"class": number, "source-ref": f"file://{tmp_path}/images/{number:03d}.bin", "box": {"left": [1, 2.50]}}
        for number in range(len(images))
    ]
    manifest = tmp_path / "train.manifest"
    manifest.write_text("\n".join(map(json.dumps, lines)))
    channel = channel_at(
        f"augmented+file://{manifest}",
        attributes=("source-ref", "class", "box"),
        record_wrapper=RecordWrapper.RECORDIO,
        seed=3,
    )
    async with serving(tmp_path / "ml", channel) as pipes:
        for epoch in range(2):
            got = await read(pipes.fifo(epoch))
            order = sorted(range(80), key=lambda number: got.index(recordio(images[number], str(number).encode())))
            assert order != list(range(80))
            parts = [part for number in order for part in (images[number], str(number).encode(), b'{"left":[1,2.5]}')]
            assert got == recordio(*parts)


async def test_a_bad_line_names_itself(tmp_path: Path) -> None:
    """What comes before it is delivered first."""
    manifest = tmp_path / "train.manifest"
    manifest.write_text('{"a": "first"}\n\n{"b": 2}\n')
    channel = channel_at(f"augmented+file://{manifest}", attributes=("a",))
    with pytest.raises(BadSample) as caught:
        async with serving(tmp_path / "ml", channel) as pipes:
            assert await read(pipes.fifo(0)) == b"first"
    assert caught.value.object == f"{channel.url} line 3"


async def test_nodes_share_a_shuffled_channel(tmp_path: Path) -> None:
    """ShardedByS3Key with a seed: in each epoch the nodes read all objects, each once, in the pinned order."""
    content = data_in(tmp_path / "data", range(1, 12))
    channel = channel_at(tmp_path / "data", distribution=Distribution.SHARDED, seed=5)
    orders = []
    for rank in range(2):
        async with serving(tmp_path / f"ml{rank}", channel, nodes=Cluster.numbered(2, rank)) as pipes:
            epochs = [await read(pipes.fifo(epoch)) for epoch in range(2)]
        orders.append([[content.index(one) for one in _split(epoch, content)] for epoch in epochs])
    for epoch in range(2):
        assert sorted(orders[0][epoch] + orders[1][epoch]) == list(range(11))
    assert orders[0][0] != orders[0][1]


def _split(epoch: bytes, content: list[bytes]) -> list[bytes]:
    """Cut an epoch into objects; each is found by the only content that it begins with and that leads to the end."""
    if not epoch:
        return []
    for one in sorted(content, key=len, reverse=True):
        if epoch.startswith(one):
            rest = _split(epoch[len(one) :], [other for other in content if other is not one])
            if sum(map(len, rest)) == len(epoch) - len(one):
                return [one, *rest]
    return []


async def test_a_node_without_objects(tmp_path: Path) -> None:
    """With more nodes than objects some get nothing: an empty epoch, as in SageMaker."""
    data_in(tmp_path / "data", [5])
    channel = channel_at(tmp_path / "data", distribution=Distribution.SHARDED)
    async with serving(tmp_path / "ml", channel, nodes=Cluster.numbered(2, 1)) as pipes:
        assert await read(pipes.fifo(0)) == b""
        assert await asyncio.to_thread(pipe_readers.as_mlio, pipes.fifo(1)) == b""


async def test_a_reader_may_close_early(tmp_path: Path) -> None:
    """The epoch counts as read, and the next one is whole."""
    content = b"".join(data_in(tmp_path / "data", [1_300_000] * 2 + [1] * 300))
    async with serving(tmp_path / "ml", channel_at(tmp_path / "data")) as pipes:
        for epoch in range(4):
            got = await asyncio.to_thread(pipe_readers.first_bytes, pipes.fifo(epoch), 100)
            assert got == content[:100]
        assert await read(pipes.fifo(4)) == content
        waiting = [task for task in asyncio.all_tasks() if "_follow" in repr(task.get_coro())]
        assert len(waiting) <= 1  # an epoch that is over leaves no task
        totals = await pipes.end()
    assert (totals.epochs[EpochEnding.EARLY], totals.epochs[EpochEnding.WHOLE]) == (4, 1)


async def test_a_reader_that_takes_nothing_has_not_begun(tmp_path: Path) -> None:
    """It may open the FIFO again, and gets all bytes of an epoch that is larger than the pipe."""
    content = b"".join(data_in(tmp_path / "data", [1_300_000]))
    async with serving(tmp_path / "ml", channel_at(tmp_path / "data")) as pipes:
        for _ in range(3):
            fd = os.open(pipes.fifo(0), os.O_RDONLY | os.O_NONBLOCK)
            await asyncio.to_thread(select.select, [fd], [], [], 10)
            os.close(fd)
            await asyncio.sleep(0.01)
        assert await read(pipes.fifo(0)) == content


async def test_epochs_may_be_skipped(tmp_path: Path) -> None:
    """The FIFOs before the opened one go, and there are new ones after it."""
    content = b"".join(data_in(tmp_path / "data", [100]))
    async with serving(tmp_path / "ml", channel_at(tmp_path / "data")) as pipes:
        assert await read(pipes.fifo(2)) == content
        assert not pipes.fifo(0).exists()
        assert not pipes.fifo(1).exists()
        assert await read(pipes.fifo(5)) == content


async def test_a_reader_that_holds_old_fifos_open(tmp_path: Path) -> None:
    """It gets the next epochs; the oldest of three open ones is given up."""
    content = b"".join(data_in(tmp_path / "data", [1_300_000]))
    async with serving(tmp_path / "ml", channel_at(tmp_path / "data")) as pipes:
        held = []
        for epoch in range(4):
            held.append(pipes.fifo(epoch).open("rb", buffering=0))
            assert await asyncio.to_thread(held[-1].read, 10) == content[:10]
        assert await read(pipes.fifo(4)) == content
        for file in held:
            file.close()
        totals = await pipes.end()
    assert totals.epochs[EpochEnding.LEFT] >= 2
    assert totals.epochs[EpochEnding.WHOLE] == 1


async def test_a_channel_does_not_wait_for_another(tmp_path: Path) -> None:
    """A reader that stands still holds up its own channel only."""
    content = b"".join(data_in(tmp_path / "data", [1_300_000] * 3))
    channels = [channel_at(tmp_path / "data", name) for name in ("train", "test")]
    async with serving(tmp_path / "ml", *channels, buffer_bytes=4 << 20) as pipes:
        with pipes.fifo(0).open("rb", buffering=0) as held:
            assert await asyncio.to_thread(held.read, 10) == content[:10]
            for epoch in range(2):
                assert await read(pipes.fifo(epoch, "test")) == content
            rest = await asyncio.to_thread(lambda: b"".join(iter(lambda: held.read(1 << 16), b"")))
            assert content[:10] + rest == content


async def test_what_a_killed_server_left(tmp_path: Path) -> None:
    """A FIFO of before is used, because a reader may wait in it already."""
    content = b"".join(data_in(tmp_path / "data", [100]))
    folder = tmp_path / "ml" / "input" / "data"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "train_0")
    reader = asyncio.create_task(read(folder / "train_0"))
    await asyncio.sleep(0.05)
    async with serving(tmp_path / "ml", channel_at(tmp_path / "data")):
        assert await reader == content


async def test_what_is_no_fifo_stays(tmp_path: Path) -> None:
    """A file of the FIFO's name is not overwritten."""
    data_in(tmp_path / "data", [100])
    folder = tmp_path / "ml" / "input" / "data"
    folder.mkdir(parents=True)
    (folder / "train_1").write_bytes(b"mine")
    with pytest.raises(BadRequest) as caught:
        async with serving(tmp_path / "ml", channel_at(tmp_path / "data")) as pipes:
            await asyncio.wait([pipes.task])
    assert caught.value.object == str(folder / "train_1")
    assert (folder / "train_1").read_bytes() == b"mine"
    assert not (folder / "train_0").exists()


async def test_a_folder_has_one_server(tmp_path: Path) -> None:
    """A second one would write into the same FIFOs."""
    data_in(tmp_path / "data", [100])
    async with serving(tmp_path / "ml", channel_at(tmp_path / "data")):
        plan = PipePlan(tmp_path / "ml", [channel_at(tmp_path / "data", "other")], Cluster(), 1 << 20)
        with pytest.raises(CacheUnavailable, match="no other feedd pipe serves"):
            await serve_pipes(plan, load({}, {}).config, StopRequests())


@pytest.mark.parametrize("url", ["nothing/", "manifest"])
async def test_a_channel_without_objects(tmp_path: Path, url: str) -> None:
    """An empty prefix and an empty augmented manifest are errors that name the URL."""
    (tmp_path / "nothing").mkdir()
    (tmp_path / "manifest").write_text("\n")
    channel = (
        channel_at(f"augmented+file://{tmp_path}/manifest", attributes=("a",))
        if url == "manifest"
        else channel_at(f"file://{tmp_path}/{url}")
    )
    with pytest.raises(NotFound) as caught:
        async with serving(tmp_path / "ml", channel) as pipes:
            await asyncio.wait([pipes.task])
    assert caught.value.object == channel.url


def test_the_order_is_that_of_the_epoch_list() -> None:
    """See ``test_epoch_list``: the pipes read nothing else."""
    assert EpochList.of(Channel("train"), 3, b"digest", 1, 0).indices(0).tolist() == [0, 1, 2]
