"""Receiver: threads that wait for a whole part with ``MSG_WAITALL``, straight into the mapped file."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from tests.bench.ingest.arms import plain
from tests.bench.ingest.arms.job import Job, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.ingest.arms.job import Part


def _take(job: Job, views: dict[str, memoryview], parts: Iterator[Part]) -> None:
    with plain.connect(job, timeout_s=None) as connection:
        for part in parts:
            connection.sendall(plain.request(job, part))
            early = plain.read_head(connection)
            at = part.start + len(early)
            views[part.key][part.start : at] = early
            while at < part.end:
                with views[part.key][at : part.end] as window:
                    if isinstance(connection, ssl.SSLSocket):
                        count = connection.recv_into(window)
                    else:
                        count = connection.recv_into(window, 0, socket.MSG_WAITALL)
                assert count, f"expected {part.end - at} bytes more, got none"
                at += count


def main() -> None:
    """Run once."""
    job = Job.from_arguments()

    def transfer() -> None:
        with job.mappings() as views:
            job.in_threads(lambda parts: _take(job, views, parts))

    finish(job, job.measure(transfer))


if __name__ == "__main__":
    main()
