"""Cases 35 to 38: cached bytes that are not what was written. Each is a miss, counted, fetched again, never served."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.cache import entry_layout
from feedd.metrics import CACHE_ERRORS, CACHE_MISSES
from feedd.units import MIB
from tests.fakes.caches import PAGE, SHARD_BYTES, CacheRig
from tests.fakes.damage import ROOMY, filled, flip, path_of, served
from tests.fakes.fetchers import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.values import ObjectRef

LARGE_BYTES = 3 * MIB + 777  # four blocks
AGAIN_S = 1000.0  # longer than an entry found whole is trusted


@pytest.fixture
def rig(tmp_path: Path) -> CacheRig:
    """A cache over objects in memory."""
    return CacheRig(tmp_path / "cache")


async def damaged_in_use(rig: CacheRig, refs: list[ObjectRef], damage: Callable[[], None], reason: str) -> int:
    """Damage entries of a running cache, and again between two runs; return how many were fetched again each time."""
    async with rig.open(ROOMY) as cache:
        await served(rig, cache, refs)
        before = rig.fetcher.calls.total()
        damage()
        rig.clock.now_s += AGAIN_S
        await served(rig, cache, refs)
        again = rig.fetcher.calls.total() - before
        assert rig.recorder.total(CACHE_ERRORS, reason=reason) == again
        assert rig.recorder.total(CACHE_MISSES) == len(refs) + again
    damage()
    async with rig.open(ROOMY) as cache:
        await served(rig, cache, refs)
        await served(rig, cache, refs)
    assert rig.fetcher.calls.total() == before + 2 * again
    assert rig.recorder.total(CACHE_ERRORS) == 2 * again
    return again


@pytest.mark.parametrize("at", [0, 1, MIB - 1, MIB, 2 * MIB + 5, LARGE_BYTES - 1])
async def test_case_35_flipped_bit(rig: CacheRig, at: int) -> None:
    """One bit of a cached block that changed is a miss, counted and fetched again; it is never served."""
    ref, other = rig.shard("large", LARGE_BYTES), rig.shard("other")
    assert (
        await damaged_in_use(rig, [ref, other], lambda: flip(path_of(rig, ref), entry_layout.data_at(ref) + at), "torn")
        == 1
    )


@pytest.mark.parametrize("at", [0, 13, 60, 100])
async def test_case_35_flipped_bit_of_the_header(rig: CacheRig, at: int) -> None:
    """A header that changed makes its entry a miss."""
    ref = rig.shard("large", LARGE_BYTES)
    assert await damaged_in_use(rig, [ref], lambda: flip(path_of(rig, ref), at), "torn") == 1


async def test_case_35_found_before_it_is_asked_for(rig: CacheRig) -> None:
    """A wish is enough to find a damaged entry and fetch it anew, before its acquirer comes and without a pin."""
    ref = rig.shard("large", LARGE_BYTES)
    await filled(rig, ref)
    flip(path_of(rig, ref), entry_layout.data_at(ref) + 2 * MIB)
    async with rig.open(ROOMY) as cache:
        cache.prefetch([ref], "reader")
        await until(lambda: rig.fetcher.calls[ref.key] == 2 and cache.holds(ref))
        misses = rig.recorder.total(CACHE_MISSES)
        await served(rig, cache, [ref])
        assert rig.recorder.total(CACHE_MISSES) == misses
        cache.prefetch([], "reader")
    assert rig.recorder.total(CACHE_ERRORS, reason="torn") == 1


@pytest.mark.parametrize("keep_bytes", [0, 100, PAGE, PAGE + MIB, PAGE + LARGE_BYTES - 1])
async def test_case_36_truncated(rig: CacheRig, keep_bytes: int) -> None:
    """A file that lost its end is a miss, counted and fetched again."""
    ref, other = rig.shard("large", LARGE_BYTES), rig.shard("other")
    damage = lambda: os.truncate(path_of(rig, ref), keep_bytes)  # noqa: E731 - one of a kind
    assert await damaged_in_use(rig, [ref, other], damage, "vanished") == 1


async def test_case_37_swapped_blocks(rig: CacheRig) -> None:
    """Two whole blocks of one file that changed places are a miss."""
    ref = rig.shard("large", LARGE_BYTES)

    def damage() -> None:
        with path_of(rig, ref).open("r+b") as file:
            data = file.read()
            first, second = entry_layout.data_at(ref), entry_layout.data_at(ref) + MIB
            file.seek(first)
            file.write(data[second : second + MIB] + data[first : first + MIB])

    assert await damaged_in_use(rig, [ref], damage, "torn") == 1


async def test_case_37_swapped_files(rig: CacheRig) -> None:
    """Two entries of one length that changed places are two misses."""
    a, b = rig.shards(2)

    def damage() -> None:
        spare = rig.directory / "spare"
        path_of(rig, a).rename(spare)
        path_of(rig, b).rename(path_of(rig, a))
        spare.rename(path_of(rig, b))

    assert await damaged_in_use(rig, [a, b], damage, "torn") == 2


@pytest.mark.parametrize("version", [1, 3])
async def test_case_38_other_format_version(rig: CacheRig, version: int) -> None:
    """An entry whose header is of another version of the format is a miss."""
    ref = rig.shard("shard", SHARD_BYTES)

    def damage() -> None:
        with path_of(rig, ref).open("r+b") as file:
            file.seek(8)
            file.write(version.to_bytes(4, "little"))

    assert await damaged_in_use(rig, [ref], damage, "torn") == 1


@pytest.mark.parametrize("verb", ["preadv", "open"])
async def test_unreadable_file_is_fetched_again(rig: CacheRig, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """A block the disk cannot read any more is a miss, counted as such; it raises nowhere and nothing is mapped."""
    ref = rig.shard("shard")
    await filled(rig, ref)
    real = getattr(os, verb)
    refusals = [errno.EIO]

    def refuse(target: object, *args: object, **kwargs: object) -> object:
        whose = str(Path(f"/proc/self/fd/{target}").readlink()) if verb == "preadv" else str(target)
        if refusals and whose == str(path_of(rig, ref)):
            raise OSError(refusals.pop(), "input/output error")
        return real(target, *args, **kwargs)

    async with rig.open(ROOMY) as cache:
        monkeypatch.setattr(os, verb, refuse)
        await served(rig, cache, [ref])
        monkeypatch.undo()
    assert rig.fetcher.calls[ref.key] == 2
    assert rig.recorder.total(CACHE_ERRORS, reason="unreadable") == 1
