"""Freezing a dataset: a reader gets what a listing gives, and versions are only added."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from feedd.catalog.frozen import read_frozen
from feedd.catalog.sources import Sources
from feedd.catalog.urls import parse_url
from feedd.clock import SystemClock
from feedd.dataset.frozen_manifest import render
from feedd.dataset.listing import Listing
from feedd.dataset.ref_columns import RefColumns
from feedd.errors import BadRequest, FeeddError, NotFound, Unsupported
from feedd.fetch.fetch_options import SourceOptions
from feedd.formats.format_registry import format_for
from feedd.observe.recorder import NullRecorder
from feedd.prepare.manifest_writer import Written, difference, freeze, manifest_of, representative_name
from feedd.tables.converter import formed
from feedd.tables.registry import conversion_for
from tests.unit.dataset.test_frozen_manifest import manifest

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.catalog.url_listing import Resolved

SHARDS = ("b/01.tar", "a/00.parquet", "c.tar.gz", "train-00000-of-00010.parquet", "é.tar", "x.parquet-00001-of-00002")


def _fill(folder: Path, names: tuple[str, ...]) -> str:
    for number, name in enumerate(names):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * (number + 1))
    return f"file://{folder}/"


def _sources() -> Sources:
    return Sources(SourceOptions(), NullRecorder(), SystemClock())


def _listing(found: Resolved) -> Listing:
    listing = Listing.of(formed(found.refs), 0.0)
    listing.packs, listing.passed_over = found.packs, found.passed_over
    listing.counts = {number: 10 + number for number in range(len(found.refs))}
    return listing


async def _frozen(sources: Sources, url: str) -> tuple[Written, Listing]:
    listing = _listing(await sources.resolve_all([url]))
    return await freeze(sources, parse_url(url), parse_url(url).key, listing), listing


async def test_a_frozen_dataset_is_the_listed_one(tmp_path: Path) -> None:
    """Objects, conversions, counts, digest and notices, though no object but the manifest is looked at."""
    url = _fill(tmp_path, (*SHARDS, "_SUCCESS", "notes.md"))
    async with _sources() as sources:
        written, listed = await _frozen(sources, url)
        found = await sources.resolve_all([f"frozen+{url}"])
    assert written.url == f"file://{tmp_path}/_feedd_manifest/00000001.feedd"
    assert found.only is not None
    frozen = found.only.listing(5.0)
    assert frozen is not None
    assert isinstance(frozen.refs, RefColumns)
    assert list(frozen.refs) == list(listed.refs)
    assert (frozen.digest, dict(frozen.counts), frozen.indexed) == (listed.digest, listed.counts, True)
    assert frozen.sizes.tolist() == listed.sizes.tolist()
    assert frozen.passed_over.reasons == listed.passed_over.reasons != {}
    assert frozen.numbers.find(listed.refs[2:4], frozen.refs).tolist() == [2, 3]
    assert frozen.numbers.find([formed(found.refs)[0].__class__("s3://b", "c.tar", 1, "e")], frozen.refs).tolist() == [
        -1
    ]


async def test_single_objects_are_grouped_as_after_a_listing(tmp_path: Path) -> None:
    """The packs are the same objects, so cached packs stay in use."""
    names = [f"{kind}/{number:03d}.{ending}" for kind in "ab" for number in range(9) for ending in ("jpg", "cls")]
    url = _fill(tmp_path, (*names, "a/lonely.txt", "a/q.cls", "a/q.jpg", "a/q.r.jpg", "z.tar"))
    async with _sources() as sources:
        listed = await sources.resolve_all([url])
        await _frozen(sources, url)
        frozen = await sources.resolve_all([f"frozen+{url}"])
        found = await read_frozen(sources.texts, sources.store("file://"), parse_url(f"frozen+{url}"))
        both = await sources.resolve_all([f"frozen+{url}", f"frozen+{url}"])
    assert frozen.refs == listed.refs
    keys = [ref.key for ref in found.refs]
    assert keys == sorted(keys)
    assert both.refs == (*listed.refs, *listed.refs)
    assert [pack.counts for pack in frozen.packs] == [pack.counts for pack in listed.packs]


async def test_several_frozen_folders_are_one_dataset(tmp_path: Path) -> None:
    """One after another, with the counts of each."""
    urls = [_fill(tmp_path / name, ("0.tar", "1.tar")) for name in "ab"]
    async with _sources() as sources:
        for url in urls:
            await _frozen(sources, url)
        found = await sources.resolve_all([f"frozen+{url}" for url in urls])
        listed = await sources.resolve_all(urls)
    assert (tuple(found.refs), found.counts) == (listed.refs, {0: 10, 1: 11, 2: 10, 3: 11})
    assert len(found.frozen) == 2


async def test_versions_are_added_and_compared(tmp_path: Path) -> None:
    """The same objects make no version; what was added, removed and changed is counted."""
    url = _fill(tmp_path, ("0.tar", "1.tar", "2.tar"))
    async with _sources() as sources:
        first, _ = await _frozen(sources, url)
        again, _ = await _frozen(sources, url)
        assert (first.new, again.new, again.url) == (True, False, first.url)
        (tmp_path / "1.tar").unlink()
        (tmp_path / "2.tar").write_bytes(b"changed")
        (tmp_path / "3.tar").write_bytes(b"new")
        listing = _listing(await sources.resolve_all([url]))
        found = await difference(sources, parse_url(url), parse_url(url).key, listing)
        assert found is not None
        assert (found.added, found.removed, found.changed, found.total) == (1, 1, 1, 3)
        assert found.example == f"{tmp_path}/2.tar"
        second, _ = await _frozen(sources, url)
        assert (second.new, os.path.basename(second.url)) == (True, "00000002.feedd")  # noqa: PTH119 - of a URL
        pinned = await sources.resolve_all([f"frozen+{first.url}"])
        earlier = await sources.resolve_all([f"frozen+{url}"], back=1)
        newest = await sources.resolve_all([f"frozen+{url}"])
    assert [len(one.refs) for one in (pinned, earlier, newest)] == [3, 3, 3]
    assert list(pinned.refs) == list(earlier.refs) != list(newest.refs)


async def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """No manifest; another format than the frozen one; a path that leads out of the folder; a shard without a count."""
    url = _fill(tmp_path, ("0.tar",))
    async with _sources() as sources:
        with pytest.raises(NotFound, match="expected a frozen manifest, got none"):
            await sources.resolve_all([f"frozen+{url}"])
        written, listing = await _frozen(sources, url)
        with pytest.raises(BadRequest, match="expected the format that names tell of the manifest, got tfrecord"):
            await sources.resolve_all([f"frozen+tfrecord+{url}"])
        file = tmp_path / "_feedd_manifest" / "00000001.feedd"
        file.write_bytes(render(manifest([("../secret.tar", 1, "e", 1)])))
        with pytest.raises(BadRequest, match=r"below the manifest's folder, got the key '\.\./secret\.tar'"):
            await sources.resolve_all([f"frozen+{url}"])
        listing.counts = {}
        with pytest.raises(BadRequest, match="expected the samples of every shard"):
            manifest_of(listing, f"{tmp_path}/", "")
    assert written.objects == 1


@pytest.mark.parametrize("url", ["frozen+manifest+s3://b/k", "frozen+frozen+s3://b/k"])
def test_one_manifest_at_a_time(url: str) -> None:
    """A list of names is no frozen manifest."""
    with pytest.raises(FeeddError, match="expected s3://"):
        parse_url(url)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("a/shard-000123.tar", "x.tar"),
        ("a/0.000123.TAR", "x.0.tar"),
        ("chunk-0-17.bin", "chunk-0-0.bin"),
        ("train-00000-of-00010.parquet", "x.parquet"),
        ("x.parquet-00001-of-00002", "x.parquet-0-of-0"),
        ("a.mp3", "x.mp3"),
        ("data", "x"),
    ],
)
def test_few_names_stand_for_all(key: str, name: str) -> None:
    """And mean the same format and conversion."""
    assert representative_name(key) == name
    assert conversion_for(name) == conversion_for(key)
    try:
        assert format_for(name) == format_for(key)
    except Unsupported:
        with pytest.raises(Unsupported):
            format_for(key)
