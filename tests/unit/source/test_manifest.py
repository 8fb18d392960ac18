"""ManifestFile: parsing, and looking up what it names."""

from __future__ import annotations

import asyncio
import json

import pytest

from feedd.errors import BadRequest, NotFound
from feedd.source.manifest import head_all, parse_manifest
from feedd.source.memory import MemoryStore
from feedd.values import ObjectRef


def test_names_are_appended_verbatim() -> None:
    """Prefix plus name, no separator, order and duplicates kept, byte order mark ignored."""
    data = b"\xef\xbb\xbf" + json.dumps([{"prefix": "s3://b/p"}, "/x", "ü", "/x", ""]).encode()
    assert list(parse_manifest(data, "u")) == ["s3://b/p/x", "s3://b/pü", "s3://b/p/x", "s3://b/p"]


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
        '[null, "x"]',
        "\udcff",
    ],
)
def test_malformed_manifest_shows_the_shape(text: str) -> None:
    """Whatever is wrong, the error names the manifest and shows what one looks like."""
    with pytest.raises(BadRequest, match="a manifest is") as caught:
        list(parse_manifest(text.encode(errors="surrogateescape"), "manifest+s3://b/x"))
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
        list(parse_manifest(b'{"source-ref": "s3://b/1.jpg", "label": 1}\n', "s3://b/m"))
    assert "augmented" in caught.value.hint
    assert "prefix" in caught.value.hint
