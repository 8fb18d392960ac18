"""The server's limit: what plain sockets take from it when nothing is kept.

Received into one buffer per connection, over and over; with ``discard`` (plain HTTP only) the kernel drops the bytes
without copying them at all.
"""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from tests.bench.ingest.arms import plain
from tests.bench.ingest.arms.job import Job, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.ingest.arms.job import Part

_BUFFER_BYTES = 1 << 20


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    flags = socket.MSG_TRUNC if job.own.get("discard") else 0

    def work(parts: Iterator[Part]) -> None:
        view = memoryview(bytearray(_BUFFER_BYTES))
        with plain.connect(job, timeout_s=None) as connection:
            for part in parts:
                connection.sendall(plain.request(job, part))
                left = part.size_bytes - len(plain.read_head(connection))
                while left:
                    window = view[: min(left, _BUFFER_BYTES)]
                    if isinstance(connection, ssl.SSLSocket):
                        count = connection.recv_into(window)
                    else:
                        count = connection.recv_into(window, 0, flags)
                    assert count, f"expected {left} bytes more, got none"
                    left -= count

    row = job.measure(lambda: job.in_threads(work))
    row["files"] = []
    finish(job, row)


if __name__ == "__main__":
    main()
