"""Requests as botocore would send them: one is caught on its way out, the others are made after it.

Endpoint, addressing and headers come from that one; each request is then signed by the client's own signer, which
also refreshes the credentials.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.awsrequest import AWSRequest
from botocore.utils import get_environ_proxies, percent_encode

from feedd.source.s3.skew import SIGNATURES

if TYPE_CHECKING:
    from collections.abc import Mapping

_EVENT = "before-sign.s3.GetObject"
_KEY = "k"
_PORTS = {"http": 80, "https": 443}
_PER_REQUEST = {"range", "if-match", "amz-sdk-invocation-id", "amz-sdk-request"}
_caught: ContextVar[list[Mapping[str, Any]] | None] = ContextVar("feedd_caught_request", default=None)


class _Caught(Exception):
    """The request has been seen; it need not go anywhere."""


def _catch(**signing: Any) -> None:  # noqa: ANN401 - the arguments of botocore's event
    caught = _caught.get()
    if caught is not None:
        caught.append(signing)
        raise _Caught


@dataclass(frozen=True, slots=True)
class Template:
    """What is the same in all ranged GETs of one bucket with one client.

    Attributes:
        scheme: ``http`` or ``https``.
        host: name or address to connect to.
        port: TCP port.
        authority: value of the Host header.
        path: path without the key, which is appended percent-encoded.
        headers: headers besides Range, If-Match and those of the signature.
        context: what botocore noted down for the signer.
        signer: the client's own.
        obstacle: why such requests cannot be sent without the SDK; empty where they can.
        proxied: the environment names a proxy for this endpoint.
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
    proxied: bool

    @property
    def origin(self) -> str:
        """Scheme and authority."""
        return f"{self.scheme}://{self.authority}"

    async def sign(self, key: str, headers: Mapping[str, str]) -> bytes:
        """Return the head of a signed GET of ``key``, ready to be sent.

        Raises:
            BotoCoreError: there are no credentials, or they cannot be refreshed.
        """
        path = self.path + percent_encode(key, safe="/~")
        request = AWSRequest("GET", self.origin + path, {**self.headers, **headers})
        request.context = dict(self.context)  # the signer writes into it
        await self.signer.sign("GetObject", request)
        lines = [f"GET {path} HTTP/1.1", f"Host: {self.authority}", "Accept-Encoding: identity"]
        # botocore's native signers, which it takes where awscrt is installed, set Host themselves
        lines += [f"{name}: {_text(value)}" for name, value in request.headers.items() if name.lower() != "host"]
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1")


async def catch_template(client: Any, bucket: str, more: Mapping[str, str]) -> Template:  # noqa: ANN401 - see open_client
    """Let ``client`` make a GET, with ``more`` arguments, up to its signature and no further.

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
        obstacle = "urls of objects do not end in their key"
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
        proxied=bool(get_environ_proxies(request.url).get(parts.scheme)),
    )


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
