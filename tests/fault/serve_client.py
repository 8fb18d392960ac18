"""A client process for the fault tests: opens, leases, says so, and waits to be killed.

Usage: serve_client.py SOCKET MODE CREDITS BATCHES: give that many credits, be ready after that many batches.
MODE: lease (with arena), inline, hold (keep an ephemeral daemon).
"""

from __future__ import annotations

import mmap
import queue
import socket
import sys
import time
from typing import Any, cast

import grpc

from feedd.wire import feedd_pb2 as pb
from feedd.wire.feedd_pb2_grpc import FeedStub

_KEPT: list[mmap.mmap] = []  # mapped until this process is killed


def main() -> None:
    """Do as told, print ``ready``, and stay."""
    path, mode, credit_count, batch_count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    lifeline = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if mode == "hold":
        lifeline.connect(f"{path}.arena")
        lifeline.sendall(b"HOLD!" + bytes(16))
        assert lifeline.recv(1) == b"\x01"
    else:
        call = _stream(path, mode, (credit_count, batch_count), lifeline)
        assert call.is_active(), "the stream must still be there when this process is killed"
    print("ready", flush=True)
    time.sleep(600)


def _stream(path: str, mode: str, counts: tuple[int, int], lifeline: socket.socket) -> grpc.Call:
    stub = FeedStub(grpc.insecure_channel(f"unix:{path}"))  # type: ignore[no-untyped-call]  # generated
    opened = stub.Open(
        pb.OpenRequest(
            version=pb.ProtocolVersion(major=1),
            urls=["s3://bucket/"],
            recipe=pb.Recipe(batch_size=4),
            prefetch_batches=4,
        ),
        timeout=30,
    )
    if mode == "lease":
        lifeline.connect(opened.arena.socket_path)
        lifeline.sendall(b"ARENA" + opened.arena.token)
        answer, fds, _, _ = socket.recv_fds(lifeline, 1, 1)
        assert answer == b"\x01"
        arena = mmap.mmap(fds[0], opened.arena.size_bytes)
        assert arena[0] == 0
        _KEPT.append(arena)
    requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
    start = pb.StreamStart(session_id=opened.session_id, next=pb.Cursor())
    requests.put(pb.StreamRequest(start=start, credits=counts[0]))
    count = 0
    call: Any = stub.Stream(iter(requests.get, None))
    while count < counts[1]:
        count += len(next(call).batches)
    return cast("grpc.Call", call)


if __name__ == "__main__":
    main()
