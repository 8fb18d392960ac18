"""Parses URLs of web servers, of the Hugging Face Hub, and of the stores that obstore reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from feedd.access import climbs
from feedd.errors import BadRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_SIGNED: Final = re.compile(
    r"[?&](?:x-amz-signature|x-goog-signature|signature|sig|access_token|token)=", re.IGNORECASE
)
_HUB: Final = re.compile(
    r"datasets/(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>refs/(?:convert|pr)/[\w.-]+|[^/]+))?(?:/(?P<key>.*))?",
    re.DOTALL | re.ASCII,
)
_RESOLVING: Final = frozenset({"https", "http", "hf"})
"""Stores that take a key for a path."""
_NO_DOTS: Final = "expected a path without . and .. as parts, also percent-encoded, and without control characters"
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AZURE_HOST: Final = re.compile(r"[A-Za-z0-9$][A-Za-z0-9-]*@[A-Za-z0-9-]+\.(?:dfs|blob)\.[A-Za-z0-9.-]+")


def split_web(url: str, scheme: str, rest: str) -> tuple[str, str]:
    """Return root and key of a URL; ``rest`` follows ``scheme://``.

    Raises:
        BadRequest: the URL is malformed.
        Unsupported: the URL is understood but not served.
    """
    root, key = SCHEMES[scheme](url, scheme, rest)
    if scheme in _RESOLVING and climbs(root, rest):  # with the names in the root, which are parts of the path too
        raise _bad(_NO_DOTS, url)
    return root, key


def _web(url: str, scheme: str, rest: str) -> tuple[str, str]:
    authority, _, key = rest.partition("/")
    try:
        parts = urlsplit(f"{scheme}://{authority}")
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _bad(f"expected {scheme}://HOST/PATH, got {error}", url) from error
    if "@" in authority:
        hint = "feedd sends no credentials to web servers: name a bucket, or a host that needs none"
        raise _bad("expected a URL without user name and password", scheme, hint)  # the URL holds a secret
    if not re.fullmatch(r"[a-z0-9._:-]+", host):
        raise _bad(f"expected a host after {scheme}://, got {authority!r}", url)
    if not {"?", "#"}.isdisjoint(authority):  # the key is what follows the slash, so they would be lost
        raise _bad(f"expected a slash after the host, got {authority!r}", url)
    if "#" in key:
        raise _bad("expected a URL without a fragment", url, "write %23 for a # in a name")
    if "\\" in key:
        raise _bad("expected a path without backslashes", url)
    if _SIGNED.search(key):
        hint = "name the bucket itself (s3://, gs://, az://), with credentials of the daemon"
        message = "expected a URL without a signature or token, which would expire and stand in logs"
        raise Unsupported(message, object=f"{scheme}://{authority}/{key.partition('?')[0]}", hint=hint, stage="source")
    shown = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[scheme]:
        shown = f"{shown}:{port}"
    return f"{scheme}://{shown}", key


def _hub(url: str, scheme: str, rest: str) -> tuple[str, str]:
    match = _HUB.fullmatch(rest)
    if match is None:
        hint = "only datasets are served: hf://datasets/OWNER/NAME/PATH, with @REVISION behind the name"
        raise _bad(f"expected hf://datasets/OWNER/NAME[@REVISION]/PREFIX, got {url!r}", url, hint)
    revision = unquote(match["revision"] or "").replace("/", "%2F")
    if match["revision"] is not None and not re.fullmatch(r"[\w.%-]+", revision, re.ASCII):
        raise _bad(f"expected a branch, tag or commit after @, got {revision!r}", url)
    root = f"{scheme}://datasets/{match['name']}"
    return (f"{root}@{revision}" if revision else root), match["key"] or ""


def _bucket(url: str, scheme: str, rest: str) -> tuple[str, str]:
    name, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(name):
        raise _bad(f"expected a bucket or container after {scheme}://, got {name!r}", url)
    return f"{scheme}://{name}", key


def _azure(url: str, scheme: str, rest: str) -> tuple[str, str]:
    name, _, key = rest.partition("/")
    if "@" not in name:
        return _bucket(url, scheme, rest)
    if not _AZURE_HOST.fullmatch(name):
        hint = "write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX, or az://CONTAINER/PREFIX"
        raise _bad(f"expected a container and the host of an account, got {name!r}", url, hint)
    return f"{scheme}://{name.lower()}", key


def _bad(message: str, url: str, hint: str = "") -> BadRequest:
    return BadRequest(message, object=url, hint=hint, stage="source")


SCHEMES: Final[dict[str, Callable[[str, str, str], tuple[str, str]]]] = {
    "https": _web,
    "http": _web,
    "hf": _hub,
    "gs": _bucket,
    "az": _bucket,
    "abfs": _azure,
    "abfss": _azure,
}
"""What parses the URLs of each scheme."""
