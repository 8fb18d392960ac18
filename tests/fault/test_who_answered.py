"""Answers that do not come from a store: each ends at once, or after few tries, in a sentence that names the cause.

A row of ``CELLS`` is an answer, a kind of request, and the outcome. Other kinds of requests add rows and a ``_ask``.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime as dt
import gzip
import re
import socket
import ssl
import subprocess
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final

import pytest
from cryptography.hazmat.primitives import serialization

from feedd import errors
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.retry import RetryLimits, RetryPolicy, RetryStore
from feedd.fetch.s3 import tls as s3_tls
from feedd.fetch.s3.store import S3Store
from feedd.values import ByteRange, ObjectRef
from tests.fakes.odd_server import DATA, ETAG, KEY, OddServer, http
from tests.fakes.raw_server import RawServer
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

_ATTEMPTS_MAX: Final = 3
_CONSOLE: Final = b"<!doctype html><html><head><title>MinIO Console</title></head><body></body></html>"
_FILTER: Final = b"<html><body>Blocked by policy</body></html>"
_REF: Final = ObjectRef("s3://bucket", KEY, len(DATA), ETAG)

ODD: Final[dict[str, bytes | None]] = {
    "html 200": http(200, _CONSOLE, content_type="text/html", server="MinIO Console"),
    "empty 200": http(200),
    "html 403": http(403, _FILTER, content_type="text/html", via="1.1 filter"),
    "407": http(407, proxy_authenticate="Basic"),
    "redirect": http(307, location="http://127.0.0.1:9/elsewhere?signature=secret"),
    "never answers": None,
}
CELLS: Final[list[tuple[str, str, type[errors.FeeddError] | None, str]]] = [
    ("html 200", "list", errors.BadResponse, 'a web page "MinIO Console" (status 200, text/html'),
    ("html 200", "head", errors.BadResponse, "a web page (status 200, text/html"),
    ("html 200", "get", errors.BadResponse, "a web page"),
    ("empty 200", "list", errors.BadResponse, "an empty body"),
    ("empty 200", "head", errors.BadResponse, "no header of S3 (status 200)"),
    ("empty 200", "get", errors.BadResponse, "no header of S3 (status 200)"),
    ("html 403", "list", errors.BadConfig, 'a proxy or a web filter "Blocked by policy" (status 403, text/html'),
    ("html 403", "head", errors.BadConfig, "a proxy or a web filter (status 403, text/html"),
    ("html 403", "get", errors.BadConfig, 'a proxy or a web filter "Blocked by policy" (status 403, text/html'),
    ("407", "list", errors.BadConfig, "a proxy that wants a user name and a password"),
    ("407", "head", errors.BadConfig, "a proxy that wants a user name and a password"),
    ("407", "get", errors.BadConfig, "a proxy that wants a user name and a password"),
    ("redirect", "list", errors.BadConfig, "redirects the request to http://127.0.0.1:9: 307"),
    ("redirect", "head", errors.BadConfig, "redirects the request to http://127.0.0.1:9: 307"),
    ("redirect", "get", errors.BadConfig, "redirects the request to http://127.0.0.1:9: 307"),
    ("close", "list", None, ""),
    ("close", "head", None, ""),
    ("close", "get", None, ""),
    ("chunked", "list", None, ""),
    ("chunked", "head", None, ""),
    ("chunked", "get", None, ""),
    ("never answers", "list", errors.StoreUnavailable, "no answer in time"),
    ("never answers", "head", errors.StoreUnavailable, "no answer in time"),
    ("never answers", "get", errors.StoreUnavailable, "no answer in time"),
]


@contextlib.asynccontextmanager
async def _opened(url: str, **access: Any) -> AsyncIterator[RetryStore]:
    """Open a store as the daemon does, with few attempts, short deadlines, and a clock that does not wait."""
    settings: dict[str, Any] = {"endpoint_url": url, "region": "us-east-1", "anonymous": True} | access
    reached = S3Options(**settings)
    options = SourceOptions(s3={"*": reached}, read_timeout_s=0.5, connect_timeout_s=5)
    limits = RetryLimits(RetryPolicy(attempts_max=_ATTEMPTS_MAX))
    store = RetryStore(S3Store("bucket", options), limits, TimelessClock(), TallyRecorder())
    try:
        yield store
    finally:
        await store.close()


async def _ask(store: RetryStore, op: str) -> object:
    """Send a request of one kind and return what it must give."""
    if op == "list":
        return [ref async for page in store.list("train/") for ref in page]
    if op == "head":
        return [await store.head(KEY)]
    memory = bytearray(len(DATA))
    await store.read_into(_REF, ByteRange(0, len(DATA)), into(memory))
    return bytes(memory)


@pytest.mark.parametrize(("answer", "op", "error", "text"), CELLS, ids=[f"{row[1]}-{row[0]}" for row in CELLS])
async def test_each_odd_answer_is_named(answer: str, op: str, error: type[errors.FeeddError] | None, text: str) -> None:
    """An answer that no store gives names its sender and is not retried without need; one that can be read is read."""
    async with OddServer() as server, _opened(server.url) as store:
        if error is None:
            server.framing[op] = answer
            assert await _ask(store, op) == (DATA if op == "get" else [_REF])
            return
        server.odd[op] = ODD[answer]
        with pytest.raises(error) as caught:
            await _ask(store, op)
        assert type(caught.value) is error
        assert text in str(caught.value)
        assert caught.value.object.startswith("s3://bucket/train/")
        assert "secret" not in str(caught.value)
        if (answer, op) == ("html 200", "get"):
            assert '"MinIO Console"' in caught.value.message
        looked_up = answer == "redirect"  # the bucket's region, once
        assert server.asked.count(op) <= (_ATTEMPTS_MAX if error.retryable else 1 + looked_up)


class _Certificates:
    """An authority that other clients do not know, and certificates of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.authority = Authority(folder)

    def server(self, **validity: dt.datetime) -> ssl.SSLContext:
        """Return the context of a server whose certificate has that validity."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.authority.issue("store", **validity))
        return context


_NOW: Final = dt.datetime.now(dt.UTC)  # noqa: TID251 - certificates state dates
_DAY: Final = dt.timedelta(days=1)


@pytest.mark.parametrize("op", ["list", "head", "get"])
@pytest.mark.parametrize(
    ("validity", "trusted", "host", "text"),
    [
        ({"end": _NOW - _DAY}, True, "127.0.0.1", "expired (OpenSSL's code 10)"),
        ({"start": _NOW + _DAY}, True, "127.0.0.1", "not yet valid (OpenSSL's code 9)"),
        ({}, True, "localhost", "subjectAltName"),
        ({}, False, "127.0.0.1", "AWS_CA_BUNDLE"),
    ],
    ids=["expired", "not yet valid", "another host's", "unknown authority"],
)
async def test_a_certificate_that_is_refused_says_why(
    tmp_path: Path, op: str, validity: Any, trusted: bool, host: str, text: str
) -> None:
    """A certificate that is not accepted ends the first attempt, with OpenSSL's reason and code."""
    right, other = _Certificates(tmp_path / "right"), _Certificates(tmp_path / "other")
    bundle = str((right if trusted else other).authority.ca_path)
    async with OddServer(right.server(**validity)) as server:
        url = server.url.replace("127.0.0.1", host)
        async with _opened(url, ca_bundle=bundle) as store:
            with pytest.raises(errors.BadConfig) as caught:
                await _ask(store, op)
            assert text in str(caught.value)
            assert "the certificate is not accepted" in caught.value.message
            assert " object at 0x" not in str(caught.value)


