"""A decode worker: ``python -m feedd.workers.worker DESCRIPTOR PARENT_PID [NICE [CPU,... [MEMORY_BYTES [READABLE]]]]``.

The pool starts it with one end of a SEQPACKET socket pair. It uses no network and no asyncio: it reads a request,
executes it and answers. It exits when the other end closes, and the kernel kills it when its daemon dies in any way.
"""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import json
import os
import select
import socket
import sys

from feedd.errors import BadShard
from feedd.flow.log_sink import take_stderr
from feedd.flow.parent_death import end_with
from feedd.formats.format_registry import built_in
from feedd.tables.memory import limit_process
from feedd.workers import sandbox
from feedd.workers.build import build_digest
from feedd.workers.executor import Executor
from feedd.workers.messages import (
    DESCRIPTORS_MAX,
    MESSAGE_BYTES_MAX,
    PROTOCOL,
    Answer,
    Attach,
    Detach,
    Failed,
    Hello,
    Prepare,
    ReportStart,
    Started,
    encode,
    request_decoder,
)
from feedd.workers.shards import REST_S

_DESCRIPTORS_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * array.array("i").itemsize)
# Plain ints, because the flags of the socket module are enums, which are slow to combine.
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_CUT_OFF = int(socket.MSG_TRUNC)
_FDS_LOST = int(socket.MSG_CTRUNC)
_IDLE_S = 0.1  # without a request, until a worker imports what it may need later


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next packet and its descriptors; ``b""`` at the end.

    If this process may open no more files, the packet comes without descriptors, and their users must check.

    Raises:
        OSError: receiving failed, or the packet is over the limit, so that the kernel kept only a part.
    """
    data, control, flags, _ = sock.recvmsg(MESSAGE_BYTES_MAX, _DESCRIPTORS_BYTES, _CLOEXEC)
    fds = array.array("i")
    for level, kind, payload in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    if flags & (_CUT_OFF | _FDS_LOST):
        while fds:
            os.close(fds.pop())
    if flags & _CUT_OFF:
        raise OSError(errno.EMSGSIZE, f"expected a packet of at most {MESSAGE_BYTES_MAX} bytes")
    return data, list(fds)


def _too_much(reply: Answer) -> Failed:
    """Return the error for an answer that fits no packet because it names very many fields."""
    message = f"expected an answer of at most {MESSAGE_BYTES_MAX} bytes, got more: a shard with thousands of fields"
    return Failed(reply.id, reply.busy_s, BadShard.kind, message, "", "name the columns you need in fields=")


def _answer(sock: socket.socket, reply: Answer, fds: list[int]) -> None:
    try:
        packet, fds_sent = encode(reply), fds
        if len(packet) > MESSAGE_BYTES_MAX:  # the receiver would cut it off
            packet, fds_sent = encode(_too_much(reply)), []
        socket.send_fds(sock, [packet], fds_sent)
    finally:
        for fd in fds:
            os.close(fd)


def serve(sock: socket.socket, memory_bytes: int = 0) -> None:
    """Answer requests until the other end closes; ``memory_bytes``: see ``Executor``."""
    executor = Executor(memory_bytes)
    waiting = select.poll()
    waiting.register(sock, select.POLLIN)
    sock.send(encode(Hello(PROTOCOL, build_digest())))
    built_in()  # imports all formats, before the first shard waits for that
    limit_process(memory_bytes)
    later: Prepare | None = None
    while True:
        if later is not None and not waiting.poll(1000 * _IDLE_S):
            executor.prepare(later)
            later = None
        if executor.keeps and not waiting.poll(1000 * REST_S):
            executor.rest()
        data, fds = receive(sock)
        if not data:
            return
        try:
            request = request_decoder.decode(data)
            if isinstance(request, Attach):
                executor.attach(request.arena_id, fds[0] if fds else None, request.size_bytes)
                continue
            if isinstance(request, Detach):
                executor.detach(request.arena_id)
                continue
            if isinstance(request, Prepare):
                if request.when_idle:
                    later = request
                else:
                    executor.prepare(request)
                continue
            if isinstance(request, ReportStart):
                sock.send(encode(Started(request.id)))
                continue
            reply, answered = executor.run(request, fds)
        finally:
            for fd in fds:
                os.close(fd)
        _answer(sock, reply, answered)


def main(arguments: list[str]) -> int:
    """Serve requests until the daemon closes the connection."""
    take_stderr()  # a codec that prints must not fail because of that
    descriptor, parent_pid, nice = (int(argument) for argument in (*arguments, "0")[:3])
    if not end_with(parent_pid):
        raise SystemExit(1)
    if len(arguments) > 3 and arguments[3] != "all":
        try:
            os.sched_setaffinity(0, {int(cpu) for cpu in arguments[3].split(",")})
        except OSError as error:
            raise SystemExit(f"feedd decode worker: expected to run on cores {arguments[3]}, got: {error}") from error
    if nice:
        os.nice(nice)
    memory_bytes = int(arguments[4]) if len(arguments) > 4 else 0
    if len(arguments) > 5:
        sandbox.enter(json.loads(arguments[5]))
    gc.freeze()  # objects created by imports are never garbage
    with socket.socket(fileno=descriptor) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        serve(sock, memory_bytes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
