"""Parses the URLs of datasets."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from feedd.access import FILE_ROOT
from feedd.errors import BadRequest, Unsupported
from feedd.recipe import plugins

_SCHEME = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_ACCEPTED = (
    "expected s3://bucket/prefix, file:///directory, a path, gs://bucket/prefix, az://container/prefix, "
    "hf://datasets/owner/name/prefix, https://host/object, manifest+s3://bucket/key, augmented+s3://bucket/key "
    "or frozen+s3://bucket/prefix/"
)
_MANIFEST, _AUGMENTED, _FROZEN = "manifest", "augmented", "frozen"
_ARN = re.compile(
    r"(?P<head>arn:[a-z0-9-]+:s3[a-z-]*:[a-z0-9-]*:[0-9]*:(outpost[:/][^:/]+[:/])?accesspoint)[:/](?P<name>[^:/]+)"
    r"(/(?P<key>.*))?",
    re.DOTALL,
)
_HINTS = {
    "s3a": "write s3:// in place of s3a://",
    "channel": "FeedDataset and feedd pipe read channels; name the channel's s3:// URL here",
    "s3n": "write s3:// in place of s3n://",
    "wasb": "write abfs:// in place of wasb://",
    "wasbs": "write abfss:// in place of wasbs://",
    "gcs": "write gs:// in place of gcs://",
}
S3_SCHEME, _FILE_SCHEME = "s3", "file"
_WEB_SCHEMES = frozenset({"https", "http", "hf", "gs", "az", "abfs", "abfss"})  # the keys of web_urls.SCHEMES
_FORMAT = re.compile(r"[a-z0-9][a-z0-9.-]+")


@dataclass(frozen=True, slots=True)
class Location:
    """The parts of a URL.

    Attributes:
        url: the URL as it was given.
        root: ``s3://bucket``, ``file://``, or ``SCHEME://NAME`` of an installed store.
        key: key or prefix, verbatim: nothing in it is percent-decoded.
        manifest: whether the object is a manifest, which lists the data.
        frozen: whether the folder's frozen manifest lists the data (``catalog.frozen``), or one version of it.
        format: format of its shards, whatever their names (``tfrecord+s3://bucket/prefix/``); empty: their names
            decide. This module does not check whether the format exists.
        augmented: whether the manifest is an augmented one, whose lines are samples.
    """

    url: str
    root: str
    key: str
    manifest: bool
    format: str = ""
    augmented: bool = False
    frozen: bool = False

    @property
    def bucket(self) -> str:
        """Bucket of an S3 location."""
        return self.root.removeprefix("s3://")


def parse_url(url: str) -> Location:
    """Split ``url`` into its parts, without any request.

    Raises:
        BadRequest: malformed URL.
        Unsupported: the scheme is understood but not served.
    """
    if url.startswith("pipe:"):
        hint = "specify the objects that the command reads: s3://bucket/shard-{0000..0127}.tar"
        raise Unsupported("expected a URL, got a shell command", object=url, hint=hint, stage="source")
    match = _SCHEME.fullmatch(url)
    if match is None:
        if not url or "\0" in url:
            raise BadRequest(f"{_ACCEPTED}, got {url!r}", stage="source")
        kept_slash = "/" if url.endswith("/") else ""
        return Location(url, FILE_ROOT, str(Path(url).absolute()).rstrip("/") + kept_slash, manifest=False)
    scheme, rest = match["scheme"].lower(), match["rest"]
    *kinds, inner = scheme.split("+")
    augmented = _AUGMENTED in kinds
    named = [kind for kind in kinds if kind not in {_MANIFEST, _AUGMENTED, _FROZEN}]
    if augmented and len(kinds) > 1:
        hint = "the extension of each object tells what it is, and fields= how to decode it"
        raise BadRequest("expected only augmented+ before the URL", object=url, hint=hint, stage="source")
    known = inner in {S3_SCHEME, _FILE_SCHEME} or inner in _WEB_SCHEMES or inner in plugins.names(plugins.STORES)
    if not known or len(named) > 1 or len(kinds) > len(named) + 1 or not _formats(named):
        hint = "" if known else _HINTS.get(inner, "")
        raise BadRequest(f"{_ACCEPTED}, got scheme {scheme!r}", object=url, hint=hint, stage="source")
    kind = _MANIFEST if _MANIFEST in kinds or augmented else ""
    if inner == _FILE_SCHEME:
        location = _file(url, rest, kind)
    elif inner == S3_SCHEME:
        location = _s3(url, rest, kind)
    elif inner in _WEB_SCHEMES:
        from feedd.catalog.web_urls import split_web  # noqa: PLC0415 - most runs have no such URL

        root, key = split_web(url, inner, rest)
        if kind and not key:
            raise BadRequest("expected the key of a manifest, got only its store", object=url, stage="source")
        location = Location(url, root, key, manifest=bool(kind))
    else:
        location = _installed(url, inner, rest, kind)
    if not kinds:
        return location
    return replace(location, format=named[0] if named else "", augmented=augmented, frozen=_FROZEN in kinds)


def likely_bucket(location: Location) -> str:
    """Return a hint for a missing relative path, where ``s3://`` was most likely forgotten; else an empty text."""
    url = location.url
    relative = location.root == FILE_ROOT and "://" not in url and not url.startswith(("/", ".", "~"))
    bucket = re.sub(r"^s3:/*", "", url)  # one slash was forgotten, or both
    return f"did you mean s3://{bucket}? A path is looked up where the daemon runs" if relative else ""


def _formats(named: list[str]) -> bool:
    return all(_FORMAT.fullmatch(name) for name in named)


def _s3(url: str, rest: str, kind: str) -> Location:
    bucket, _, key = rest.partition("/")
    if rest.startswith("arn:"):
        bucket, key = _access_point(url, rest)
    if not re.fullmatch(r"(?!\.+$)[A-Za-z0-9._:-]+", bucket):
        raise BadRequest(f"expected a bucket after s3://, got {bucket!r}", object=url, stage="source")
    if kind and not key:
        raise BadRequest("expected the key of a manifest, got only a bucket", object=url, stage="source")
    return Location(url, f"s3://{bucket}", key, manifest=bool(kind))


def _installed(url: str, scheme: str, rest: str, kind: str) -> Location:
    name, _, key = rest.partition("/")
    if not re.fullmatch(r"(?!\.+$)[A-Za-z0-9._:-]+", name):
        raise BadRequest(f"expected a name after {scheme}://, got {name!r}", object=url, stage="source")
    if kind and not key:
        raise BadRequest("expected the key of a manifest, got only a name", object=url, stage="source")
    return Location(url, f"{scheme}://{name}", key, manifest=bool(kind))


def _access_point(url: str, rest: str) -> tuple[str, str]:
    """Return an access point as an ARN without slashes, which means the same as one with slashes, and a key."""
    match = _ARN.fullmatch(rest)
    if match is None:
        hint = "write s3://arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME/PREFIX"
        raise BadRequest(f"expected the ARN of an access point, got {rest}", object=url, hint=hint, stage="source")
    return f"{match['head'].replace('/', ':')}:{match['name']}", match["key"] or ""


def _file(url: str, rest: str, kind: str) -> Location:
    if not rest.startswith("/") or "\0" in rest:
        hint = "a file URL has three slashes: file:///data/train"
        raise BadRequest(f"expected an absolute path, got {rest!r}", object=url, hint=hint, stage="source")
    return Location(url, FILE_ROOT, rest, manifest=bool(kind))
