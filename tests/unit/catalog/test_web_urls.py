"""URLs of web servers, of the Hugging Face Hub, and of stores beside S3."""

from __future__ import annotations

import pytest

from feedd.catalog import urls
from feedd.catalog.url_lists import lists_of
from feedd.catalog.urls import parse_url
from feedd.catalog.web_urls import SCHEMES
from feedd.errors import BadRequest, Unsupported


@pytest.mark.parametrize(
    ("url", "root", "key"),
    [
        ("https://Data.Example:443/a/b.tar", "https://data.example", "a/b.tar"),
        ("http://h:8080/a b%20c?x=1", "http://h:8080", "a b%20c?x=1"),
        ("https://[2001:DB8::1]/x", "https://[2001:db8::1]", "x"),
        ("hf://datasets/o/n", "hf://datasets/o/n", ""),
        ("hf://datasets/o/n/train/", "hf://datasets/o/n", "train/"),
        ("hf://datasets/o/n.v-2@v1.0/x/y@z", "hf://datasets/o/n.v-2@v1.0", "x/y@z"),
        (
            "hf://datasets/o/n@refs/convert/parquet/default/train",
            "hf://datasets/o/n@refs%2Fconvert%2Fparquet",
            "default/train",
        ),
        ("hf://datasets/o/n@refs%2Fpr%2F1/x", "hf://datasets/o/n@refs%2Fpr%2F1", "x"),
        ("gs://bucket/a/../b", "gs://bucket", "a/../b"),
        ("az://container/x", "az://container", "x"),
        ("abfss://c@Account.dfs.core.windows.net/x/y", "abfss://c@account.dfs.core.windows.net", "x/y"),
    ],
)
def test_roots_and_keys(url: str, root: str, key: str) -> None:
    """A store has one spelling, so that rules and caches know it; keys stay as they are written."""
    found = parse_url(url)
    assert (found.url, found.root, found.key) == (url, root, key)
    again = parse_url(f"{root}/{key}")
    assert (again.root, again.key) == (root, key)


@pytest.mark.parametrize(
    "url",
    [
        "https://",
        "https:///x",
        "https://user:secret@h/x",
        "https://h/a#b",
        "https://h?q/a",
        "https://h#f/a",
        "https://h/a/../b",
        "https://h/a/%2E%2e/b",
        "https://h/a\\b",
        "https://h:port/x",
        "hf://owner/name/x",
        "hf://datasets/name",
        "hf://datasets/o/n@/x",
        "hf://datasets/o/n@a b/x",
        "hf://datasets/o/n/a/../b",
        "hf://spaces/o/n",
        "gs://",
        "az:///x",
        "abfss://c@evil.example/x",
    ],
)
def test_malformed(url: str) -> None:
    """What a server would read in another way than a rule does is refused, and so are passwords."""
    with pytest.raises(BadRequest) as caught:
        parse_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["X-Amz-Signature", "sig", "Signature", "token"])
def test_signed_urls_are_refused(name: str) -> None:
    """A signature would stand in logs and end in the middle of a run; the error does not repeat it."""
    with pytest.raises(Unsupported, match="signature") as caught:
        parse_url(f"https://h/x?a=1&{name}=verysecret")
    assert "verysecret" not in str(caught.value)


def test_kinds_of_manifests_and_formats() -> None:
    """Manifests and named formats work with every store."""
    found = parse_url("manifest+https://h/list.json")
    assert (found.manifest, found.root, found.key) == (True, "https://h", "list.json")
    assert parse_url("tfrecord+hf://datasets/o/n/x").format == "tfrecord"
    with pytest.raises(BadRequest, match="manifest"):
        parse_url("manifest+gs://bucket")


def test_all_schemes_are_known() -> None:
    """The set that is looked into without loading the parsers is the parsers'."""
    assert frozenset(SCHEMES) == urls._WEB_SCHEMES


def test_neighbouring_objects_of_web_servers_are_one_list() -> None:
    """Their heads are requested together; other URLs keep their place between them."""
    found = lists_of(
        ["https://h/a", "http://g/b", "s3://x/y", "https://h/{c,d}", "https://h/e", "manifest+https://h/m"]
    )
    assert [[location.url for location in one.locations] for one in found] == [
        ["https://h/a", "http://g/b"],
        ["s3://x/y"],
        ["https://h/c", "https://h/d"],
        ["https://h/e"],
        ["manifest+https://h/m"],
    ]
    assert [len(one.names) for one in found] == [2, 0, 2, 1, 0]
