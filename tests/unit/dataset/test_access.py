"""Which URLs an owner may read."""

from __future__ import annotations

import pytest

from feedd.access import EVERYTHING, STORES_ONLY, Access, AccessRules, completed
from feedd.errors import PermissionDenied
from feedd.owner import Owner


@pytest.mark.parametrize(
    ("rule", "root", "key", "covered"),
    [
        ("s3://", "s3://any", "x", True),
        ("s3://bucket", "s3://bucket", "", True),
        ("s3://bucket", "s3://bucket2", "x", False),
        ("s3://bucket/train/", "s3://bucket", "train/a.tar", True),
        ("s3://bucket/train/", "s3://bucket", "train", False),  # as a prefix it would list train-private/ as well
        ("s3://bucket/train", "s3://bucket", "train-private/a.tar", True),  # letter by letter, as S3 matches
        ("s3://bucket/train/", "s3://bucket", "val/a.tar", False),
        ("file:///data", "file://", "/data", True),
        ("file:///data/", "file://", "/data/a.tar", True),
        ("file:///data", "file://", "/database/a.tar", False),
        ("file:///data", "file://", "/data/../etc/passwd", False),
        ("file:///data/a.tar", "file://", "/data/a.tar", True),
        ("file:///data/a.tar", "file://", "/data/a.tar.gz", False),
        ("file://", "file://", "/etc/passwd", True),
        ("file:///data", "s3://data", "", False),
        ("gs://", "gs://bucket", "x", True),
        ("nfs://vol/train/", "nfs://vol", "train/../private/x", False),  # an installed store may resolve it
        ("s3://b/train/", "s3://b", "train/../x", True),  # in S3 a name like any other
        ("https://h/open/", "https://h", "open/a.tar", True),
        ("https://h/open/", "https://h", "open/../x", False),
        ("https://h/open/", "https://h", "open/%2e%2E/x", False),  # the server decodes it
        ("https://h/open/", "https://h", "open/.%2e?x", False),
        ("https://h/open/", "https://h", "open/..\\x", False),
        ("https://h/open/", "https://h", "open/a..b%2e.tar", True),
        ("https://h/open/", "http://h", "open/a.tar", False),
        ("https://h", "https://h:8080", "x", False),
        ("hf://datasets/o/", "hf://datasets/o/n@main", "x", True),
        ("hf://datasets/o/n", "hf://datasets/o/n", "data/x", True),
        ("hf://datasets/o/n", "hf://datasets/o/n@main", "data/x", True),
        ("hf://datasets/o/n", "hf://datasets/o/n-private", "data/x", False),
        ("hf://datasets/o/n@v1", "hf://datasets/o/n@v1", "x", True),
        ("hf://datasets/o/n@v1", "hf://datasets/o/n@v10", "x", False),
        ("hf://datasets/o", "hf://datasets/o/n", "x", True),
        ("hf://datasets/o", "hf://datasets/other/n", "x", False),
        ("hf://datasets/o/n/data/", "hf://datasets/o/n", "data/x", True),
        ("hf://datasets/o/n/data/", "hf://datasets/o/n", "database/x", False),
    ],
)
def test_a_rule_is_the_start_of_urls(rule: str, root: str, key: str, covered: bool) -> None:
    """Letter by letter for stores; folder by folder for files."""
    assert Access(completed(rule)).covers(root, key) is covered


def test_shared_daemons_read_buckets_only() -> None:
    """What a shared daemon allows where nothing is configured."""
    access = Access(STORES_ONLY)
    assert access.covers("s3://any", "x")
    assert access.covers("gs://any", "x")
    assert access.covers("hf://datasets/owner/name", "x")
    assert not access.covers("https://service.internal", "x")
    assert not access.covers("http://127.0.0.1:8080", "x")
    assert not access.covers("file://", "/data/a.tar")
    assert EVERYTHING.covers("file://", "/etc/passwd")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bucket/train",
        "file://data",
        "://x",
        "s 3://x",
        "https://h/a/../b/",
        "hf://datasets/o/n@..",
        "file:///a/../b",
    ],
)
def test_what_is_no_start_of_a_url(text: str) -> None:
    """A rule that could never match would lock everybody out."""
    with pytest.raises(ValueError, match="expected"):
        completed(text)


def test_names_of_a_manifest_are_checked_one_by_one() -> None:
    """The error names the first that may not be read, and the manifest."""
    access = Access(("s3://b/train/",))
    access.check_names([("s3://b", "train/1"), ("s3://b", "train/2")], "manifest+s3://b/train/m")
    with pytest.raises(PermissionDenied, match=r"s3://b/val/1, which manifest\+s3://b/train/m names"):
        access.check_names([("s3://b", "train/1"), ("s3://b", "val/1")], "manifest+s3://b/train/m")
    EVERYTHING.check_names(iter(()), "m")


def test_owners_may_have_rules_of_their_own() -> None:
    """By user id, by certificate, and for those who show none; the folders of all are what the daemon opens."""
    rules = AccessRules(("s3://all/",), {"1000": ("file:///a/",), "trainer": ("file:///b/",), "tcp": ()})
    assert rules.of(Owner.of_uid(1)).rules == ("s3://all/",)
    assert rules.of(Owner.of_uid(1000)).rules == ("file:///a/",)
    assert rules.of(Owner("subject", "trainer")).rules == ("file:///b/",)
    assert not rules.of(Owner("tcp")).covers("s3://all", "x")
    assert rules.folders == ("/a/", "/b/")
    assert AccessRules().folders is None
    assert AccessRules(STORES_ONLY).folders == ()


def test_a_certificate_is_no_user() -> None:
    """A common name that looks like a user id, or like no certificate, has no part in their rules."""
    rules = AccessRules(("s3://public/",), {"1000": ("s3://a/",), "tcp": ("s3://b/",), "cn:1000": ("s3://c/",)})
    assert rules.of(Owner("uid", "1000")).rules == ("s3://a/",)
    assert rules.of(Owner("tcp")).rules == ("s3://b/",)
    assert rules.of(Owner("subject", "1000")).rules == ("s3://c/",)
    assert rules.of(Owner("subject", "tcp")).rules == ("s3://public/",)
