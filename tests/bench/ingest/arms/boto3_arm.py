"""Contender: boto3, ranges in threads, pieces written where they belong."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.bench.ingest.arms.boto3_client import open_client
from tests.bench.ingest.arms.job import Job, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.ingest.arms.job import Part

_PIECE_BYTES = 1 << 20


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    client = open_client(job)
    piece_bytes = job.own.get("piece_bytes", _PIECE_BYTES)

    def take(fds: dict[str, int], parts: Iterator[Part]) -> None:
        for part in parts:
            fd, at = fds[part.key], part.start
            asked = f"bytes={at}-{part.end - 1}"
            body = client.get_object(Bucket=job.bucket, Key=part.key, Range=asked)["Body"]
            while piece := body.read(piece_bytes):
                at += os.pwrite(fd, piece, at)

    finish(job, job.measure(lambda: job.write_in_threads(take)))


if __name__ == "__main__":
    main()
