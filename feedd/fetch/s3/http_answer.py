"""Heads and error bodies of HTTP/1.1 answers. Pure; the parser is llhttp in its strict mode."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from feedd.errors import BadResponse

_ERROR_BYTES_MAX = 64 * 1024  # S3's errors are a few hundred bytes; a longer page comes from a proxy and is not needed

INTERIM_MAX = 16
"""Answers of the kind 1xx that may precede the final answer; most stores send none."""
_HEAD_BYTES_MAX = 64 * 1024  # headers, and trailers of a chunked body, which could be endless


class _TooLongError(Exception):
    """The headers are too long."""


class Answer:
    """One answer, fed as it arrives: first its head, then, for an error, its body.

    Attributes:
        status: HTTP status; 0 until the head is complete.
        headers: names in lower case; repeated headers are joined by commas.
        address: the remote address.
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
                message = f"expected headers of at most {_HEAD_BYTES_MAX} bytes, got more"
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
        if self._head_bytes > _HEAD_BYTES_MAX:
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
