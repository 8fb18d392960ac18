"""Bytes of bad samples come from the cache, and from nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from feedd.batching.recent_bad_samples import RecentBadSamples
from feedd.cache.pins import Pins
from feedd.clock import SystemClock
from feedd.daemon.sample_bytes import BYTES_MAX, sample_bytes
from feedd.errors import CacheUnavailable
from feedd.owner import Owner
from feedd.recipe.bad_sample_policy import Failure
from feedd.values import ObjectRef, ShardFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REF = ObjectRef("s3://b", "x.tar", 1000, "e")
TORN = Failure("s3://b/x.tar", "a", "jpg", "torn", ordinal=3, offset=10, size_bytes=5, ref=REF)


@dataclass
class _Cache:
    """A cache with one shard, whose pins are counted."""

    path: Path
    is_held: bool = True
    error: Exception | None = None
    pin_count: int = 0
    acquired: list[ObjectRef] = field(default_factory=list)

    def holds(self, _ref: ObjectRef) -> bool:
        return self.is_held

    async def acquire(self, refs: Sequence[ObjectRef]) -> Pins:
        self.acquired += refs
        if self.error is not None:
            raise self.error
        self.pin_count += 1
        return Pins((ShardFile(refs[0], str(self.path), 100),), self._release)

    def _release(self) -> None:
        self.pin_count -= 1


@dataclass
class _Pipeline:
    cache: _Cache
    bad_samples: RecentBadSamples = field(default_factory=lambda: RecentBadSamples(SystemClock()))


def _pipeline(folder: Path, failure: Failure, **facts: Any) -> Any:  # stands for the pipeline
    path = folder / "entry"
    path.write_bytes(bytes(100) + b"0123456789torn!and more")
    found = _Pipeline(_Cache(path, **facts))
    found.bad_samples.note(Owner.of_this_process(), 0, [failure], "dropped")
    return found


async def test_the_bytes_of_the_field_are_read(tmp_path: Path) -> None:
    """Exactly the field's bytes, behind the entry's header, and the pin ends."""
    pipeline = _pipeline(tmp_path, TORN)
    assert await sample_bytes(pipeline, 1) == b"torn!"
    assert pipeline.cache.pin_count == 0
    assert await sample_bytes(pipeline, 2) is None


async def test_nothing_is_fetched(tmp_path: Path) -> None:
    """A shard that the cache does not hold is not asked for; a cache that fails shows no bytes."""
    pipeline = _pipeline(tmp_path, TORN, is_held=False)
    assert await sample_bytes(pipeline, 1) is None
    assert pipeline.cache.acquired == []
    failing = _pipeline(tmp_path, TORN, error=CacheUnavailable("the disk is gone"))
    assert await sample_bytes(failing, 1) is None


@pytest.mark.parametrize(
    "failure",
    [replace(TORN, ref=None), replace(TORN, offset=-1), replace(TORN, size_bytes=-1), replace(TORN, size_bytes=0)],
    ids=["no shard", "no offset", "part of a table", "empty"],
)
async def test_a_sample_without_bytes_has_none(tmp_path: Path, failure: Failure) -> None:
    """Samples that lack the field, and values of tables, are not read."""
    pipeline = _pipeline(tmp_path, failure)
    assert await sample_bytes(pipeline, 1) is None
    assert pipeline.cache.acquired == []


async def test_large_samples_are_cut(tmp_path: Path) -> None:
    """Of a sample of gigabytes no more than a bound is read."""
    pipeline = _pipeline(tmp_path, replace(TORN, size_bytes=1 << 40))
    with (tmp_path / "entry").open("ab") as file:
        file.truncate(BYTES_MAX + 10_000)
    data = await sample_bytes(pipeline, 1)
    assert data is not None
    assert len(data) == BYTES_MAX
