"""The stream of the log: whatever the descriptor answers, nothing is raised, and each lost line is counted."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from feedd import metrics
from feedd.flow import log_sink
from feedd.flow.log_sink import LogSink
from feedd.observe.logs import configure_logging, count_dropped
from feedd.observe.recent_log import RECENT
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator

_ERRNOS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EPIPE,
    errno.EBADF,
    errno.EAGAIN,
    errno.EINTR,
    errno.EFBIG,
    errno.ENXIO,
    errno.ESTALE,
)
_LINES = [f"line {number} of ten, with é and \U0001f642\n" for number in range(10)]


class _Descriptor:
    """A descriptor that answers as its script says, and then takes everything.

    Args:
        script: an errno to raise, or the most bytes to take, for each write in turn; None: take all of them.
    """

    def __init__(self, script: list[OSError | ValueError | int | None]) -> None:
        self.taken = b""
        self._script = list(script)

    def write(self, data: bytes | memoryview) -> int:
        """Answer one write."""
        answer = self._script.pop(0) if self._script else None
        if isinstance(answer, Exception):
            raise answer
        count = len(data) if answer is None else min(answer, len(data))
        self.taken += bytes(data[:count])
        return count


def _check(descriptor: _Descriptor) -> None:
    """Write ten lines, then one when all works: the lines and counts that arrived make up all that were written."""
    sink, recorder = LogSink(None, descriptor.write), 0
    for line in _LINES:
        assert sink.write(line) == len(line)
        sink.flush()
        recorder += sink.settle()
    descriptor._script.clear()
    sink.write("the last line\n")
    recorder += sink.settle()
    text = descriptor.taken.decode(errors="replace")
    whole = [line for line in text.splitlines(keepends=True) if line in _LINES]
    said = sum(map(int, re.findall(r"^feedd: log lines were dropped: (\d+) \(.+\)$", text, re.MULTILINE)))
    assert len(set(whole)) == len(whole)
    assert len(whole) + said == len(_LINES)
    assert recorder == said
    assert text.endswith("the last line\n")


@pytest.mark.parametrize("number", _ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("times", [1, 3])
def test_each_errno_at_each_write(number: int, at: int, times: int) -> None:
    """A write that fails costs its line only, and the next line that is written follows the count of lost lines."""
    error = OSError(number, os.strerror(number))
    _check(_Descriptor([*[None] * at, *[error] * times]))
    _check(_Descriptor([*[None] * at, 3, *[error] * times]))


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.integers(0, 40),
            st.sampled_from([OSError(number, "x") for number in _ERRNOS]),
            st.just(ValueError("I/O operation on closed file")),
        ),
        max_size=40,
    )
)
def test_any_answers_in_any_order(script: list[OSError | ValueError | int | None]) -> None:
    """Partial writes and errors in any order lose no line without counting it."""
    _check(_Descriptor(script))


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Standard error may be replaced; logging and the recent log are restored."""
    RECENT.clear()
    yield monkeypatch
    RECENT.clear()
    structlog.reset_defaults()


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_log_tells_its_losses_in_its_own_form(form: str, stderr: pytest.MonkeyPatch) -> None:
    """Lost lines are kept in the recent log, counted by the metric, and reported without a further line."""
    full = OSError(errno.ENOSPC, "No space left on device")
    descriptor, recorder = _Descriptor([full, full, full]), TallyRecorder()
    stderr.setattr(sys, "stderr", LogSink(None, descriptor.write))
    configure_logging("json" if form == "json" else "text", fields={"lane": 3})
    structlog.get_logger().warning("disk is slow", disk="nvme0")
    structlog.get_logger().info("not kept")
    count_dropped(recorder)
    assert recorder.total(metrics.LOG_DROPPED) == 2
    assert not descriptor.taken
    assert [(line.text.split(",")[0], line.count) for line in RECENT.lines()] == [
        ("disk is slow", 1),
        ("log lines were dropped", 2),
    ]
    count_dropped(recorder)
    assert recorder.total(metrics.LOG_DROPPED) == 2
    said = descriptor.taken.decode()
    if form == "json":
        event = json.loads(said)
        assert list(event)[:3] == ["time", "level", "event"]
        assert {"level": "warning", "count": 2, "error": "No space left on device", "lane": 3}.items() <= event.items()
    else:
        assert "log lines were dropped" in said
    count_dropped(recorder)
    assert descriptor.taken.decode() == said