@pytest.mark.parametrize("op", ["list", "head", "get"])
async def test_the_scheme_of_a_port_is_named(tmp_path: Path, op: str) -> None:
    """TLS to a plain port, and plain requests to a TLS port, end the first attempt and ask for the scheme."""
    async with OddServer() as plain:
        async with _opened(plain.url.replace("http:", "https:")) as store:
            with pytest.raises(errors.BadConfig, match=r"WRONG_VERSION_NUMBER.*http:// or https://\?"):
                await _ask(store, op)
        plain.odd[op] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
        plain.framing[op] = "close"
        async with _opened(plain.url) as store:
            wanted = "endpoint_url|http:// or https://" if op == "head" else r"TLS port.*http:// or https://\?"
            with pytest.raises(errors.BadRequest, match=wanted) as caught:
                await _ask(store, op)
            assert "SSE-C" not in str(caught.value)


@pytest.mark.parametrize("op", ["list", "head", "get"])
@pytest.mark.parametrize("bundle", ["missing", "no-pem", "folder", "unreadable"])
async def test_authorities_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, bundle: str
) -> None:
    """A missing or wrong file of authorities ends the first attempt, is named with its variable, and spares http."""
    path = tmp_path / bundle
    if bundle == "no-pem":
        path.write_text("no certificate")
    elif bundle == "folder":
        path.mkdir()
    elif bundle == "unreadable":
        path = path / "below" / "a.pem"
        path.parent.parent.write_text("a file where a folder should be")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
    certificates = _Certificates(tmp_path / "right")
    async with OddServer(certificates.server()) as server, _opened(server.url) as store:
        with pytest.raises(errors.BadConfig, match="certificate authorities") as caught:
            await _ask(store, op)
        assert str(path) in str(caught.value)
        assert "AWS_CA_BUNDLE" in caught.value.hint
    async with OddServer() as plain, _opened(plain.url) as store:
        assert await _ask(store, op)


