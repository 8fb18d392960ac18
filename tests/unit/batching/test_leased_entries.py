"""Runs whose values can be used as they lie are leased where the cache has them; all others are copied to slots."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.batching import leased_entries
from feedd.metrics import CACHE_EVICTIONS
from feedd.sessions.own_batches import OwnBatches
from feedd.values import Cursor, Produced
from tests.budget import PATIENT_S
from tests.fakes.caches import MEMORY_FOLDER
from tests.fakes.feeding import feeding
from tests.fakes.fetchers import until
from tests.unit.formats.test_strided import safetensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.sessions.feed_session import Session
    from tests.fakes.feeding import Feeding

ROWS, BATCH, SHARDS = 120, 4, 3
AS_IT_LIES, CONVERTED = '{"decode": "int"}', '{"decode": "float"}'


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder whose files are memory."""
    with tempfile.TemporaryDirectory(prefix="entries-", dir=MEMORY_FOLDER) as name:
        yield Path(name)


def _numbers(shard: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.arange(shard * ROWS, (shard + 1) * ROWS, dtype=np.int64)


async def _opened(rig: Feeding, recipe: str = AS_IT_LIES, **changes: object) -> Session:
    for shard in range(SHARDS):
        rig.store.put(f"train/{shard}.safetensors", safetensors({"data": _numbers(shard)}))
    fields = (("n", recipe.replace("}", ', "from": ["data"]}')),)
    asked: dict[str, object] = {"fields": fields, "batch_size": BATCH, "runs": True, "prefetch_batches": 60}
    return await rig.open(**asked | {"uneven": "allow"} | changes)


def _file_count(session: Session) -> int:
    own = session._parts.batches
    assert isinstance(own, OwnBatches)
    return 0 if own.entries is None else own.entries.file_count


def _is_open(path: str) -> bool:
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if str(fd.readlink()) == path:
                return True
    return False


async def _made(session: Session, step: int, count: int = 5, *, takes_entries: bool = True) -> Produced:
    made = await session.produce_run(Cursor(0, step), count, takes_entries=takes_entries)
    assert isinstance(made, Produced)
    return made


def _read(session: Session, made: Produced, number: int) -> list[int]:
    """Return the values of one batch of a leased run, as a client reads them."""
    batch = made.batch
    assert batch.entry is not None
    fd = session.entry(batch.entry.token)
    assert fd is not None
    assert os.fstat(fd).st_size == batch.entry.size_bytes
    (region,) = batch.regions
    at = region.values_at + number * batch.entry.spacing_rows * 8
    return [int(value) for value in np.frombuffer(os.pread(fd, region.values_bytes, at), np.int64)]


async def test_a_run_is_leased_where_it_lies(memory: Path) -> None:
    """No worker copies; each batch is in the file; the file is closed with the last lease."""
    async with feeding(memory) as rig:
        session = await _opened(rig)
        first, second = await _made(session, 0), await _made(session, 5)
        assert (first.batch_count, second.batch_count) == (5, 5)
        for made, step in ((first, 0), (second, 5)):
            for number in range(5):
                begin = (step + number) * BATCH
                assert _read(session, made, number) == list(range(begin, begin + BATCH))
        assert first.batch.entry == second.batch.entry
        session.release(first.slot)
        assert _file_count(session) == 1
        session.release(second.slot)
        assert not _file_count(session)
        assert second.batch.entry is not None
        assert session.entry(second.batch.entry.token) is None


async def test_nobody_can_write_through_a_lease(memory: Path) -> None:
    """The descriptor that leaves the daemon is open for reading, and others may not open its file again."""
    async with feeding(memory) as rig:
        session = await _opened(rig)
        made = await _made(session, 0)
        assert made.batch.entry is not None
        fd = session.entry(made.batch.entry.token)
        assert fd is not None
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        assert os.fstat(fd).st_mode & 0o077 == 0
        assert session.entry(bytes(16)) is None
        session.release(made.slot)


async def test_an_evicted_entry_stays_readable(memory: Path) -> None:
    """A lease holds no space of the cache. The evicted file is not overwritten, and all other shards come too."""
    async with feeding(memory, cache_bytes=20 << 10) as rig:  # room for two of three shards
        session = await _opened(rig)
        made = await _made(session, 0)
        assert made.batch.entry is not None
        assert not rig.cache.stats.pin_count
        last = SHARDS * ROWS // BATCH
        for step in range(5, last, 5):
            session.release((await _made(session, step)).slot)
        session.release((await _made(session, 0, takes_entries=False)).slot)  # fetched again, to another file
        assert rig.recorder.total(CACHE_EVICTIONS) > 0
        assert _read(session, made, 4) == list(range(16, 20))
        session.release(made.slot)


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [(CONVERTED, {}), (AS_IT_LIES, {"shuffle": True}), (AS_IT_LIES, {"shuffle": False, "takes": False})],
    ids=["converted", "shuffled", "older client"],
)
async def test_other_runs_are_copied(memory: Path, recipe: str, changes: dict[str, object]) -> None:
    """Values of another type, samples in another order, and clients that cannot map files get slots."""
    takes = bool(changes.pop("takes", True))
    async with feeding(memory) as rig:
        session = await _opened(rig, recipe, **changes)
        made = await _made(session, 0, takes_entries=takes)
        assert made.batch.entry is None
        assert not _file_count(session)
        session.release(made.slot)


async def test_entries_on_a_disk_are_copied(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a mapped disk would end the trainer, so only files in memory are leased. One file tells of all."""
    looked: list[int] = []
    monkeypatch.setattr(leased_entries, "is_in_memory", looked.append)
    async with feeding(memory) as rig:
        session = await _opened(rig)
        made = await _made(session, 0)
        assert made.batch.entry is None
        view = session.slots.view(made.slot)
        assert np.frombuffer(view[: BATCH * 8], np.int64).tolist() == [0, 1, 2, 3]
        session.release(made.slot)
        session.release((await _made(session, 5)).slot)
        assert len(looked) == 1


async def test_a_cancelled_open_leaves_no_file_open(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may end while a thread opens the file. The file is closed, or an evicted entry would keep its memory."""
    begun, go = threading.Event(), threading.Event()
    really, paths = leased_entries._open, []

    def late(path: str) -> tuple[int, int, bool] | None:
        begun.set()
        go.wait(PATIENT_S)
        opened = really(path)
        paths.append(path)
        return opened

    monkeypatch.setattr(leased_entries, "_open", late)
    async with feeding(memory) as rig:
        session = await _opened(rig)
        making = asyncio.create_task(_made(session, 0))
        await asyncio.to_thread(begun.wait, 10)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making
        go.set()
        await until(lambda: paths and not _is_open(paths[0]))


async def test_few_entries_are_leased(memory: Path) -> None:
    """A trainer that keeps batches of many shards gets those of the third as copies; their memory is bounded."""
    async with feeding(memory) as rig:
        session = await _opened(rig)
        steps = ROWS // BATCH
        made = [await _made(session, shard * steps, 1) for shard in range(SHARDS)]
        assert [one.batch.entry is not None for one in made] == [True, True, False]
        for one in made:
            session.release(one.slot)
        assert not _file_count(session)


async def test_a_run_over_two_shards_is_copied(memory: Path) -> None:
    """A lease names one file, so the run at a border lies in its slot."""
    async with feeding(memory) as rig:
        session = await _opened(rig)
        made = await _made(session, ROWS // BATCH - 2, 4)
        assert made.batch.entry is None
        assert made.batch_count == 4
        session.release(made.slot)
