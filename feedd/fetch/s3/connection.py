"""One HTTP/1.1 connection: requests, heads and error bodies of answers, and silence. The parser is llhttp, strict.

``bodies`` decides how the bytes of a body get to the sink.
"""

from __future__ import annotations

import asyncio
import math
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from feedd.errors import BadResponse, CacheUnavailable, FeeddError
from feedd.fetch.s3.bodies import HEAD_BYTES_MAX, Files
from feedd.flow.range_sinks import MemorySink
from feedd.values import ReadProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.fetch.s3.bodies import Body
    from feedd.range_sink import RangeSink

_ERROR_BYTES_MAX = 64 * 1024  # S3's errors are a few hundred bytes; a longer page comes from a proxy and is not needed

INTERIM_MAX = 16
"""Answers of the kind 1xx that may precede the final answer; most stores send none."""
_HEADERS_BYTES_MAX = 64 * 1024  # headers, and trailers of a chunked body, which could be endless
_NO_BYTES = memoryview(b"")
_NOTHING = MemorySink(memoryview(bytearray()))
_NO_FILES = Files(None)
_NOBODYS = ReadProgress()  # never written, since every body belongs to an exchange


class _TooLongError(Exception):
    """The headers are too long."""


class Answer:
    """One answer, fed as it arrives: first its head, then, for an error, its body.

    Attributes:
        status: HTTP status; 0 until the head is complete.
        headers: names in lower case; repeated headers are joined by commas.
        address: the remote address; empty: the endpoint's is not known.
        complete: an error's body has ended, or was cut off because it was too long.
        first_bytes: bytes of a good answer's body that came with its head; only while its head is judged.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.address = ""
        self.complete = False
        self.first_bytes = memoryview(b"")
        self._keep_alive = False
        self._surplus = False
        self._head_bytes = 0
        self._body = bytearray()
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    @property
    def body(self) -> bytes:
        """The received body of an error; empty if it was too long."""
        return bytes(self._body)

    @property
    def keep_alive(self) -> bool:
        """Whether the connection can serve another request once the body is read."""
        return self._keep_alive and not self._surplus

    @property
    def ends_with_connection(self) -> bool:
        """Whether the body ends with the connection, which is accepted for an error only."""
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    @property
    def size_bytes(self) -> int | None:
        """Content-Length, if it alone defines the body's length, else None."""
        if "transfer-encoding" in self.headers or "content-length" not in self.headers:
            return None
        return int(self.headers["content-length"])  # llhttp accepts a single number only

    def feed(self, data: bytes | memoryview) -> None:
        """Feed the head, including its empty line, or a piece of an error's body.

        Raises:
            BadResponse: this is no HTTP/1.x answer.
        """
        assert self._parser is not None, "the answer has no parser any more"
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if isinstance(error.__context__, _TooLongError):
                message = f"expected headers of at most {_HEADERS_BYTES_MAX} bytes, got more"
                raise BadResponse(message, stage="source") from None
            raise BadResponse(f"expected an http answer, got {_line(error)}", stage="source") from error
        if self._surplus:
            raise BadResponse("expected one http answer, got more than that", stage="source")

    def drop_parser(self) -> None:
        """Drop the parser: a good answer's body bypasses it, and parser and answer refer to each other."""
        self._parser = None

    def on_message_begin(self) -> None:
        """Parser: a message starts; a second message was not requested."""
        self._surplus = self.status >= 200

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: a header, or a trailer of a chunked body, which counts as a header."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _HEADERS_BYTES_MAX:
            raise _TooLongError
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Parser: the empty line after the headers."""
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """Parser: a piece of an error's body."""
        self._body += data
        if len(self._body) > _ERROR_BYTES_MAX:
            self._body.clear()
            self.complete, self._keep_alive = True, False

    def on_message_complete(self) -> None:
        """Parser: the end of the body."""
        self.complete = True


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class LazyTimer:
    """Calls ``callback`` at a set time; moving the time costs only an assignment.

    The loop's timer behind it may fire in vain. That is cheaper than setting and cancelling a timer for each small
    request.

    Args:
        callback: called on the loop; the timer is off then.
    """

    def __init__(self, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._at_s = math.inf
        # The time is kept here, because uvloop's handle of a timer that is due at once does not tell it.
        self._due_s = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def set(self, at_s: float) -> None:
        """Fire at that time of the loop and no other; inf: never."""
        self._at_s = at_s
        if self._timer is not None and self._due_s > at_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and at_s < math.inf:
            self._due_s = at_s
            self._timer = self._loop.call_at(at_s, self._look)

    def stop(self) -> None:
        """Turn the timer off and leave no loop timer behind."""
        self._at_s = math.inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if self._loop.time() < self._at_s:
            self.set(self._at_s)
            return
        self._at_s = math.inf
        self._callback()


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an exchange may be silent.

    Attributes:
        longest_s: returns the longest time without anything new; called at each check.
        elsewhere: returns what has come elsewhere from the same server; compared for equality only.
        interim_max: answers of the kind 1xx that may precede the final answer, such as signs of life.
    """

    longest_s: Callable[[], float]
    elsewhere: Callable[[], object] = _nothing
    interim_max: float = INTERIM_MAX


class IdleTimeout:
    """Watches an exchange; checks twice per allowed silence.

    Args:
        patience: how long nothing new may come.
        came: returns how much has come; compared for equality only.
        fell: called when that did not change for so long; watching has stopped then.
    """

    def __init__(self, patience: Patience, came: Callable[[], object], fell: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._patience = patience
        self._came = came
        self._fell = fell
        self._timer = LazyTimer(self._look)
        self._seen: object = None
        self._since_s = 0.0

    def begin(self) -> None:
        """Start watching."""
        self._seen, self._since_s = self._news(), self._loop.time()
        self._timer.set(self._since_s + self._patience.longest_s() / 2)

    def end(self) -> None:
        """Pause watching."""
        self._timer.set(math.inf)

    def stop(self) -> None:
        """Stop watching and leave no timer behind."""
        self._timer.stop()

    def _look(self) -> None:
        now_s, seen = self._loop.time(), self._news()
        if seen != self._seen:
            self._seen, self._since_s = seen, now_s
        longest_s = self._patience.longest_s()
        ends_s = self._since_s + longest_s
        if now_s >= ends_s:
            self._fell()
        else:
            self._timer.set(min(now_s + longest_s / 2, ends_s))

    def _news(self) -> object:
        return self._came(), self._patience.elsewhere()


class StaleConnection(ConnectionError):
    """The server had closed a kept connection before any byte of the answer: the request may be sent once more."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class UnframedBody(BadResponse):
    """The head of a good answer does not tell how long its body is; another reader can receive such a body."""


class Connection(asyncio.BufferedProtocol):
    """Sends one request at a time. After an error from ``exchange`` the connection is closed.

    The sink is released in the same step in which ``exchange`` returns or raises. From then on the kernel gets no
    part of the sink, and no write to it begins. A write that a thread has begun is not waited for; see ``Writers``.

    Args:
        patience: longest silence while an answer is expected; noticed after up to half as much again.
        on_lost: called once, when the socket is closed.
        address: the remote address.
        files: chooses the way of each body.
    """

    def __init__(
        self,
        patience: Patience,
        on_lost: Callable[[Connection], object],
        address: str = "",
        files: Files = _NO_FILES,
    ) -> None:
        self.address, self._files = address, files
        self.round_trip_s: float | None = None  # TCP round trip when the connection opened; None: not known
        self._body: Body | None = None
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._scratch = memoryview(bytearray(HEAD_BYTES_MAX))  # bytes behind a head are copied out of it once
        self._shared: memoryview | None = None  # used instead while no byte of the answer has come
        self._transport: Any = None  # of whichever loop: uvloop's are no asyncio.Transport
        self._served_count = 0
        self._idle = LazyTimer(self.drop)
        self._interim_max = patience.interim_max
        self._idle_timeout = IdleTimeout(patience, self.come, self._silent)
        self._waiter: asyncio.Future[None] | None = None
        self._outcome: Answer | Exception | None = None
        self._surplus = False
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._sink: RangeSink = _NOTHING
        self._progress = _NOBODYS
        self._judge: Callable[[Answer], object] | None = None
        self._answer: Answer | None = None
        self._filled = 0  # bytes used of the scratch memory
        self._interim_count = 0
        self._received_bytes = 0  # bytes received in total

    def __repr__(self) -> str:
        return f"Connection({self._served_count} served)"

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent."""
        return self._waiter is None and self._transport is not None and not self._transport.is_closing()

    async def exchange(
        self, request: bytes, sink: RangeSink, judge: Callable[[Answer], object], progress: ReadProgress
    ) -> Answer:
        """Send ``request``, a head without a body, and return the answer.

        If the status is below 300, the body fills ``sink``, and ``judge`` has checked the head before any byte of the
        body. Otherwise the answer holds the body, and ``sink`` is untouched. ``progress`` follows the body.

        Raises:
            BadResponse: the answer is not HTTP, or the body is not delimited by its length.
            StaleConnection, OSError: the connection broke. TimeoutError: silence.
            FeeddError: as ``judge`` raised it.
        """
        assert self.reusable, "one request at a time"
        self._waiter = self._loop.create_future()
        self._sink, self._judge, self._progress, self._interim_count = sink, judge, progress, 0
        self._shared = self._files.with_head_buffer(sink)
        self._idle_timeout.begin()
        try:
            self._transport.write(request)
            await self._waiter
            answer = self._take_outcome()
        except BaseException:
            self.drop()
            raise
        finally:
            self._waiter = None
            self._idle_timeout.end()
        self._served_count += 1
        return answer

    def drop(self) -> None:
        """Abort the connection; the memory of an exchange is released at once."""
        self._let_go()
        self._idle.stop()
        self._idle_timeout.stop()
        if self._transport is not None:
            self._transport.abort()

    def park(self, idle_s: float) -> None:
        """Close the connection unless it is used again within ``idle_s``."""
        self._idle.set(self._loop.time() + idle_s)

    def unpark(self) -> None:
        """Cancel the close that ``park`` scheduled."""
        self._idle.set(math.inf)

    # ------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport: connected, with TLS if required."""
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in {socket.AF_INET, socket.AF_INET6}:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - all that is left is offered, so that one recv takes whatever is there
        """Transport: return the buffer for the next bytes."""
        return self._memory[self._filled :] if self._body is None else self._body.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Transport: handle the bytes that were put into the buffer."""
        self._received_bytes += nbytes
        if not self._owed:
            self._surplus = True  # bytes without a request: the connection is out of step
            self.drop()
            return
        try:
            if self._body is None:
                self._read(self._memory[: self._filled + nbytes])
            else:
                self._body.received(nbytes)
                if self._progress.filled_bytes == self._sink.size_bytes:
                    self._finish()
        except FeeddError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Transport: handle the loss of the connection."""
        answer = self._answer
        if self._owed:
            silent = not (self._filled or answer)
            if exc is None and answer is not None and self._body is None and answer.ends_with_connection:
                self._finish()
            elif self._body is None or not self._body.whole:  # else all bytes have come and are being written
                # not exc itself, because its traceback may refer to frames that hold the sink
                got = self._got + (f", then {type(exc).__name__}: {exc}" if exc else "")
                if self._filled:  # no head of an http answer; maybe a TLS alert
                    got += f", the last were {bytes(self._memory[: min(self._filled, 8)])!r}"
                kind = StaleConnection if silent and self._served_count else ConnectionResetError
                self._fail(kind(got))
        self._idle.stop()
        self._idle_timeout.stop()
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)

    # ------------------------------------------------------------ the answer

    def _read(self, data: memoryview) -> None:
        """Process received bytes outside a body; whatever matters is copied or written."""
        if self._answer is not None:  # body of an error
            self._read_error_body(self._answer, bytes(data))
            return
        while (end := (head := bytes(data[:HEAD_BYTES_MAX])).find(b"\r\n\r\n") + 4) >= 4:
            answer = Answer()
            answer.feed(head[:end])
            data = data[end:]
            if not 100 <= answer.status < 200:
                self._filled = 0
                self._read_behind_head(answer, data)
                return
            self._interim_count += 1
            if self._interim_count > self._interim_max:
                message = f"expected at most {self._interim_max} answers of the kind 1xx, got more"
                raise BadResponse(message, stage="source")
        # the final head is yet to come, maybe after a 1xx answer
        if data.nbytes >= HEAD_BYTES_MAX:
            message = f"expected a head of at most {HEAD_BYTES_MAX} bytes, got a longer one"
            raise BadResponse(message, stage="source")
        self._scratch[: data.nbytes] = data
        self._filled = data.nbytes

    def _read_behind_head(self, answer: Answer, data: memoryview) -> None:
        self._answer = answer
        answer.address = self.address
        if answer.status >= 300:
            self._read_error_body(answer, bytes(data))
            return
        answer.drop_parser()
        assert self._judge is not None
        answer.first_bytes = data
        self._judge(answer)
        answer.first_bytes = _NO_BYTES
        if answer.size_bytes is None:  # chunked, or until the connection closes
            raise UnframedBody("expected a body of a given length, got one without content-length", stage="source")
        size_bytes = self._sink.size_bytes
        if answer.size_bytes != size_bytes or len(data) > size_bytes:
            got = max(answer.size_bytes, len(data))
            raise BadResponse(f"expected {size_bytes} bytes, got {got}", stage="source")
        self._body = self._files.body(self._transport, self._loop, self._sink, self._progress, self._moved, data)
        if self._progress.filled_bytes == size_bytes:
            self._finish()

    def _moved(self, error: Exception | None) -> None:
        if error is None:
            self._finish()
        else:
            self._fail(error if isinstance(error, FeeddError) else ConnectionResetError(f"{self._got}: {error}"))

    @property
    def _got(self) -> str:
        return f"connection closed after {self._progress.filled_bytes} of {self._sink.size_bytes} bytes"

    def _read_error_body(self, answer: Answer, data: bytes) -> None:
        if data:
            answer.feed(data)
        if answer.complete:
            self._finish()

    def _finish(self) -> None:
        answer = self._answer
        assert answer is not None
        self._let_go()
        answer.drop_parser()
        if not answer.keep_alive:
            self.drop()
        self._answered(answer)

    def _fail(self, error: Exception) -> None:
        self.drop()
        self._answered(error)

    def _answered(self, outcome: Answer | Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            # not set_exception: the loop keeps the future for a while, and the error refers to frames with the sink
            self._outcome = outcome
            self._waiter.set_result(None)

    def _take_outcome(self) -> Answer:
        outcome, self._outcome = self._outcome, None
        try:
            if self._surplus:
                raise BadResponse("expected one http answer, got more than that", stage="source")
            assert outcome is not None
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            del outcome  # an error would refer to this frame, and this frame to the error

    def _let_go(self) -> None:
        """Give the kernel no part of the caller's memory from here on."""
        if self._body is not None:
            self._body.stop()
            self._body = None
        self._sink = _NOTHING
        self._progress = _NOBODYS
        self._judge = self._answer = self._shared = None
        self._filled = 0

    @property
    def _memory(self) -> memoryview:
        """Buffer for bytes outside a body: the shared one, until bytes must survive a callback."""
        return self._scratch if self._filled or self._shared is None else self._shared

    @property
    def _owed(self) -> bool:
        """Whether an exchange waits for its answer."""
        return self._waiter is not None and not self._waiter.done()

    def come(self) -> tuple[int, int]:
        """Return how many bytes have come, on the loop and through a thread."""
        return self._received_bytes, self._progress.filled_bytes

    def _silent(self) -> None:
        if self._owed:
            stuck = self._body is not None and self._body.waits_for_file
            head = f", after the beginning of a head: {bytes(self._memory[:16])!r}" if self._filled else ""
            came = f"no byte received within the read timeout{head}"
            self._fail(_no_disk() if stuck else TimeoutError(came))


def _no_disk() -> CacheUnavailable:
    message = "the disk does not take the received bytes"
    hint = "see the kernel's log for a failing disk, or pass another --cache-dir"
    return CacheUnavailable(message, hint=hint, stage="source")
