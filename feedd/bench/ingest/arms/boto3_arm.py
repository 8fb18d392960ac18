"""Contender: boto3, ranges in threads, pieces written where they belong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from feedd.bench.ingest.arms.job import Job, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.bench.ingest.arms.job import Part

_PIECE_BYTES = 1 << 20


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    config = Config(
        max_pool_connections=job.parts_in_flight,
        s3={"addressing_style": "path" if job.endpoint else "auto"},
        response_checksum_validation="when_required",
    )
    client = boto3.client(
        "s3", endpoint_url=job.endpoint or None, region_name=job.region, verify=job.ca_file or None, config=config
    )
    client.get_object(Bucket=job.bucket, Key=job.objects[0][0], Range="bytes=0-0")["Body"].read()
    piece_bytes = job.own.get("piece_bytes", _PIECE_BYTES)

    def take(fds: dict[str, int], parts: Iterator[Part]) -> None:
        for part in parts:
            fd, at = fds[part.key], part.start
            asked = f"bytes={at}-{part.end - 1}"
            body = client.get_object(Bucket=job.bucket, Key=part.key, Range=asked)["Body"]
            while piece := body.read(piece_bytes):
                at += os.pwrite(fd, piece, at)

    def transfer() -> None:
        with job.descriptors() as fds:
            job.in_threads(lambda parts: take(fds, parts))

    finish(job, job.measure(transfer))


if __name__ == "__main__":
    main()
