"""TLS: what connections to stores trust and show, and the layer between a plain transport and the protocol above.

The event loop decrypts only handshakes, heads and small bodies. The thread that moves a large body borrows the cipher,
while the loop's own TLS would decrypt every body on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feedd.errors import BadConfig
from feedd.fetch.once import Once
from feedd.fetch.s3.transfer import Cipher
from feedd.flow.file_versions import file_version
from feedd.flow.pools import LOCAL_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.fetch.fetch_options import S3Options
    from feedd.fetch.s3.connection import Connection
    from feedd.fetch.s3.pool import ProxyTunnel
    from feedd.flow.file_versions import FileVersion

_LOOK_S: Final = 60.0
"""How long a bundle is used before its file is looked at again."""
_VARIABLES: Final = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.[0-9]+")
_RECORD_BYTES = 16 << 10
_RECEIVE_BYTES = 64 << 10  # bytes read at a time on the loop: heads, small bodies, and the start of large ones


def trusting(path: str, shown: Shown | None = None) -> ssl.SSLContext:
    """Return the TLS context of a file or a folder of certificates.

    All connections that trust and show the same files share a context, since reading the files takes 30 ms.

    Raises:
        BadConfig: a file is missing, cannot be read, or does not hold what it should.
    """
    versions = () if shown is None else shown.versions()
    try:
        return _trusting(path, file_version(path), shown, versions)
    except OSError as error:  # ssl.SSLError is one
        pem = (
            "it holds no certificates in PEM form" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        )
        raise _unusable(path, pem) from error


@functools.lru_cache(maxsize=16)
def _trusting(
    path: str, _version: FileVersion, shown: Shown | None, _versions: tuple[FileVersion, ...]
) -> ssl.SSLContext:
    cafile, capath = _file_or_folder(path)
    context = ssl.create_default_context(cafile=cafile, capath=capath)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if shown is not None:
        shown.load(context)
    return context


def _file_or_folder(path: str) -> tuple[str | None, str | None]:
    """Return a file, or a folder whose names are hashes as OpenSSL looks them up; the other is None."""
    if not Path(path).is_dir():
        return path, None
    if not any(_HASHED.fullmatch(name) for name in os.listdir(path)):  # noqa: PTH208 - names are enough
        raise _unusable(path, "the folder holds no names like 1a2b3c4d.0; openssl rehash makes them")
    return None, path


def _unusable(path: str, reason: str) -> BadConfig:
    named = next((name for name in _VARIABLES if os.environ.get(name) == path), "")
    hint = f"correct {named or 'ca_bundle'}{'' if named else ' in feedd.toml or in the AWS profile'}"
    message = f"the file of certificate authorities cannot be used: {reason}"
    return BadConfig(message, object=path, hint=f"{hint}, which names it", stage="source")


@dataclass(frozen=True, slots=True)
class Shown:
    """The certificate that a client shows to a server that asks for one.

    Attributes:
        certificate: path of a PEM file with the certificate and those of its issuers.
        key: path of the PEM file with its private key; empty: ``certificate`` holds it.
    """

    certificate: str
    key: str = ""

    def versions(self) -> tuple[FileVersion, ...]:
        """Return the versions of the files; blocks.

        Raises:
            BadConfig: a file cannot be looked at.
        """
        return tuple(_version_of(option, path) for option, path in self._files())

    def load(self, context: ssl.SSLContext) -> None:
        """Let a context show the certificate; blocks.

        Raises:
            BadConfig: a file cannot be read, is no PEM file, is encrypted, or the key is another certificate's.
        """
        option, path = self._files()[-1]
        try:
            context.load_cert_chain(self.certificate, self.key or None, password=_no_passphrase)
        except _EncryptedError as error:
            raise _not_shown(option, path, "the key is encrypted: write it without a passphrase") from error
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                reason = f"the key does not belong to the certificate of {self.certificate}"
            elif _has_certificate(self.certificate):
                reason = "it holds no private key in PEM form"
            else:
                option, path, reason = *self._files()[0], "it holds no certificate in PEM form"
            raise _not_shown(option, path, reason) from error
        except OSError as error:
            for option, path in self._files():  # OpenSSL does not name the file
                _version_of(option, path)
            raise _not_shown(option, path, error.strerror or str(error)) from error

    def _files(self) -> list[tuple[str, str]]:
        named = [("client_certificate", self.certificate), ("client_key", self.key)]
        return [(option, path) for option, path in named if path]


class _EncryptedError(Exception):
    """A key needs a passphrase, which OpenSSL would ask of the terminal."""


def _no_passphrase() -> str:
    raise _EncryptedError


def _has_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except ssl.SSLError:
        return False
    return True


def _version_of(option: str, path: str) -> FileVersion:
    try:
        return file_version(path)
    except OSError as error:
        raise _not_shown(option, path, error.strerror or str(error)) from error


def _not_shown(option: str, path: str, reason: str) -> BadConfig:
    hint = f"correct {option} in the bucket's table of feedd.toml"
    return BadConfig(f"the client certificate cannot be used: {reason}", object=path, hint=hint, stage="source")


def shown_by(s3: S3Options) -> Shown | None:
    """Return the client certificate of a bucket; None: it has none."""
    return Shown(s3.client_certificate, s3.client_key or "") if s3.client_certificate else None


class Trust:
    """The TLS context for one store.

    Authorities that a bundle gains count for connections made later. Those that it loses count until the context goes,
    because a context in use cannot forget. A client certificate that changes counts for connections made later.

    Args:
        authorities: returns the path of the bundle, a file or a folder.
        shown: the client certificate; None: there is none.
    """

    def __init__(self, authorities: Callable[[], str], shown: Shown | None = None) -> None:
        self._authorities = authorities
        self._shown = shown
        self._context: Once[tuple[str, ssl.SSLContext]] = Once(lambda: LOCAL_FILES.run(self._make))
        self._version: FileVersion | None = None
        self._shown_versions: tuple[FileVersion, ...] = ()
        self._looked_s = 0.0

    async def context(self) -> ssl.SSLContext:
        """Return the context.

        Raises:
            BadConfig: a file is missing, cannot be read, or does not hold what it should.
        """
        path, context = await self._context.get()
        if time.monotonic() - self._looked_s >= _LOOK_S:
            self._looked_s = time.monotonic()
            await LOCAL_FILES.run(self._renew, path, context)
        return context

    def for_proxy(self) -> Trust:
        """Return the same trust for connections to a proxy, which does not get the client certificate."""
        return self if self._shown is None else Trust(self._authorities)

    def _make(self) -> tuple[str, ssl.SSLContext]:
        path = self._authorities()
        with contextlib.suppress(OSError, BadConfig):  # ``trusting`` tells what is wrong with it
            self._version = file_version(path)
            self._shown_versions = () if self._shown is None else self._shown.versions()
        context = trusting(path, self._shown)
        self._looked_s = time.monotonic()
        return path, context

    def _renew(self, path: str, context: ssl.SSLContext) -> None:
        self._renew_shown(context)
        try:
            version = file_version(path)
            if version == self._version:
                return
            context.load_verify_locations(*_file_or_folder(path))
        except (OSError, BadConfig):
            return  # in the middle of a rotation; the next look reads it
        self._version = version

    def _renew_shown(self, context: ssl.SSLContext) -> None:
        if self._shown is None:
            return
        try:
            versions = self._shown.versions()
            if versions == self._shown_versions:
                return
            self._shown.load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # a half of a pair would spoil the one in use
            self._shown.load(context)
        except BadConfig:
            return  # in the middle of a rotation; the next look reads it
        self._shown_versions = versions


class TlsEndpoint:
    """The state that the TLS connections to one endpoint share. Its newest session spares a handshake its signatures.

    A resumed handshake checks no certificate. So only sessions of complete handshakes are kept, and a session ends when
    the server said it would.

    Attributes:
        received: receive buffer; used within one turn of the loop.

    Args:
        context: trusted certificates.
        host: host name that the certificate must match.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._context = context
        self._host = host
        self._session: ssl.SSLSession | None = None
        self.received = memoryview(bytearray(_RECEIVE_BYTES))

    def __repr__(self) -> str:
        return f"TlsEndpoint({self._host}, {'resumes' if self._session else 'has no session'})"

    def begin(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject:
        """Return the client side of a new connection."""
        return self._context.wrap_bio(incoming, outgoing, server_hostname=self._host, session=self._session)

    def keep(self, tls: ssl.SSLObject) -> None:
        """Keep the session of a connection that has received data: TLS 1.3 sends sessions after the handshake."""
        if not tls.session_reused:
            self._session = tls.session

    def forget(self) -> None:
        """Resume no session, because a handshake failed."""
        self._session = None


class TlsTransport(asyncio.BufferedProtocol):
    """The TLS layer of one connection. ``shaken`` is done once the handshake is over and ``above`` is connected.

    Args:
        endpoint: state shared with other connections.
        above: gets the decrypted bytes; at the end of file it loses the connection.
    """

    def __init__(self, endpoint: TlsEndpoint, above: Connection | ProxyTunnel) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._endpoint = endpoint
        self._tls = endpoint.begin(self._incoming, self._outgoing)
        self._above: Connection | ProxyTunnel | TlsTransport = above
        self._session_seen = False
        self._transport: Any = None  # of whichever loop: uvloop's are no asyncio.Transport
        self._paused = False
        self._why: Exception | None = None
        self._end: Callable[[], object] | None = None  # called after the last decrypted bytes were handed up
        self.shaken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"TlsTransport({self._tls.version()})"

    @property
    def cipher(self) -> Cipher | None:
        """The cipher; its borrower pauses reading first and resumes it afterwards. None: there is another below it."""
        return None if isinstance(self._transport, TlsTransport) else Cipher(self._tls, self._incoming)

    # ------------------------------------------------------------ called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Transport: connected; the handshake begins."""
        self._transport = transport
        self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one recv takes whatever is there
        """Transport: return the buffer for the next bytes."""
        return self._endpoint.received

    def buffer_updated(self, nbytes: int) -> None:
        """Transport: handle the bytes that were put into the buffer."""
        self._incoming.write(self._endpoint.received[:nbytes])
        if self.shaken.done():
            self._feed()
        else:
            self._shake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Transport: handle the loss of the connection."""
        if not self.shaken.done():
            self._broken(exc or ConnectionResetError("the other side closed the connection during the TLS handshake"))
        else:
            self._above.connection_lost(exc or self._why)

    # ------------------------------------------------------------ called by the protocol above

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        self._tls.write(data)
        self._flush()

    def pause_reading(self) -> None:
        """Stop reading, so that another thread can use the socket and the cipher."""
        self._paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take the socket and the cipher back and continue reading."""
        self._paused = False
        self._transport.resume_reading()
        self._feed()

    def abort(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._transport.close()

    def set_protocol(self, above: TlsTransport) -> None:
        """Hand the decrypted bytes from here on to the TLS layer of a tunnel through a proxy."""
        self._above = above

    def is_closing(self) -> bool:
        """Whether the connection is closed or closing."""
        return bool(self._transport.is_closing())

    def get_extra_info(self, name: str) -> Any:  # noqa: ANN401 - as transports have it
        """Return the plain transport's information."""
        return self._transport.get_extra_info(name)

    # ------------------------------------------------------------ inside

    def _shake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._flush()  # sends the alert that tells the other side the reason
            self._broken(error)
            self.abort()
            return
        self._flush()
        if not self.shaken.done():  # the waiting task may have been cancelled
            self.shaken.set_result(None)
            self._above.connection_made(self)  # type: ignore[arg-type]  # all used methods of a transport are here
            self._feed()

    def _broken(self, error: Exception) -> None:
        self._endpoint.forget()
        if not self.shaken.done():
            self.shaken.set_exception(error)
            self.shaken.exception()  # retrieved, so that asyncio logs nothing if the waiting task was cancelled

    def _feed(self) -> None:
        """Hand up the bytes that can be decrypted, until reading is paused."""
        dry = False
        while not dry and not self._paused and not self._transport.is_closing():
            buffer = self._above.get_buffer(-1)
            count, dry = self._decrypt(buffer)
            if count and not self._session_seen:
                self._session_seen = True
                self._endpoint.keep(self._tls)
            if count:
                self._above.buffer_updated(count)
            if self._end is not None:
                self._end()
        if not self._paused:
            self._flush()

    def _decrypt(self, buffer: memoryview) -> tuple[int, bool]:
        """Fill the buffer as far as possible: a record has at most 16 KiB, and each step above is a file write.

        If the buffer has room for one record only, the next record is left alone. After a head it may belong to a body
        that a thread moves.

        Returns:
            The number of bytes, and whether nothing more can be decrypted.
        """
        count = 0
        while not count or _RECORD_BYTES < buffer.nbytes > count:
            try:
                came = int(self._tls.read(buffer.nbytes - count, buffer[count:]))
            except ssl.SSLWantReadError:
                return count, True
            except ssl.SSLError as error:
                # Not the error itself, which refers to this frame and the buffer.
                self._why = ConnectionResetError(str(error))
                self._end = self.abort
                return count, True
            if not came:  # the other side has closed its TLS session
                self._end = self._transport.close
                return count, True
            count += came
        return count, False

    def _flush(self) -> None:
        """Send the cipher's pending output, including answers to a key change."""
        if self._outgoing.pending and not self._transport.is_closing():
            self._transport.write(self._outgoing.read())
