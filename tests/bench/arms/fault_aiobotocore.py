"""Arm: aiobotocore's ``get_object`` of one range."""

from __future__ import annotations

import asyncio
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from tests.bench.arms.faults import BUCKET, KEYS, REGION, TIMEOUT_S, http_range, report, settings


async def _read(key: str) -> bytes:
    config = AioConfig(read_timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S, s3={"addressing_style": "path"})
    options: dict[str, Any] = {"endpoint_url": settings()["url"], "region_name": REGION, "config": config, **KEYS}
    async with get_session().create_client("s3", **options) as client:
        answer = await client.get_object(Bucket=BUCKET, Key=key, Range=http_range())
        async with answer["Body"] as body:
            data: bytes = await body.read()
            return data


if __name__ == "__main__":
    report(lambda key: asyncio.run(_read(key)))
