"""Copies all objects below a prefix to files with boto3's transfer manager, as ``aws s3 sync`` does."""

from __future__ import annotations

import sys
from pathlib import Path

import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager


def main() -> None:
    """Copy ``BUCKET PREFIX FOLDER``."""
    bucket, prefix, folder = sys.argv[1:]
    client = boto3.client("s3")
    keys = [
        found["Key"]
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        for found in page.get("Contents", ())
    ]
    with create_transfer_manager(client, TransferConfig()) as manager:
        futures = []
        for key in keys:
            path = Path(folder) / key.removeprefix(prefix)
            path.parent.mkdir(parents=True, exist_ok=True)
            futures.append(manager.download(bucket, key, str(path)))
        for future in futures:
            future.result()


if __name__ == "__main__":
    main()
