"""ManifestFile: parsing, and looking up what it names."""

from __future__ import annotations

import asyncio
import json

import pytest

from feedd.catalog.manifest import head_all, names_in
from feedd.catalog.urls import parse_url
from feedd.errors import BadRequest, NotFound
from feedd.values import ObjectRef
from tests.fakes.memory_store import MemoryStore


def test_names_are_appended_verbatim() -> None:
    """Prefix plus name, no separator, order and duplicates kept, byte order mark ignored."""
    data = b"\xef\xbb\xbf" + json.dumps([{"prefix": "s3://b/p"}, "/x", "ü", "/x", ""]).encode()
    assert list(names_in(data, "u")) == [("s3://b", "p/x"), ("s3://b", "pü"), ("s3://b", "p/x"), ("s3://b", "p")]


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("s3://", ["b/x", "c/y/", "b/z"]),
        ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/", ["x", "y"]),
        ("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mi", ["ne/x", "nd/y"]),
        ("file:///", ["a", "b/c"]),
        ("tfrecord+s3://b/", ["x"]),
        ("s3://b/dir", ["/x", "", "\ud800"]),
    ],
)
def test_a_prefix_may_end_anywhere(prefix: str, names: list[str]) -> None:
    """Whatever a prefix holds of a URL, store and key are those of the URL that it makes with the name."""
    found = names_in(json.dumps([{"prefix": prefix}, *names]).encode(), "u")
    assert list(found) == [(place.root, place.key) for place in map(parse_url, [prefix + name for name in names])]


@pytest.mark.parametrize("separators", [(",", ":"), (" ,\n\t", ": ")])
@pytest.mark.parametrize(
    ("prefix", "inside", "escapes"),
    [("", "", False), ("", '"\\', True), ("", '",', False), ("ü", '\\",', False), ("ü\ud800", "\udc00", True)],
)
def test_many_names_are_read_piece_by_piece(
    prefix: str, inside: str, separators: tuple[str, str], *, escapes: bool
) -> None:
    """Names of many pieces, with escapes, long ones and spaces between them, are those that JSON says."""
    names = [f"{'ä' * (number % 50)}{inside}{number}{'x' * (40_000 * (number == 3_000))}" for number in range(6_000)]
    text = json.dumps([{"prefix": f"s3://b/{prefix}"}, *names], separators=separators, ensure_ascii=escapes)
    assert [key for _, key in names_in(text.encode(), "u")] == [prefix + name for name in names]


@pytest.mark.parametrize("bad", [b'"\xff"', b'"\\x"', b'"\t"', b"7", b'"' + b"x" * 70_000 + b'"', b""])
def test_a_bad_name_among_many_is_told_by_its_number(bad: bytes) -> None:
    """Which element it is, is said; so is that a comma was followed by nothing."""
    good = b'"name"'
    data = b'[{"prefix": "s3://b/"},' + b",".join([*[good] * 9_000, bad, *[good] * 50]) + b"]"
    with pytest.raises(BadRequest, match="element 9001"):
        names_in(data, "u")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "{}",
        "[]",
        '["x"]',
        '[{"prefix": 1}, "x"]',
        '[{"prefix": ""}, "x"]',
        '[{"prefix": "s3://b/"}]',
        '[{"prefix": "s3://b/"}, "x", {"prefix": "s3://c/"}]',
        '[{"prefix": "s3://b/"}, 7]',
        '[{"prefix": "s3://b/"}; "x", "y"]',
        '[null, "x"]',
        "\udcff",
    ],
)
def test_malformed_manifest_shows_the_shape(text: str) -> None:
    """Whatever is wrong, the error names the manifest and shows what one looks like."""
    with pytest.raises(BadRequest, match="a manifest is") as caught:
        names_in(text.encode(errors="surrogateescape"), "manifest+s3://b/x")
    assert caught.value.object == "manifest+s3://b/x"


async def test_heads_are_bounded_and_in_order() -> None:
    """Lookups run at most so many at a time, and come back in the manifest's order, duplicates too."""
    running = peak = 0

    async def head(root: str, key: str) -> ObjectRef:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001 * (int(key) % 3))
        running -= 1
        return ObjectRef(root, key, int(key), "e")

    names = [("s3://b", str(index % 17)) for index in range(50)]
    refs = await head_all(names, head, 4)
    assert [(ref.root, ref.key) for ref in refs] == names
    assert peak == 4


async def test_missing_object_fails_the_manifest() -> None:
    """One object that is not there is NotFound, naming it; nothing keeps running."""
    store = MemoryStore()
    store.put("a", b"x")
    with pytest.raises(NotFound) as caught:
        await head_all([(store.root, key) for key in ("a", "missing", "a")], lambda _, key: store.head(key), 2)
    assert caught.value.object.endswith("/missing")


async def test_no_names_no_lookups() -> None:
    """Nothing to look up is nothing found."""
    store = MemoryStore()
    assert await head_all([], lambda _, key: store.head(key), 2) == []


def test_an_augmented_manifest_is_named_as_that() -> None:
    """It is an object on each line: the hint says what to write in its place."""
    with pytest.raises(BadRequest) as caught:
        names_in(b'{"source-ref": "s3://b/1.jpg", "label": 1}\n', "s3://b/m")
    assert "write augmented+s3://" in caught.value.hint
