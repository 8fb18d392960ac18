"""URLs of datasets, taken apart."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from feedd.errors import BadRequest, Unsupported

FILE_ROOT = "file://"
_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_FORMS = "expected s3://bucket/prefix, file:///directory, a path, or manifest+s3://bucket/key"


@dataclass(frozen=True, slots=True)
class Location:
    """A URL's parts.

    Attributes:
        url: as it was given.
        root: ``s3://bucket`` or ``file://``.
        key: key or prefix, verbatim: nothing in it is percent-decoded.
        manifest: the object lists the data, it is not the data.
    """

    url: str
    root: str
    key: str
    manifest: bool

    @property
    def bucket(self) -> str:
        """Bucket of an S3 location."""
        return self.root.removeprefix("s3://")


def parse_url(url: str) -> Location:
    """Take ``url`` apart; nothing is looked up.

    Raises:
        BadRequest: malformed. Unsupported: a scheme that is understood and not served.
    """
    match = _SCHEME.fullmatch(url)
    if match is None:
        if not url or "\0" in url:
            raise BadRequest(f"{_FORMS}, got {url!r}", stage="source")
        kept_slash = "/" if url.endswith("/") else ""
        return Location(url, FILE_ROOT, str(Path(url).absolute()).rstrip("/") + kept_slash, manifest=False)
    scheme, rest = match["scheme"].lower(), match["rest"]
    kind, _, inner = scheme.rpartition("+")
    if kind == "augmented":
        hint = "list the objects in a plain manifest (manifest+s3://…), or give their prefix"
        raise Unsupported("expected a plain manifest, got an augmented one", object=url, hint=hint, stage="source")
    if kind not in {"", "manifest"} or inner not in {"s3", "file"}:
        raise BadRequest(f"{_FORMS}, got scheme {scheme!r}", object=url, stage="source")
    return _file(url, rest, kind) if inner == "file" else _s3(url, rest, kind)


def _s3(url: str, rest: str, kind: str) -> Location:
    bucket, _, key = rest.partition("/")
    if not re.fullmatch(r"[A-Za-z0-9._:-]+", bucket):
        raise BadRequest(f"expected a bucket after s3://, got {bucket!r}", object=url, stage="source")
    if kind and not key:
        raise BadRequest("expected the key of a manifest, got only a bucket", object=url, stage="source")
    return Location(url, f"s3://{bucket}", key, manifest=bool(kind))


def _file(url: str, rest: str, kind: str) -> Location:
    if not rest.startswith("/") or "\0" in rest:
        hint = "a file URL has three slashes: file:///data/train"
        raise BadRequest(f"expected an absolute path, got {rest!r}", object=url, hint=hint, stage="source")
    return Location(url, FILE_ROOT, rest, manifest=bool(kind))
