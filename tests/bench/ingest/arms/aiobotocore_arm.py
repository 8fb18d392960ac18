"""Contender: aiobotocore on uvloop, pieces copied into the mapped file as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import uvloop
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from tests.bench.ingest.arms.job import Job, finish, timed

if TYPE_CHECKING:
    from tests.bench.ingest.arms.job import Part


async def _run(job: Job) -> dict[str, Any]:
    config = AioConfig(
        max_pool_connections=job.parts_in_flight,
        s3={"addressing_style": "path" if job.endpoint else "auto"},
        response_checksum_validation="when_required",
    )
    opened = get_session().create_client(
        "s3", endpoint_url=job.endpoint or None, region_name=job.region, verify=job.ca_file or None, config=config
    )
    async with opened as client:
        first = await client.get_object(Bucket=job.bucket, Key=job.objects[0][0], Range="bytes=0-0")
        async with first["Body"] as body:
            await body.read()
        if job.recycled:
            await _transfer(client, job)
        with timed() as row:
            await _transfer(client, job)
        return row


async def _transfer(client: Any, job: Job) -> None:
    with job.mappings() as views:
        todo = deque(job.parts())

        async def work() -> None:
            while todo:
                await _take(client, job.bucket, part := todo.popleft(), views[part.key])

        async with asyncio.TaskGroup() as group:
            for _ in range(job.parts_in_flight):
                group.create_task(work())


async def _take(client: Any, bucket: str, part: Part, view: memoryview) -> None:
    asked = f"bytes={part.start}-{part.end - 1}"
    answer = await client.get_object(Bucket=bucket, Key=part.key, Range=asked)
    at = part.start
    async with answer["Body"] as body:
        async for piece, _ in body.raw_stream.content.iter_chunks():  # as they came: joining them would copy once more
            view[at : at + len(piece)] = piece
            at += len(piece)
    assert at == part.end, f"expected {part.size_bytes} bytes, got {at - part.start}"


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    finish(job, uvloop.run(_run(job)))


if __name__ == "__main__":
    main()
