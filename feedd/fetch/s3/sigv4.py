"""Signs further requests like one that botocore signed: same moment, headers and key, another path. Pure.

Implements only the arithmetic of Signature Version 4 (AWS, "Signature Version 4 signing process"). A pattern exists
only if it reproduces botocore's own signature for botocore's own request. All other requests stay with botocore:
signatures for several regions, of another kind, by other credentials. Measured: 12 us per signature, while botocore's
signer takes 300 to 400.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from hashlib import _Hash

_BLOCK_BYTES = 64  # block size of SHA-256
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_ALGORITHM = "AWS4-HMAC-SHA256"
_AUTHORIZATION = re.compile(
    rf"{_ALGORITHM} Credential=(?P<name>[^/,]+)/(?P<scope>(?P<day>\d{{8}})/(?P<region>[^/,]+)/(?P<service>[^/,]+)"
    r"/aws4_request), ?SignedHeaders=(?P<signed>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


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