def test_a_stream_that_is_missing_or_closed(stderr: pytest.MonkeyPatch) -> None:
    """Without standard error, and with one that was closed, log lines and prints are no errors."""
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        stderr.setattr(sys, "stderr", stream)
        configure_logging("json")
        structlog.get_logger().error("a")
        print("b", file=LogSink.of(stream))


@pytest.fixture(params=["pipe", "own pipe", "non-blocking pipe", "terminal", "own terminal"])
def unread(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """Both ends of a pipe or terminal that nobody reads: where to read, where to write."""
    reader, writer = os.openpty() if request.param.endswith("terminal") else os.pipe()
    if request.param == "non-blocking pipe":
        os.set_blocking(writer, False)
    if request.param.startswith("own"):
        shared = os.dup(writer)
        log_sink._stop_blocking(writer)
        assert (os.get_blocking(shared), os.get_blocking(writer)) == (True, False)
        os.close(shared)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def test_a_full_buffer_keeps_no_one_waiting(unread: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody reads, a write ends; when it is read again, the count and the next line arrive."""
    monkeypatch.setattr(log_sink, "WAIT_S", 0.0)
    reader, writer = unread
    sink = LogSink.on(writer)
    for _ in range(3000):
        sink.write("x" * 99 + "\n")
    os.set_blocking(reader, False)
    found = b""
    for _ in range(100):
        try:
            found += os.read(reader, 1 << 20)
        except BlockingIOError:
            sink.write("the last line\n")
            if b"the last line" in found:
                break
    text = found.decode().replace("\r", "")
    dropped = sum(map(int, re.findall(r"^feedd: log lines were dropped: (\d+) ", text, re.MULTILINE)))
    assert sink.settle() == dropped > 0
    assert len(re.findall(r"^x{99}$", text, re.MULTILINE)) + dropped == 3000


def test_a_line_larger_than_the_pipe_arrives_while_it_is_read() -> None:
    """A reader that reads gets the whole of a long line, however small the pipe is."""
    reader, writer = os.pipe()
    found = []

    def read() -> None:
        with os.fdopen(reader, "rb") as file:
            found.append(file.read())

    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    reading = threading.Thread(target=read)
    reading.start()
    sink = LogSink.on(writer)
    sink.write("y" * 200_000 + "\n")
    os.close(writer)
    reading.join()
    assert found == [b"y" * 200_000 + b"\n"]
    assert sink.settle() == 0


_PROGRAM = """
import atexit, os, sys
from feedd.flow.log_sink import take_stderr
from feedd.observe.logs import configure_logging
take_stderr()
configure_logging("json")
import logging
logging.getLogger("x").warning("a %d", "wrong arguments")
print("b" * 9999, file=sys.stderr)
atexit.register(lambda: print("c", file=sys.stderr))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
assert min(held) > 2, held
if sys.argv[1] == "raise":
    raise ValueError("an uncaught error")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow  # processes
@pytest.mark.parametrize("how", ["full", "closed", "all closed", "reader gone", "terminal gone", "nobody reads"])
@pytest.mark.parametrize(("argument", "status"), [("0", 0), ("3", 3), ("raise", 1)])
def test_a_program_ends_as_it_would(how: str, argument: str, status: int) -> None:
    """Whatever becomes of standard error, prints, tracebacks and the end of the interpreter keep the exit status."""
    reader, writer = pty.openpty() if how == "terminal gone" else os.pipe()
    if how in {"reader gone", "terminal gone"}:
        os.close(reader)
    if how == "nobody reads":
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    redirected = {"full": "2>/dev/full", "closed": "2>&-", "all closed": "<&- >&- 2>&-"}.get(how, f"2>&{writer}")
    command = ["bash", "-c", f'exec "$0" -c "$1" "$2" {redirected}', sys.executable, _PROGRAM, argument]
    done = subprocess.run(command, check=False, pass_fds=[writer], timeout=60)
    assert done.returncode == status
    os.close(writer)
    if how not in {"reader gone", "terminal gone"}:
        os.close(reader)
