"""URLs of datasets: what is accepted, what is refused and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedd.catalog.urls import parse_url
from feedd.errors import BadRequest

ARN = "arn:aws:s3:us-east-1:123456789012:accesspoint"
OUTPOST = "arn:aws:s3-outposts:us-east-1:123456789012:outpost"


@pytest.mark.parametrize(
    ("url", "root", "key", "manifest"),
    [
        ("s3://bucket/train/", "s3://bucket", "train/", False),
        ("s3://bucket", "s3://bucket", "", False),
        ("s3://bucket/", "s3://bucket", "", False),
        ("S3://bucket/a%2Fb c//d?x#y", "s3://bucket", "a%2Fb c//d?x#y", False),
        ("s3://bucket/line\nbreak", "s3://bucket", "line\nbreak", False),
        ("file:///data/train", "file://", "/data/train", False),
        ("/data/train/", "file://", "/data/train/", False),
        ("/", "file://", "/", False),
        ("manifest+s3://bucket/x.manifest", "s3://bucket", "x.manifest", True),
        ("manifest+file:///x.manifest", "file://", "/x.manifest", True),
        (f"s3://{ARN}/ap/train/x y.tar", f"s3://{ARN}:ap", "train/x y.tar", False),
        (f"s3://{ARN}:ap/train/", f"s3://{ARN}:ap", "train/", False),
        (f"s3://{ARN}/ap", f"s3://{ARN}:ap", "", False),
        ("s3://arn:aws:s3::12:accesspoint/m.mrap/k", "s3://arn:aws:s3::12:accesspoint:m.mrap", "k", False),
        (f"s3://{OUTPOST}/op-1/accesspoint/ap/k", f"s3://{OUTPOST}:op-1:accesspoint:ap", "k", False),
    ],
)
def test_accepted(url: str, root: str, key: str, *, manifest: bool) -> None:
    """A URL comes apart into store and key, verbatim."""
    location = parse_url(url)
    assert (location.root, location.key, location.manifest, location.url) == (root, key, manifest, url)


@pytest.mark.parametrize(
    ("url", "root", "key", "manifest"),
    [
        ("tfrecord+s3://bucket/train/", "s3://bucket", "train/", False),
        ("recordio-image+file:///data/", "file://", "/data/", False),
        ("mds+manifest+s3://bucket/x", "s3://bucket", "x", True),
        ("manifest+mds+s3://bucket/x", "s3://bucket", "x", True),
    ],
)
def test_a_format_before_the_url(url: str, root: str, key: str, *, manifest: bool) -> None:
    """One format may stand there, beside the word for a manifest; which there are is not known here."""
    location = parse_url(url)
    assert (location.root, location.key, location.manifest, location.url) == (root, key, manifest, url)
    assert location.format == next(word for word in url.split("+") if word != "manifest")


def test_relative_path_becomes_absolute() -> None:
    """A relative path is taken from the working directory."""
    assert parse_url("data/x").key == str(Path.cwd() / "data/x")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "s3://",
        "s3:///key",
        "s3://bu cket/x",
        "nfs://b/x",
        "ftp://b/x",
        "file://host/x",
        "file://",
        "\0",
        "x+s3://b/k",
        "tar+mds+s3://b/k",
        "manifest+manifest+s3://b/k",
        "s3://arn:aws:s3:::bucket/k",
        f"s3://{ARN}/",
        f"s3://{ARN}",
    ],
)
def test_malformed(url: str) -> None:
    """A URL that names nothing we know is BadRequest, and says what was expected."""
    with pytest.raises(BadRequest, match="expected"):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "ours"),
    [("s3a://b/x", "s3://"), ("s3n://b/x", "s3://"), ("gcs://b/x", "gs://"), ("wasbs://b/x", "abfss://")],
)
def test_other_names_of_stores_are_told_ours(url: str, ours: str) -> None:
    """Whoever writes another system's scheme learns what to write here."""
    with pytest.raises(BadRequest) as caught:
        parse_url(url)
    assert f"write {ours}" in caught.value.hint


def test_a_root_is_a_url_of_itself() -> None:
    """What was taken from a URL means the same when it is read again."""
    location = parse_url(f"s3://{ARN}/ap/train/")
    assert parse_url(location.root).root == location.root
    assert parse_url(f"{location.root}/train/").key == location.key == "train/"


def test_manifest_needs_a_key() -> None:
    """A bucket is no manifest."""
    with pytest.raises(BadRequest, match="manifest"):
        parse_url("manifest+s3://bucket/")


def test_augmented_manifests() -> None:
    """An augmented manifest is a manifest whose lines are samples; no format goes before it."""
    location = parse_url("augmented+s3://bucket/x.manifest")
    assert (location.root, location.key, location.manifest) == ("s3://bucket", "x.manifest", True)
    assert location.augmented
    assert not parse_url("manifest+s3://bucket/x.manifest").augmented
    assert parse_url("augmented+file:///data/x.manifest").key == "/data/x.manifest"
    for url in ("tar+augmented+s3://bucket/x", "augmented+manifest+s3://bucket/x"):
        with pytest.raises(BadRequest, match="only augmented"):
            parse_url(url)
    with pytest.raises(BadRequest, match="key of a manifest"):
        parse_url("augmented+s3://bucket")
