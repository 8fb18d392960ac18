"""The file that lists bad samples: one JSON line for each, limited in size.

If the file cannot be written, the epoch goes on.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from feedd import metrics
from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from feedd.protocols import Recorder
    from feedd.recipe.bad_sample_policy import Failure

_log = structlog.get_logger("feedd.sessions")
_KNOWN_MAX: Final = 1 << 16
_WRITE_BYTES: Final = 1 << 20
_TEXT_MAX: Final = 4096
_MODE: Final = 0o640


class QuarantineLine(msgspec.Struct, frozen=True):
    """A line of the file: one bad sample.

    Attributes:
        url: its shard, or the object that is the sample.
        key: its key.
        ordinal: its number in the shard, from 0; always 0 if an object is the sample.
        offset: first byte of the field in the shard, or of the sample if it lacks the field.
        field: the first field that failed.
        reason: why the field failed.
        epoch: the epoch in which the sample was found.
    """

    url: str
    key: str
    ordinal: int
    offset: int
    field: str
    reason: str
    epoch: int


class Quarantine:
    """Appends to one file. Before it grows beyond ``size_bytes`` it is renamed to ``<path>.1``, replacing the last one.

    A sample is written once per epoch, even if several jobs find it or a batch is made again. The daemon remembers the
    last 65,536 samples while it runs.
    """

    def __init__(self, path: Path, size_bytes: int, recorder: Recorder) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._recorder = recorder
        self._known: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._lock = threading.Lock()  # between threads that write; never held on the event loop

    async def note(self, epoch: int, failures: Iterable[Failure]) -> None:
        """Write samples that are not in the file yet; log samples that cannot be written."""
        fresh = [failure for failure in failures if self._is_new((failure.url, failure.ordinal, epoch))]
        if not fresh:
            return
        try:
            await LOCAL_FILES.run(self._append, epoch, fresh)
        except OSError as error:
            _log.warning("bad samples not written", path=str(self._path), count=len(fresh), error=str(error))
        else:
            self._recorder.count(metrics.PIPELINE_QUARANTINED, len(fresh))

    def _is_new(self, name: tuple[str, int, int]) -> bool:
        if name in self._known:
            return False
        self._known[name] = None
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return True

    def _append(self, epoch: int, failures: Sequence[Failure]) -> None:
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            pending: list[bytes] = []
            waiting_bytes = 0
            for failure in failures:
                line = msgspec.json.encode(_line(epoch, failure)) + b"\n"
                if pending and waiting_bytes + len(line) > min(_WRITE_BYTES, self._size_bytes):
                    self._write(b"".join(pending))
                    pending, waiting_bytes = [], 0
                pending.append(line)
                waiting_bytes += len(line)
            self._write(b"".join(pending))

    def _write(self, data: bytes) -> None:
        fd = self._open()
        try:
            held_bytes = os.fstat(fd).st_size
            if held_bytes and held_bytes + len(data) > self._size_bytes:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                os.close(fd)
                fd = -1
                fd = self._open()
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
        finally:
            if fd >= 0:
                os.close(fd)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(self._path, flags, _MODE)
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # a FIFO of another user, who would read what is written
            os.close(fd)
            raise FileExistsError(errno.EEXIST, "another kind of file is in the way", str(self._path))
        return fd


def _line(epoch: int, failure: Failure) -> QuarantineLine:
    texts = (text[:_TEXT_MAX] for text in (failure.url, failure.key, failure.field, failure.reason))
    url, key, field, reason = (text.encode("utf-8", "replace").decode() for text in texts)
    return QuarantineLine(url, key, failure.ordinal, failure.offset, field, reason, epoch)
