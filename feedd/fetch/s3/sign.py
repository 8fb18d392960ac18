"""Signs ranged GETs after the model of one request that botocore prepared.

Endpoint, addressing and headers come from the caught request. The client's own signer signs the requests and also
refreshes the credentials. Range and condition, which differ between the parts of an object, are left out of the
signature. S3 permits this: the signature must cover Host and ``x-amz-*``.

Of the requests within a few seconds, the client signs one, and the others are signed after its ``Pattern``. If there is
no pattern, parts of the same object share a signature. Signing by the client took half of the event loop's time for a
small object: measured, 0.4 ms of 0.8.

A pattern has only the arithmetic of Signature Version 4 (AWS, "Signature Version 4 signing process"). It exists only if
it reproduces botocore's own signature for botocore's own request. All other requests stay with botocore: signatures for
several regions, of another kind, by other credentials. Measured: 12 us per signature, while botocore's signer takes
300 to 400.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import re
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.awsrequest import AWSRequest
from botocore.utils import percent_encode

from feedd.fetch.s3.client import SIGNATURES
from feedd.flow.lru import WeightedLru

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from hashlib import _Hash

_BLOCK_BYTES = 64  # block size of SHA-256
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_ALGORITHM = "AWS4-HMAC-SHA256"
_AUTHORIZATION = re.compile(
    rf"{_ALGORITHM} Credential=(?P<name>[^/,]+)/(?P<scope>(?P<day>\d{{8}})/(?P<region>[^/,]+)/(?P<service>[^/,]+)"
    r"/aws4_request), ?SignedHeaders=(?P<signed>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_EVENT = "before-sign.s3.GetObject"
_KEY = "k"
# Characters that encoding leaves unchanged; covers most keys, at a tenth of the cost.
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]+")
_PORTS = {"http": 80, "https": 443}
# Stores accept signatures for 15 minutes; credentials are renewed at least one minute before they expire.
_SIGNED_FOR_S = 10.0
_SIGNED_MAX = 1024
_PER_REQUEST = {"range", "if-match", "amz-sdk-invocation-id", "amz-sdk-request"}
_caught: ContextVar[list[Mapping[str, Any]] | None] = ContextVar("feedd_caught_request", default=None)


@dataclass(frozen=True, slots=True)
class Pattern:
    """The common parts of requests signed at one moment.

    Attributes:
        authorization: the header's value up to the signature.
        canonical: the canonical request after the path.
        stated: the string to sign before the request's digest.
        inner: inner hash of HMAC (RFC 2104) after the signing key's block; never shown.
        outer: outer hash of HMAC after the signing key's block; never shown.
    """

    authorization: str
    canonical: str
    stated: str
    inner: _Hash
    outer: _Hash

    def __repr__(self) -> str:
        return f"Pattern({self.stated.split()[1:]})"

    @classmethod
    def of(cls, path: str, headers: Mapping[str, str], host: str, secret: str) -> Pattern | None:
        """Return the pattern of a signed GET without a query, or None if it does not reproduce the signature.

        Args:
            path: percent-encoded, as sent.
            headers: as sent, names in lower case, with ``authorization``.
            host: value of the Host header.
            secret: secret key of the credentials.
        """
        said = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        when, digest = headers.get("x-amz-date", ""), headers.get("x-amz-content-sha256", "")
        if said is None or not when or not digest:
            return None
        held = {**headers, "host": host}
        names = said["signed"].split(";")
        if any(name not in held for name in names):
            return None
        lines = "".join(f"{name}:{' '.join(held[name].split())}\n" for name in names)
        key = f"AWS4{secret}".encode()
        for word in (said["day"], said["region"], said["service"], "aws4_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        pattern = cls(
            authorization=headers["authorization"].removesuffix(said["signature"]),
            canonical=f"\n\n{lines}\n{said['signed']}\n{digest}",
            stated=f"{_ALGORITHM}\n{when}\n{said['scope']}\n",
            inner=sha256(key.ljust(_BLOCK_BYTES, b"\0").translate(_INNER)),
            outer=sha256(key.ljust(_BLOCK_BYTES, b"\0").translate(_OUTER)),
        )
        return pattern if hmac.compare_digest(pattern.signature(path), said["signature"]) else None

    def signature(self, path: str) -> str:
        """Return the signature of a GET of ``path``, percent-encoded."""
        digest = sha256(f"GET\n{path}{self.canonical}".encode()).hexdigest()
        # ``hmac`` releases the interpreter lock and then waits for it.
        inner, outer = self.inner.copy(), self.outer.copy()
        inner.update((self.stated + digest).encode())
        outer.update(inner.digest())
        return outer.hexdigest()


class _Caught(Exception):
    """The request has been caught and need not be sent."""


def _catch(**signing: Any) -> None:  # noqa: ANN401 - the arguments of botocore's event
    caught = _caught.get()
    if caught is not None:
        caught.append(signing)
        raise _Caught


@dataclass(slots=True)
class _Latest:
    """The request that the client signed last, as a model for others.

    Attributes:
        pattern: pattern of its signature; None: there is none.
        unsigned: requests are sent without a signature.
        lines: head of the request after its first line, without Authorization.
        at_s: when it was signed.
    """

    pattern: Pattern | None = None
    unsigned: bool = False
    lines: str = ""
    at_s: float = -math.inf
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def head(self, path: str) -> str:
        """Return the head of a request after this model, without the headers that are not signed."""
        head = f"GET {path} HTTP/1.1\r\n{self.lines}"
        if self.pattern is None:
            return head
        return f"{head}Authorization: {self.pattern.authorization}{self.pattern.signature(path)}\r\n"


@dataclass(frozen=True, slots=True)
class Template:
    """The common parts of all ranged GETs of one bucket with one client.

    Attributes:
        scheme: ``http`` or ``https``.
        host: name or address to connect to.
        port: TCP port.
        authority: value of the Host header.
        path: path without the key, which is appended percent-encoded.
        headers: headers besides Range, If-Match and those of the signature.
        context: botocore's context for the signer.
        signer: the client's own signer.
        obstacle: why only the SDK can send such requests; empty: the direct transport can.
        now_s: the monotonic clock.
    """

    scheme: str
    host: str
    port: int
    authority: str
    path: str
    headers: Mapping[str, str]
    context: Mapping[str, Any]
    signer: Any
    obstacle: str
    now_s: Callable[[], float] = time.monotonic
    _signed: WeightedLru[str, tuple[str, float]] = field(default_factory=lambda: WeightedLru(_SIGNED_MAX))
    _latest: _Latest = field(default_factory=_Latest)

    @property
    def origin(self) -> str:
        """Scheme and authority of the endpoint."""
        return f"{self.scheme}://{self.authority}"

    async def sign(self, key: str, headers: Mapping[str, str]) -> bytes:
        """Return the head of a signed GET of ``key``, ready to send; ``headers`` are added unsigned.

        Raises:
            BotoCoreError: there are no credentials, or they cannot be refreshed.
        """
        latest = self._latest
        if latest.pattern is not None and self.now_s() - latest.at_s <= _SIGNED_FOR_S:
            signed = latest.head(self._path_of(key))
        else:
            signed, at_s = self._signed.get(key) or ("", 0.0)
            if not signed or self.now_s() - at_s > _SIGNED_FOR_S:
                signed, at_s = await self._signed_head(self._path_of(key))
                self._signed.put(key, (signed, at_s), 1)
        return "".join([signed, *(f"{name}: {value}\r\n" for name, value in headers.items()), "\r\n"]).encode("latin-1")

    def refused(self) -> None:
        """Sign anew from here on, because the signature may have caused the refusal."""
        self._signed.clear()
        self._latest.at_s = -math.inf

    def _path_of(self, key: str) -> str:
        encoded: str = key if _PLAIN.fullmatch(key) else percent_encode(key, safe="/~")
        return self.path + encoded

    async def _signed_head(self, path: str) -> tuple[str, float]:
        """Return the head without the unsigned headers, and when it was signed."""
        latest = self._latest
        async with latest.lock:  # if many objects begin at once, the client signs only one of them
            if self.now_s() - latest.at_s > _SIGNED_FOR_S:
                return await self._sign(path), latest.at_s
        if latest.unsigned or latest.pattern is not None:
            return latest.head(path), latest.at_s
        at_s = self.now_s()
        return await self._sign(path), at_s

    async def _sign(self, path: str) -> str:
        """Let the client sign a GET of ``path`` and return its head."""
        at_s = self.now_s()  # taken before signing, because the store counts from the time in the signature
        request = AWSRequest("GET", self.origin + path, dict(self.headers))
        request.context = dict(self.context)  # the signer writes into it
        await self.signer.sign("GetObject", request)
        # botocore's native signers, used if awscrt is installed, set Host themselves
        headers = {name: _text(value) for name, value in request.headers.items() if name.lower() != "host"}
        authorization = headers.pop("Authorization", "")
        lines = [f"Host: {self.authority}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        text = "\r\n".join([*lines, ""])
        self._latest.pattern, self._latest.unsigned = None, not authorization
        if authorization:
            held = {name.lower(): value for name, value in headers.items()} | {"authorization": authorization}
            secret = await _secret(self.signer, request.context.get("signing") or {})
            self._latest.pattern = Pattern.of(path, held, self.authority, secret)
        self._latest.lines, self._latest.at_s = text, at_s
        signature = f"Authorization: {authorization}\r\n" if authorization else ""
        return f"GET {path} HTTP/1.1\r\n{text}{signature}"


async def _secret(signer: Any, signing: Mapping[str, Any]) -> str:  # noqa: ANN401 - see open_client
    """Return the secret key that probably signed a request; the pattern shows whether it did."""
    credentials = signing.get("request_credentials")
    if credentials is None and signing.get("identity_cache") is not None:
        credentials = await signing["identity_cache"].get_credentials(signing["cache_key"])
    if credentials is None:
        credentials = signer._credentials  # noqa: SLF001 - the signer offers no public access to them
    if credentials is None:
        return ""
    return str((await credentials.get_frozen_credentials()).secret_key)


async def catch_template(client: Any, bucket: str, more: Mapping[str, str]) -> Template:  # noqa: ANN401 - see open_client
    """Let ``client`` prepare a GET, with ``more`` arguments, and catch it before it is signed.

    Raises:
        BotoCoreError: as the request would: no region, a bad bucket name, ...
    """
    caught: list[Mapping[str, Any]] = []
    token = _caught.set(caught)
    client.meta.events.register_last(_EVENT, _catch)
    try:
        with contextlib.suppress(_Caught):
            await client.get_object(Bucket=bucket, Key=_KEY, **more)
    finally:
        client.meta.events.unregister(_EVENT, _catch)
        _caught.reset(token)
    assert caught, "botocore sent a request without signing it"
    return _template(caught[0])


def _template(signing: Mapping[str, Any]) -> Template:
    request, version = signing["request"], signing["signature_version"]
    parts = urlsplit(request.url)
    port = parts.port or _PORTS.get(parts.scheme, 0)
    name = parts.hostname or ""
    host = f"[{name}]" if ":" in name else name
    authority = host if port == _PORTS.get(parts.scheme) else f"{host}:{port}"
    obstacle = ""
    if parts.query or not parts.path.endswith(f"/{_KEY}"):
        obstacle = "object URLs do not end in their key"
    elif version is not UNSIGNED and version not in SIGNATURES:
        obstacle = f"requests are signed by {version}"
    return Template(
        scheme=parts.scheme,
        host=name,
        port=port,
        authority=authority,
        path=parts.path.removesuffix(_KEY),
        headers={key: _text(value) for key, value in request.headers.items() if key.lower() not in _PER_REQUEST},
        context=dict(request.context),
        signer=signing["request_signer"],
        obstacle=obstacle,
    )


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
