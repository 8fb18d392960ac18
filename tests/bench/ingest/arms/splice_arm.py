"""Receiver: threads that ``splice`` from the socket into the file, plain HTTP only.

The kernel writes whole pages into a file that nothing maps: there is nothing to clear first, and there are no faults.
"""

from __future__ import annotations

import fcntl
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.ingest.arms import plain
from tests.bench.ingest.arms.job import Job, finish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.ingest.arms.job import Part

_PIPE_BYTES = 1 << 20  # what an unprivileged user may ask for
_MOVE = 1  # SPLICE_F_MOVE, which os has no name for
_HEAD_BYTES = 4096


def _skip_head(connection: socket.socket) -> None:
    """Take the head, and not a byte more."""
    while (end := connection.recv(_HEAD_BYTES, socket.MSG_PEEK).find(b"\r\n\r\n")) < 0:
        pass  # loopback: the rest is on its way
    head = connection.recv(end + 4)
    assert head.startswith(b"HTTP/1.1 206"), f"expected 206, got {head[:80]!r}"


def take(job: Job, fds: dict[str, int], parts: Iterator[Part]) -> None:
    """Take parts, one after another over one connection, into their files."""
    out_end, in_end = os.pipe()
    try:
        fcntl.fcntl(in_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with plain.connect(job, timeout_s=None) as connection:
            for part in parts:
                connection.sendall(plain.request(job, part))
                _skip_head(connection)
                at = part.start
                while at < part.end:
                    count = os.splice(connection.fileno(), in_end, min(_PIPE_BYTES, part.end - at), flags=_MOVE)
                    assert count, f"expected {part.end - at} bytes more, got none"
                    until = at + count
                    while at < until:
                        at += os.splice(out_end, fds[part.key], until - at, offset_dst=at, flags=_MOVE)
    finally:
        os.close(out_end)
        os.close(in_end)


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    finish(job, job.measure(lambda: job.write_in_threads(partial(take, job))))


if __name__ == "__main__":
    main()
