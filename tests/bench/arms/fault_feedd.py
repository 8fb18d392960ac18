"""Arm: the daemon's own sources, the whole object in parts."""

from __future__ import annotations

import asyncio

from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.range_sinks import MemorySink
from feedd.observe.recorder import NullRecorder
from tests.bench.arms.faults import BUCKET, PART_BYTES, REGION, TIMEOUT_S, report, settings


async def _read(key: str) -> bytes:
    options = SourceOptions(
        part_size_bytes=PART_BYTES,
        connect_timeout_s=TIMEOUT_S,
        read_timeout_s=TIMEOUT_S,
        s3={"*": S3Options(endpoint_url=settings()["url"], region=REGION, anonymous=True)},
    )
    async with Sources(options, NullRecorder(), SystemClock()) as sources:
        (ref,) = await sources.resolve([f"s3://{BUCKET}/{key}"])
        target = bytearray(ref.size_bytes)
        await sources.fetcher.fetch(ref, MemorySink(memoryview(target)))
        return bytes(target)


if __name__ == "__main__":
    report(lambda key: asyncio.run(_read(key)))
