"""Contender: obstore, ranges in threads, each written where it belongs; as a whole, which is cheaper than in pieces."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import obstore  # of the peers' environment
from obstore.store import S3Store  # ditto

from tests.bench.ingest.arms.job import Job, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.ingest.arms.job import Part

_PIECE_BYTES = 1 << 20


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    options: dict[str, Any] = {"region": job.region, "virtual_hosted_style_request": False}
    if job.endpoint:
        options |= {"endpoint": job.endpoint, "client_options": {"allow_http": True}}
    store = S3Store(job.bucket, **options)
    obstore.get_range(store, job.objects[0][0], start=0, end=1)
    whole = job.own.get("whole", True)

    def take(fds: dict[str, int], parts: Iterator[Part]) -> None:
        for part in parts:
            fd, at = fds[part.key], part.start
            if whole:
                os.pwrite(fd, obstore.get_range(store, part.key, start=at, end=part.end), at)
                continue
            found = obstore.get(store, part.key, options={"range": (at, part.end)})
            for piece in found.stream(min_chunk_size=_PIECE_BYTES):
                at += os.pwrite(fd, piece, at)

    finish(job, job.measure(lambda: job.write_in_threads(take)))


if __name__ == "__main__":
    main()
