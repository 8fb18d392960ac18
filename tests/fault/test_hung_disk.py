"""A cache on a real file system that is frozen: shards come past it, and the loop waits for nothing."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from feedd.catalog.sources import Sources
from feedd.fetch.fetch_options import SourceOptions
from feedd.flow.loop_thread import LoopThread
from feedd.metrics import CACHE_BYPASSED
from tests.fakes.bypass import QUICK, BypassRig, watch_of
from tests.fakes.caches import read
from tests.fakes.disks import frozen_disk
from tests.fakes.fetchers import until
from tests.fault.s3_rig import ANONYMOUS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.disks import FrozenDisk
    from tests.fakes.s3.server import S3Server
    from tests.unit.serve.certs import Authority

SIZES = (3 << 20, 100 << 10)
EACH = 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    """A disk of its own for the cache."""
    with frozen_disk(tmp_path) as disk:
        yield disk


async def test_an_epoch_goes_on_past_a_frozen_disk(
    disk: FrozenDisk, server: S3Server, authority: Authority, way: str
) -> None:
    """Large and small shards arrive whole by memory while a disk takes nothing; the disk is used again after that."""
    bodies = {
        f"{size}-{number}": bytes([number + 1]) * size for size, number in itertools.product(SIZES, range(2 * EACH))
    }
    for key, body in bodies.items():
        server.put("bucket", key, body)
    access = replace(ANONYMOUS, endpoint_url=server.url, ca_bundle=str(authority.ca_path))
    options = SourceOptions(part_size_bytes=1 << 20, s3={"*": access})
    rig = BypassRig(disk.folder / "cache", bypass_bytes=48 << 20)
    async with Sources(options, rig.recorder, rig.clock, LoopThread("feedd-fetch")) as sources:
        refs = {ref.key: ref for ref in await sources.resolve(["s3://bucket/"])}
        rig.health = replace(QUICK, slow_op_s=0.1)
        rig.fetcher = sources.fetcher  # type: ignore[assignment]  # what the daemon has
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with rig.open(capacity=(32 << 20) / 4096) as cache:
            before, behind = list(bodies)[::2], list(bodies)[1::2]
            for key in before:
                with await cache.acquire([refs[key]]) as pins:
                    assert read(pins.files[0]) == bodies[key]
            disk.hang()
            turning = asyncio.ensure_future(turn())
            for key in behind:
                with await cache.acquire([refs[key]]) as pins:
                    assert read(pins.files[0]) == bodies[key]
            for key in before:  # reading what is there needs no writing
                with await cache.acquire([refs[key]]) as pins:
                    assert read(pins.files[0]) == bodies[key]
            turning.cancel()
            assert rig.recorder.total(CACHE_BYPASSED) >= len(behind)
            assert turns > 100
            assert not disk.overdue
            disk.recover()
            await until(watch_of(cache).may_fill)
