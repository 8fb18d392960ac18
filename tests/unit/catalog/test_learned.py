"""Counts that outlive the daemon: kept for the very objects, never trusted beyond that."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from feedd.catalog import index_store, learned_counts
from feedd.catalog.learned_counts import Learned
from feedd.conversion import Conversion
from feedd.dataset.listing import Listing
from feedd.values import Cursor, ObjectRef
from tests.fakes.feeding import batches, feeding

if TYPE_CHECKING:
    from pathlib import Path

REFS = [ObjectRef("s3://b", f"k{number}", 10, f"e{number}") for number in range(4)]


def test_known_after_a_restart(tmp_path: Path) -> None:
    """What was learned is there again, for objects that are what they were."""
    first = Learned(tmp_path / "counts")
    first.load()
    assert first.known(REFS) == {}
    for number in (0, 2):
        first.note(REFS[number], number + 5)
    first.save()
    again = Learned(tmp_path / "counts")
    again.load()
    assert again.known(REFS) == {0: 5, 2: 7}
    assert again.known([ObjectRef("s3://b", "k0", 11, "e0"), ObjectRef("s3://b", "k2", 10, "other")]) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["counts"]


def test_rows_of_some_arrays_say_nothing_of_others(tmp_path: Path) -> None:
    """Of a file's arrays only what was counted of all of them is kept; columns of a table all have as many rows."""
    learned = Learned(tmp_path / "counts")
    for form, count in (('npz:[["x"]]', 2), ('gunzip+hdf5:[["x"]]', 2), ("npz", 5), ('csv:[["x"]]', 3)):
        learned.note(replace(REFS[0], conversion=Conversion.parse(form)), count)
    refs = [
        replace(REFS[0], conversion=Conversion.parse(form))
        for form in ('npz:[["y"]]', "gunzip+hdf5", "npz", 'csv:[["y"]]')
    ]
    assert learned.known(refs) == {0: 5, 2: 5, 3: 3}


@pytest.mark.parametrize(
    "rubbish", [b"", b"no json", b"{}", b"[[1, 2]]", json.dumps([["u", "e", 1, -1]]).encode(), b"\xff" * 50]
)
def test_rubbish_is_nothing_known(tmp_path: Path, rubbish: bytes) -> None:
    """A file that is not ours is passed over, and replaced."""
    (tmp_path / "counts").write_bytes(rubbish)
    learned = Learned(tmp_path / "counts")
    learned.load()
    assert repr(learned) == "Learned(0 shards)"
    learned.note(REFS[0], 1)
    learned.save()
    again = Learned(tmp_path / "counts")
    again.load()
    assert again.known(REFS) == {0: 1}


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    """Nowhere to write is nobody's trouble."""
    learned = Learned(tmp_path / "gone" / "counts")
    learned.load()
    learned.note(REFS[0], 1)
    learned.save()
    Learned().save()


async def test_a_warm_batch_learns_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are learned, and formats worked out, once for each shard: never again for each batch that reads it."""
    entered: list[str] = []

    def counting(owner: object, name: str) -> None:
        whole = getattr(owner, name)

        def noted(*its: object) -> object:
            entered.append(name)
            return whole(*its)

        monkeypatch.setattr(owner, name, noted)

    counting(Listing, "format_of")
    counting(index_store, "conversion_named")
    counting(learned_counts, "counts_apart")
    async with feeding(tmp_path) as rig:
        rig.store.numbers(8, 8, 8, 8)
        session = await rig.open(batch_size=1, shuffle=True)
        first = [batch.ints() for batch in await batches(session)]
        assert len(first) == 32
        entered.clear()
        await batches(session, Cursor(1))
        await rig.close(session)
        again = await rig.open(batch_size=1, shuffle=True)
        assert [batch.ints() for batch in await batches(again)] == first
        assert not [name for name in entered if name == "counts_apart"]
        assert len(entered) <= 2 * 4
