"""Arm: s3transfer, the whole object in parts, through boto3's ``download_fileobj``."""

from __future__ import annotations

import io
from typing import Any

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from tests.bench.arms.faults import BUCKET, KEYS, PART_BYTES, REGION, TIMEOUT_S, report, settings


def main() -> None:
    """Run."""
    config = Config(read_timeout=TIMEOUT_S, connect_timeout=TIMEOUT_S, s3={"addressing_style": "path"})
    client: Any = boto3.client("s3", endpoint_url=settings()["url"], region_name=REGION, config=config, **KEYS)
    # boto3 takes awscrt's transfers by itself where that is installed, on some machines
    transfer = TransferConfig(
        multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, preferred_transfer_client="classic"
    )

    def read(key: str) -> bytes:
        target = io.BytesIO()
        client.download_fileobj(BUCKET, key, target, Config=transfer)
        return target.getvalue()

    report(read)


if __name__ == "__main__":
    main()
