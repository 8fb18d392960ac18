"""Heads and error bodies of HTTP/1.1 answers. Pure: bytes in, facts out; the parser is llhttp's, in its strict mode."""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from feedd.errors import BadResponse

_ERROR_BYTES_MAX = 64 * 1024  # S3's errors are a few hundred bytes; a proxy's page may be longer, and nobody reads it

_HEAD_BYTES_MAX = 64 * 1024  # of headers, and of the trailers of a chunked body, which may go on without end


class _TooLongError(Exception):
    """More headers than anybody needs."""


class Answer:
    """One answer, fed as it comes: first its head, then, where it is an error, its body.

    Attributes:
        status: HTTP status; 0 until the head is in.
        headers: names in lower case; those sent twice are joined by commas.
        address: where it came from.
        complete: the body of an error has come to its end, or was left where it became too long.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.address = ""
        self.complete = False
        self._keep_alive = False
        self._surplus = False
        self._head_bytes = 0
        self._body = bytearray()
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    @property
    def body(self) -> bytes:
        """What came of an error's body; empty where it was too long."""
        return bytes(self._body)

    @property
    def keep_alive(self) -> bool:
        """Whether the connection can serve another request once the body is read."""
        return self._keep_alive and not self._surplus

    @property
    def ends_with_connection(self) -> bool:
        """The body goes on until the connection is closed: fit for an error only."""
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    @property
    def size_bytes(self) -> int | None:
        """Content-Length, where it alone says how long the body is."""
        if "transfer-encoding" in self.headers or "content-length" not in self.headers:
            return None
        return int(self.headers["content-length"])  # llhttp has let nothing but one number through

    def feed(self, data: bytes | memoryview) -> None:
        """Take the head, up to and with its empty line, or a piece of an error's body.

        Raises:
            BadResponse: this is no HTTP/1.x answer.
        """
        assert self._parser is not None, "an answer in which nothing is expected any more"
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
        """Let go of the parser: the body of a good answer goes past it. Parser and answer hold each other."""
        self._parser = None

    def on_message_begin(self) -> None:
        """Parser: a message starts; a second one was not asked for."""
        self._surplus = self.status >= 200

    def on_header(self, name: bytes, value: bytes) -> None:
        """Parser: a header, or a trailer of a chunked body, which is as good as a header here."""
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _HEAD_BYTES_MAX:
            raise _TooLongError
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Parser: the empty line."""
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
