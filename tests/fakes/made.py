"""Objects in memory files, and what is made of them."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.conversion import Conversion
from feedd.shard_index import IndexLimits
from feedd.tables.making import make_shard
from feedd.tables.task import MakeTask
from feedd.values import ByteRange
from feedd.workers.calls import make_call
from feedd.workers.make_messages import answer_of, task_of
from feedd.workers.messages import ConvertedAnswer, MakeRequest, request_decoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.workers.messages import NeedRanges

URL = "s3://bucket/shard"
LIMIT_BYTES = 64 << 20


@dataclass
class Making:
    """One object and a place for its shard, at an offset."""

    source_fd: int
    out_fd: int
    size_bytes: int
    out_at: int = 4096

    def task(self, form: str, name: str, limit_bytes: int = LIMIT_BYTES, memory_bytes: int = LIMIT_BYTES) -> MakeTask:
        """Return the task of making it, all of the object being here."""
        spans = (ByteRange(0, self.size_bytes),) if self.size_bytes else ()
        fds = (self.source_fd, self.out_fd, self.out_at)
        return MakeTask(a_conversion(form), f"{URL}/{name}", self.size_bytes, spans, *fds, limit_bytes, memory_bytes)

    def written(self) -> bytes:
        """Return what was written."""
        return os.pread(self.out_fd, os.fstat(self.out_fd).st_size, self.out_at)


@contextmanager
def making(data: bytes) -> Iterator[Making]:
    """Yield a making of ``data``."""
    source, out = os.memfd_create("object"), os.memfd_create("made")
    try:
        os.truncate(source, len(data))
        os.pwrite(source, data, 0)
        yield Making(source, out, len(data))
    finally:
        os.close(source)
        os.close(out)


def a_conversion(text: str) -> Conversion:
    """Return the conversion that a text stands for."""
    conversion = Conversion.parse(text)
    assert conversion is not None
    return conversion


def answer_to(task: MakeTask) -> ConvertedAnswer | NeedRanges:
    """Do in this process what a worker does."""
    packet = make_call(task).packet(range(1), 1)
    request = request_decoder.decode(packet.payload)
    assert isinstance(request, MakeRequest)
    outcome = make_shard(task_of(request, packet.fds), IndexLimits(*request.limits))
    return answer_of(request.id, 0.0, outcome)


def made_of(form: str, name: str, data: bytes, limit_bytes: int = LIMIT_BYTES) -> tuple[str, bytes]:
    """Return format and bytes of what a worker would make, in this process."""
    with making(data) as it:
        task = it.task(form, name, limit_bytes)
        answer = answer_to(task)
        assert isinstance(answer, ConvertedAnswer)
        written = it.written()
        assert answer.size_bytes == len(written)
        return answer.format_name, written
