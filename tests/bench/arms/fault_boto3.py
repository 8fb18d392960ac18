"""Arm: boto3's ``get_object`` of one range."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from tests.bench.arms.faults import BUCKET, KEYS, REGION, TIMEOUT_S, http_range, report, settings


def main() -> None:
    """Run."""
    config = Config(read_timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S, s3={"addressing_style": "path"})
    client: Any = boto3.client("s3", endpoint_url=settings()["url"], region_name=REGION, config=config, **KEYS)

    def read(key: str) -> bytes:
        body: bytes = client.get_object(Bucket=BUCKET, Key=key, Range=http_range())["Body"].read()
        return body

    report(read)


if __name__ == "__main__":
    main()
