"""How shards are to be read, said by their URL or by what lies beside them, through the daemon's stages."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tests.fixtures
from feedd.dataset.listing import Listing
from feedd.errors import ObjectChanged, Unsupported
from tests.fakes.feeding import URL, batches, feeding

if TYPE_CHECKING:
    from tests.fakes.feeding import Feeding

CHUNKS = Path(tests.fixtures.__file__).parent / "litdata_zstd" / "data"
LINES = b'{"a": 1}\n{"a": 2}\n{"a": 3}\n'


def _put_chunks(rig: Feeding) -> None:
    for path in CHUNKS.iterdir():
        rig.store.put(f"train/{path.name}", path.read_bytes())


async def test_what_index_json_says_is_known_without_believing_its_counts(tmp_path: Path) -> None:
    """A count of one's own reads LitData's chunks, which say nothing of themselves."""
    async with feeding(tmp_path) as rig:
        _put_chunks(rig)
        listing = await rig.pipeline.catalog.fresh((URL,))
        assert listing.counts == {}
        assert [(await rig.pipeline.catalog.index(listing.as_listed, shard)).sample_count for shard in range(2)] == [
            3,
            2,
        ]


async def test_the_url_goes_before_the_name(tmp_path: Path) -> None:
    """JSON Lines read as text are another field, and another run: each resumes only as it began."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/a.jsonl", LINES)
        plain = await rig.open(fields=())
        named = await rig.open(urls=(f"text+{URL}",), fields=())
        assert [spec.name for spec in plain.info.specs] == ["json"]
        assert [spec.name for spec in named.info.specs] == ["text"]
        assert plain.info.fingerprint != named.info.fingerprint
        assert len(await batches(named)) == len(await batches(plain))
        with pytest.raises(ObjectChanged):
            await rig.open(urls=(f"text+{URL}",), fields=(), expect_fingerprint=plain.info.fingerprint)


async def test_what_a_run_is_known_by_is_not_worked_out_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the format of every shard: of the listings that are held, and of the one that is opened."""
    loop, told, real = threading.get_ident(), [], Listing.fingerprint

    def watched(self: Listing, *args: object, **named: object) -> bytes:
        told.append(threading.get_ident())
        return real(self, *args, **named)  # type: ignore[arg-type]  # passed on as they came

    async with feeding(tmp_path) as rig:
        rig.store.put("train/a.jsonl", LINES)
        monkeypatch.setattr(Listing, "fingerprint", watched)
        first = await rig.open(urls=(f"text+{URL}",), fields=())
        again = await rig.open(urls=(f"text+{URL}",), fields=(), expect_fingerprint=first.info.fingerprint)
    assert again.info.fingerprint == first.info.fingerprint
    assert len(told) >= 3
    assert loop not in told


async def test_pictures_may_be_named_shards(tmp_path: Path) -> None:
    """Objects whose names say that they are samples are shards where the URL says so."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/a.jpg", LINES)
        listing = await rig.pipeline.catalog.listing((f"jsonl+{URL}",), lambda _: False)
        assert [ref.key for ref in listing.refs] == ["train/a.jpg"]
        assert (await rig.pipeline.catalog.index(listing.as_listed, 0)).sample_count == 3


async def test_formats_that_nobody_has(tmp_path: Path) -> None:
    """The message lists those there are; nothing of the data is read."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/a.jsonl", LINES)
        with pytest.raises(Unsupported, match="recordio"):
            await rig.open(urls=(f"beton+{URL}",), fields=())
        assert rig.store.reads == []
