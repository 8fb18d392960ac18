"""What keeps the first batch of converted shards from waiting: told indexes, outlines, and libraries imported early."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from feedd.conversion import Conversion
from feedd.tables.columns import head_params
from feedd.tables.converter import Converter
from feedd.tables.facts import ConversionLog
from feedd.tables.objects import CHARGE_BYTES_MAX
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until
from tests.fakes.files import parquet_of
from tests.fakes.forms import FORM, MadeRig, make, same_form

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[MadeRig]:
    """A cache whose shards nobody has made yet."""
    with same_form():
        yield MadeRig(tmp_path / "cache", conversion=FORM, made_before=False, facts=ConversionLog(tmp_path / "made"))


async def test_a_conversion_tells_the_index_of_its_table(rig: MadeRig) -> None:
    """Into memory and into an entry alike; a daemon that starts later has the shard, and reads the index itself."""
    ref = replace(rig.fetcher.put("a.parquet", parquet_of(n=range(9))), conversion=Conversion("parquet"))
    text = replace(rig.fetcher.put("b.parquet", parquet_of(n=["b"])), conversion=Conversion("parquet"))
    async with rig.open_made() as cache:
        assert cache.index_of(ref) is None
        (await cache.acquire([ref, text])).release()
        index = cache.index_of(ref)
        assert index is not None
        assert (index.fields, index.sample_count) == (("n",), 9)
        assert cache.index_of(text) is cache.index_of(replace(ref, conversion=None)) is None
    async with rig.open_made() as cache:
        (await cache.acquire([ref])).release()
        assert cache.index_of(ref) is None
        await cache.discard(ref)
        (await cache.acquire([ref])).release()
        again = cache.index_of(ref)
        assert again is not None
        assert (again.fields, again.strides, again.sample_count) == (index.fields, index.strides, 9)


async def test_outlines_wait_for_no_conversion(rig: MadeRig) -> None:
    """An open needs the list of columns now; conversions that run may be for later."""
    big = rig.shard("big", CHARGE_BYTES_MAX)
    small = rig.fetcher.put("a.parquet", parquet_of(n=range(9)))
    rig.fetcher.hold(big)
    converter = Converter(rig.fetcher, make, ConversionLog(), rig.recorder, limit_bytes=1 << 30, makings=1)
    running = asyncio.ensure_future(converter.bring(big, lambda: 0.0))
    await until(lambda: rig.fetcher.running)
    outline, whole = (replace(small, conversion=Conversion("parquet", text)) for text in (head_params(""), ""))
    waiting = asyncio.ensure_future(converter.bring(whole, lambda: 0.0))
    shard = await asyncio.wait_for(converter.bring(outline, lambda: 0.0), PATIENT_S)
    assert shard in converter.fresh
    assert not waiting.done()
    assert rig.fetcher.running == {big.key}
    rig.fetcher.release(big)
    await asyncio.gather(running, waiting)
    converter.fresh.keep_only(lambda _: False)


async def test_workers_are_told_what_will_be_converted(rig: MadeRig) -> None:
    """Before the object is fetched; not at all if the cache has the shard."""
    ref = rig.shard("a")
    told: list[tuple[str, int]] = []
    for _ in range(2):
        async with rig.open_made() as cache:
            cache._converter.expect = lambda name: told.append((name, rig.fetcher.calls[ref.key]))
            (await cache.acquire([ref])).release()
    assert told == [(FORM, 0)]