@pytest.mark.parametrize("op", ["list", "head", "get"])
@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
async def test_listings_and_objects_trust_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, variable: str
) -> None:
    """A file of authorities, or a folder as openssl rehash makes it, counts for each kind of request."""
    certificates = _Certificates(tmp_path / "right")
    folder = tmp_path / "rehashed"
    folder.mkdir()
    pem = certificates.authority.ca_path
    command = ("openssl", "x509", "-hash", "-noout", "-in", str(pem))
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    (folder / f"{found.stdout.strip()}.0").write_bytes(pem.read_bytes())
    for path in (pem, folder):
        monkeypatch.setenv(variable, str(path))
        async with OddServer(certificates.server()) as server, _opened(server.url) as store:
            assert await _ask(store, op)


@pytest.mark.parametrize("op", ["list", "head", "get"])
async def test_a_dead_proxy_is_named(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """An error of a proxy names the variable that sets it; NO_PROXY may name the network of the store."""
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with OddServer() as server:
        async with _opened(server.url) as store:
            with pytest.raises(errors.StoreUnavailable, match="the proxy that http_proxy names") as caught:
                await _ask(store, op)
            assert "NO_PROXY" in caught.value.hint
            assert " object at 0x" not in str(caught.value)
            assert "secret" not in str(caught.value)
        monkeypatch.setenv("no_proxy", "10.0.0.0/8, 127.0.0.0/8")
        async with _opened(server.url) as store:
            assert await _ask(store, op)


@pytest.mark.parametrize("op", ["list", "head", "get"])
async def test_a_tunnel_that_is_refused_is_named(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """A proxy that wants a password, with or without a tunnel, ends the first attempt and is told with its variable."""
    monkeypatch.delenv("no_proxy", raising=False)
    async with RawServer(http(407), http(407)) as proxy:
        for scheme in ("http", "https"):
            asked = len(proxy.requests)
            monkeypatch.setenv(f"{scheme}_proxy", f"http://127.0.0.1:{proxy.port}")
            async with _opened(f"{scheme}://store.example:9000") as store:
                with pytest.raises(errors.BadConfig, match=f"{scheme}_proxy.*store.example to NO_PROXY") as caught:
                    await _ask(store, op)
                assert "wants a user name" in caught.value.message
            assert len(proxy.requests) == asked + 1


@pytest.mark.parametrize("op", ["list", "head", "get"])
async def test_a_bucket_that_the_endpoint_holds_already_is_named(op: str) -> None:
    """If the endpoint ends in the bucket, a missing bucket or key is told with the endpoint that would be right."""
    async with OddServer() as server:
        body = b"<Error><Code>NoSuchKey</Code></Error>"
        server.odd = dict.fromkeys(("list", "head", "get"), http(404, body, x_amz_request_id="1"))
        async with _opened(f"{server.url}/bucket") as store:
            with pytest.raises(errors.NotFound, match=f"set endpoint_url to {server.url}$"):
                await _ask(store, op)


async def test_a_checksum_needs_no_length() -> None:
    """A HEAD without Content-Length, of the listed ETag, gives the checksum that it states."""
    async with OddServer() as server, _opened(server.url) as store:
        crc = base64.b64encode(zlib.crc32(DATA).to_bytes(4)).decode()
        server.odd["head"] = http(200, b"", "chunked", etag=f'"{ETAG}"', x_amz_checksum_crc32=crc)
        found = await store.checksum(_REF)
        assert found is not None
        assert found.digest == base64.b64decode(crc)


@pytest.mark.parametrize("op", ["list", "head", "get"])
async def test_no_redirect_is_followed(op: str) -> None:
    """A redirect to another host is not followed: nothing is sent there, neither a token nor a request."""
    async with OddServer() as other, OddServer() as server:
        body = b"<Error><Code>TemporaryRedirect</Code></Error>"
        for status in (301, 302, 303, 307, 308):
            odd = http(status, body, location=f"{other.url}/bucket/{KEY}?list-type=2")
            server.odd = dict.fromkeys(("list", "head", "get"), odd)
            async with _opened(server.url) as store:
                with pytest.raises(errors.BadConfig, match=f"redirects the request to {other.url}"):
                    await _ask(store, op)
        assert not other.asked


async def test_no_redirect_of_a_role_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that assumes a role follows no redirect either: no credentials go to another host."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    async with OddServer() as other, OddServer() as sts, OddServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        sts.odd["get"] = http(307, location=f"{other.url}/bucket/{KEY}")
        async with _opened(server.url, anonymous=False, role_arn="arn:aws:iam::123456789012:role/r") as store:
            with pytest.raises(errors.FeeddError):
                await _ask(store, "list")
        assert sts.asked
        assert not other.asked


async def test_etags_that_disagree_are_not_called_a_change() -> None:
    """If a listing has another ETag than the object, and still has it, then the object did not change."""
    async with OddServer() as server, _opened(server.url) as store:
        server.odd["get"] = http(412, b"<Error><Code>PreconditionFailed</Code></Error>", x_amz_request_id="1")
        server.odd["head"] = http(200, DATA, etag='"another"', x_amz_request_id="1")
        with pytest.raises(errors.Unsupported, match=f"still says {ETAG}.*another"):
            await _ask(store, "get")
        assert server.asked == ["get", "head", "list"]


@pytest.mark.parametrize("etag", [{}, {"etag": '""'}])
async def test_an_object_without_an_etag_is_named(etag: dict[str, str]) -> None:
    """A store that sends objects without an ETag gets that sentence after few attempts."""
    async with OddServer() as server, _opened(server.url) as store:
        whole = f"bytes 0-{len(DATA) - 1}/{len(DATA)}"
        server.odd["get"] = http(206, DATA, content_range=whole, x_amz_request_id="1", **etag)
        with pytest.raises(errors.BadResponse, match="expected an object with an ETag header"):
            await _ask(store, "get")
        assert server.asked == ["get"] * _ATTEMPTS_MAX


@pytest.mark.parametrize("op", ["list", "head"])
async def test_answers_before_the_final_one_are_bounded(op: str) -> None:
    """A server that sends 100 Continue without an end is given up, and its answers are not kept."""
    async with OddServer() as server, _opened(server.url) as store:
        server.odd[op] = b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000
        with pytest.raises(errors.StoreUnavailable, match="1xx"):
            await _ask(store, op)


@pytest.mark.parametrize("op", ["list", "head", "get"])
async def test_a_tls_alert_is_named(op: str) -> None:
    """A TLS port that answers a plain request with an alert ends the first attempt and asks for the scheme."""
    async with RawServer([b"\x15\x03\x03\x00\x02\x02\x46", b""]) as server:
        async with _opened(f"http://127.0.0.1:{server.port}") as store:
            with pytest.raises(errors.BadConfig, match="a TLS port got a request without TLS"):
                await _ask(store, op)
        assert len(server.requests) == 1


def _demanding(certificates: _Certificates, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Return the context of a server that wants a certificate of its own authority from clients."""
    context = certificates.server()
    context.maximum_version = version
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates.authority.ca_path)
    return context


@contextlib.contextmanager
def _refusing(context: ssl.SSLContext) -> Iterator[tuple[str, list[ssl.SSLError]]]:
    """Refuse clients in their handshake with OpenSSL's alerts, which asyncio's server does not send."""
    refused: list[ssl.SSLError] = []

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                peer, _address = listener.accept()
                peer.settimeout(5)
                with peer, context.wrap_socket(peer, server_side=True, do_handshake_on_connect=False) as tls:
                    try:
                        tls.do_handshake()
                    except ssl.SSLError as error:
                        refused.append(error)
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(tls, socket.SHUT_WR)
                        while socket.socket.recv(tls, 4096):  # a reset would overtake the alert
                            pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"https://127.0.0.1:{listener.getsockname()[1]}", refused
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


_VERSIONS: Final = pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])


@_VERSIONS
@pytest.mark.parametrize("joined", [False, True], ids=["two files", "one file"])
async def test_a_client_certificate_is_shown(tmp_path: Path, version: ssl.TLSVersion, joined: bool) -> None:
    """Listings, HEADs and GETs show the bucket's client certificate to a server that demands one."""
    certificates = _Certificates(tmp_path / "right")
    certificate, key = certificates.authority.issue("client")
    shown = {"client_certificate": str(certificate), "client_key": str(key)}
    if joined:
        certificate.write_bytes(key.read_bytes() + certificate.read_bytes())
        del shown["client_key"]
    bundle = str(certificates.authority.ca_path)
    async with (
        OddServer(_demanding(certificates, version)) as server,
        _opened(server.url, ca_bundle=bundle, **shown) as store,
    ):
        assert await _ask(store, "list") == [_REF]
        assert await _ask(store, "head") == [_REF]
        assert await _ask(store, "get") == DATA


@_VERSIONS
@pytest.mark.parametrize("op", ["list", "head", "get"])
@pytest.mark.parametrize("shows", ["none", "foreign", "expired"])
async def test_a_client_certificate_that_lacks_says_what_to_set(
    tmp_path: Path, version: ssl.TLSVersion, op: str, shows: str
) -> None:
    """Without a client certificate that the server accepts, the first attempt ends and names the options."""
    certificates, other = _Certificates(tmp_path / "right"), _Certificates(tmp_path / "other")
    shown: dict[str, str] = {}
    if shows != "none":
        issuer, validity = (other, {}) if shows == "foreign" else (certificates, {"end": _NOW - _DAY})
        pair = issuer.authority.issue("client", **validity)
        shown = dict(zip(("client_certificate", "client_key"), map(str, pair), strict=True))
    bundle = str(certificates.authority.ca_path)
    with _refusing(_demanding(certificates, version)) as (url, refused):
        async with _opened(url, ca_bundle=bundle, **shown) as store:
            with pytest.raises(errors.BadConfig, match=r"client certificate|HANDSHAKE_FAILURE") as caught:
                await _ask(store, op)
            assert "set client_certificate and client_key under [s3." in caught.value.hint
        assert len(refused) <= 2  # aiohttp connects once more by itself


@pytest.mark.parametrize("op", ["list", "head", "get"])
@pytest.mark.parametrize(
    ("fault", "option", "text"),
    [
        ("missing certificate", "client_certificate", "No such file"),
        ("missing key", "client_key", "No such file"),
        ("broken certificate", "client_certificate", "no certificate in PEM form"),
        ("broken key", "client_key", "no private key in PEM form"),
        ("no key", "client_certificate", "no private key in PEM form"),
        ("another's key", "client_key", "does not belong to the certificate"),
        ("encrypted key", "client_key", "the key is encrypted"),
    ],
)
async def test_a_client_certificate_that_cannot_be_read_is_named(
    tmp_path: Path, op: str, fault: str, option: str, text: str
) -> None:
    """A client certificate or key that cannot be used ends the first attempt with file and option."""
    certificates = _Certificates(tmp_path / "right")
    certificate, key = certificates.authority.issue("client")
    faulty = certificate if option == "client_certificate" else key
    shown = {"client_certificate": str(certificate), "client_key": str(key)}
    if fault.startswith("missing"):
        faulty.unlink()
    elif fault.startswith("broken"):
        faulty.write_text("-----BEGIN NOTHING-----\n")
    elif fault == "no key":
        del shown["client_key"]
    elif fault == "another's key":
        key.write_bytes(certificates.authority.issue("other")[1].read_bytes())
    else:
        secret = serialization.BestAvailableEncryption(b"passphrase")
        plain = serialization.load_pem_private_key(key.read_bytes(), None)
        form, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key.write_bytes(plain.private_bytes(form, pkcs8, secret))
    bundle = str(certificates.authority.ca_path)
    async with OddServer(certificates.server()) as server:
        async with _opened(server.url, ca_bundle=bundle, **shown) as store:
            with pytest.raises(errors.BadConfig, match=text) as caught:
                await _ask(store, op)
            assert str(faulty) in str(caught.value)
            assert option in caught.value.hint
        assert not server.asked


async def test_a_client_certificate_that_is_renewed_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is open shows a renewed certificate on later connections; half of a new pair changes nothing."""
    monkeypatch.setattr(s3_tls, "_LOOK_S", 0.0)
    certificates, other = _Certificates(tmp_path / "right"), _Certificates(tmp_path / "other")
    certificate, key = certificates.authority.issue("client")
    shown = {"client_certificate": str(certificate), "client_key": str(key)}
    bundle = str(certificates.authority.ca_path)
    async with OddServer(_demanding(certificates, ssl.TLSVersion.TLSv1_3)) as server:
        server.framing = dict.fromkeys(("list", "head", "get"), "close")  # each request has a connection
        async with _opened(server.url, ca_bundle=bundle, **shown) as store:
            assert await _ask(store, "head") == [_REF]
            assert await _ask(store, "get") == DATA
            foreign_certificate, foreign_key = other.authority.issue("client")
            certificate.write_bytes(foreign_certificate.read_bytes())
            assert await _ask(store, "head") == [_REF]
            assert await _ask(store, "get") == DATA
            key.write_bytes(foreign_key.read_bytes())
            with pytest.raises(errors.StoreUnavailable):  # asyncio's server sends no alert
                await _ask(store, "head")
            renewed_certificate, renewed_key = certificates.authority.issue("renewed")
            certificate.write_bytes(renewed_certificate.read_bytes())
            key.write_bytes(renewed_key.read_bytes())
            assert await _ask(store, "head") == [_REF]
            assert await _ask(store, "get") == DATA


@pytest.mark.parametrize("op", ["list", "get"])
async def test_a_page_that_wants_a_client_certificate_is_named(op: str) -> None:
    """What nginx answers to a client without a certificate names the options, and no credentials."""
    async with OddServer() as server, _opened(server.url) as store:
        page = b"<html><head><title>400 No required SSL certificate was sent</title></head><body></body></html>"
        server.odd[op] = http(400, page, content_type="text/html", server="nginx")
        with pytest.raises(errors.BadConfig, match="wants one") as caught:
            await _ask(store, op)
        assert "client_certificate" in caught.value.hint
        assert server.asked == [op]


async def test_listings_that_a_gateway_writes_otherwise_are_read() -> None:
    """A listing that is packed with gzip, or that writes IsTruncated as a digit, has the same objects."""
    head, tail = ("<ListBucketResult><IsTruncated>", "</IsTruncated><KeyCount>1</KeyCount><Contents>")
    item = f"<Key>{KEY}</Key><Size>{len(DATA)}</Size><ETag>&quot;{ETAG}&quot;</ETag></Contents></ListBucketResult>"
    plain = {said: f"{head}{said}{tail}{item}".encode() for said in ("false", "0", "False")}
    packed = gzip.compress(plain["false"])
    async with OddServer() as server, _opened(server.url) as store:
        for body in plain.values():
            server.odd["list"] = http(200, body)
            assert await _ask(store, "list") == [_REF]
        server.odd["list"] = http(200, packed, content_encoding="gzip")
        assert await _ask(store, "list") == [_REF]
        for broken in (packed[:-9], gzip.compress(bytes(9 << 20))):
            server.odd["list"] = http(200, broken, content_encoding="gzip")
            with pytest.raises(errors.BadResponse, match="expected a whole page"):
                await _ask(store, "list")


@pytest.mark.parametrize(
    ("status", "error", "text"),
    [(204, errors.BadResponse, "expected status 200"), (304, errors.StoreUnavailable, "the store failed: 304")],
)
async def test_a_head_with_another_status_has_no_size(status: int, error: type[errors.FeeddError], text: str) -> None:
    """A HEAD that is answered with 204 or 304 makes no empty object, and is called no redirect."""
    async with OddServer() as server, _opened(server.url) as store:
        server.odd["head"] = http(status, etag=f'"{ETAG}"')
        with pytest.raises(error, match=text):
            await _ask(store, "head")


@pytest.mark.parametrize("op", ["head", "get"])
@pytest.mark.parametrize(
    "header",
    [{"last_modified": "yesterday"}, {"x_amz_mp_parts_count": "many"}, {"x_amz_object_lock_retain_until_date": "?"}],
)
async def test_a_header_that_cannot_be_read_is_no_defect(op: str, header: dict[str, str]) -> None:
    """A date or a number that is none makes a wrong answer of the store, which the reader of bodies does not need."""
    async with OddServer() as server, _opened(server.url) as store:
        facts = {"etag": f'"{ETAG}"', "content_range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}", "x_amz_request_id": "1"}
        server.odd[op] = http(206 if op == "get" else 200, DATA, **facts, **header)
        if op == "get":
            assert await _ask(store, op) == DATA
            return
        with pytest.raises(errors.BadResponse, match="the answer is no s3 answer"):
            await _ask(store, op)


_PARTS: Final = (
    "<GetObjectAttributesResponse><ETag>{etag}</ETag><ObjectParts>{parts}</ObjectParts></GetObjectAttributesResponse>"
)
_PART: Final = "<Part><PartNumber>1</PartNumber><Size>{size}</Size></Part>"
_MORE: Final = "<IsTruncated>true</IsTruncated>"


@pytest.mark.parametrize(
    "answer",
    [
        ODD["html 200"],
        ODD["empty 200"],
        _MORE + "<NextPartNumberMarker>1</NextPartNumberMarker>" + _PART.format(size=1),
        _MORE + "<NextPartNumberMarker>-1</NextPartNumberMarker>" + _PART.format(size=1),
        _MORE + "<NextPartNumberMarker>one</NextPartNumberMarker>" + _PART.format(size=1),
        _MORE + _PART.format(size=len(DATA)),
        _PART.format(size=-1) + _PART.format(size=len(DATA) + 1),
        _PART.format(size="large"),
    ],
    ids=["page", "empty", "same marker", "lower marker", "marker", "endless", "negative", "size"],
)
async def test_odd_lists_of_parts_make_no_checksum(answer: bytes | str) -> None:
    """A list of parts that does not end, or that cannot be, makes no checksum, and no endless listing."""
    async with OddServer() as server, _opened(server.url) as store:
        crc = base64.b64encode(zlib.crc32(DATA).to_bytes(4)).decode() + "-2"
        server.odd["head"] = http(200, DATA, etag=f'"{ETAG}"', x_amz_checksum_crc32=crc)
        body = answer if isinstance(answer, bytes) else http(200, _PARTS.format(etag=ETAG, parts=answer).encode())
        server.odd["get"] = body
        assert await store.checksum(_REF) is None
        assert server.asked.count("get") <= 3


_GZIP: Final = {
    "etag": f'"{ETAG}"',
    "content_range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}",
    "content_encoding": "gzip",
}


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (b"\0\0\x12\x04\0\0\0\0\0", errors.StoreUnavailable, "the beginning of a head: b'\\x00\\x00\\x12\\x04"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, errors.BadResponse, "at most 16 answers of the kind 1xx"),
        (
            http(206, gzip.compress(DATA), **_GZIP),
            errors.BadResponse,
            "Content-Encoding 'gzip': a gateway may compress",
        ),
    ],
    ids=["HTTP/2", "1xx without end", "gzip"],
)
async def test_a_body_that_does_not_come_says_what_came(
    answer: bytes, error: type[errors.FeeddError], text: str
) -> None:
    """An answer that never becomes a body ends with what was received in its place."""
    async with OddServer() as server, _opened(server.url) as store:
        server.odd["get"] = answer
        with pytest.raises(error, match=re.escape(text)):
            await _ask(store, "get")


async def test_a_page_in_answer_to_a_write_is_named() -> None:
    """A web page with status 200 in answer to a PUT is named, and is not called a failure of the store."""
    async with OddServer() as server:
        options = SourceOptions(s3={"*": S3Options(endpoint_url=server.url, region="us-east-1", anonymous=True)})
        store = S3Store("bucket", options)
        server.odd["get"] = ODD["html 200"]  # the server's word for all that is neither a listing nor a HEAD
        with pytest.raises(errors.BadConfig, match='a web page "MinIO Console"'):
            await store.put(KEY, b"data")
        await store.close()


_PASSING: Final = {
    "html 200": ODD["html 200"],
    "html 401": http(401, _FILTER, content_type="text/html"),
    "html 403": ODD["html 403"],
    "html 404": http(404, _FILTER, content_type="text/html"),
    "html 502": http(502, _FILTER, content_type="text/html"),
    "html 503": http(503, _FILTER, content_type="text/html"),
    "407": ODD["407"],
    "bare 403": http(403),
    "bare 404": http(404),
    "bare 429": http(429),
    "json 403": http(403, b'{"message": "Forbidden"}', content_type="application/json"),
    "login": http(302, location="https://login.example/start"),
}


@pytest.mark.parametrize("op", ["list", "get"])
@pytest.mark.parametrize("answer", _PASSING)
async def test_a_foreign_answer_in_the_middle_is_retried(op: str, answer: str) -> None:
    """Once an endpoint has answered well, a moment of another's answers is retried, as it ends a run otherwise."""
    async with OddServer() as server, _opened(server.url) as store:
        right = await _ask(store, op)
        server.odd[op], server.odd_count = _PASSING[answer], _ATTEMPTS_MAX - 1
        assert await _ask(store, op) == right
        server.odd[op], server.odd_count = _PASSING[answer], 1000
        asked = len(server.asked)
        # Throttling is bounded by time alone.
        if "503" not in answer and "429" not in answer:
            with pytest.raises(errors.StoreUnavailable):
                await _ask(store, op)
            assert server.asked[asked:].count(op) == _ATTEMPTS_MAX


async def test_a_refusal_of_the_store_itself_is_not_retried() -> None:
    """After good answers, a refusal of the store is believed at once."""
    async with OddServer() as server, _opened(server.url) as store:
        await _ask(store, "get")
        for status, code, error in (
            (403, "AccessDenied", errors.PermissionDenied),
            (404, "NoSuchKey", errors.NotFound),
        ):
            body = f"<Error><Code>{code}</Code></Error>".encode()
            server.odd["get"] = http(status, body, content_type="application/xml")
            asked = len(server.asked)
            with pytest.raises(error):
                await _ask(store, "get")
            assert server.asked[asked:].count("get") == 1
