"""The list of entries: what was listed comes back, in the order of its last place."""

from __future__ import annotations

import tempfile
from pathlib import Path

import hypothesis.strategies as st
import msgspec
from awscrt.checksums import crc32c
from hypothesis import given, settings

from feedd.cache.recovery import _FRAME, INDEX_NAME, Journal, Record, record_of
from feedd.values import ObjectRef
from tests.budget import budget

RUNS = [(bytes([number]) * 16, bytes([number + 1]) * 16) for number in range(3)]
KEYS = ["a", "train/b.tar", "zoë", "not-utf8-\udcff", "", "c" * 300]
records = st.builds(
    lambda root, key, size, run: record_of(ObjectRef(root, key, size, f"{size:x}"), *run),
    st.sampled_from(["s3://bucket", "file://", "s3://\udc80"]),
    st.sampled_from(KEYS),
    st.sampled_from([0, 1, 1 << 40]),
    st.sampled_from(RUNS),
)


def listed(directory: Path) -> list[tuple[str, Record]]:
    """Read the list as a fresh start would."""
    return list(Journal(directory).read().items())


@given(written=st.lists(records, max_size=12), added=st.lists(records, max_size=12))
@settings(max_examples=budget(100), deadline=None)
def test_what_is_listed_comes_back_by_its_last_place(written: list[Record], added: list[Record]) -> None:
    """Entries come back whole, texts that are not UTF-8 too; one that is listed again counts where it is last."""
    expected: dict[str, Record] = {}
    for record in (*written, *added):
        expected.pop(record.name, None)
        expected[record.name] = record
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        journal = Journal(directory)
        journal.start(written)
        for record in added:
            journal.add(record)
        journal.close()
        assert listed(directory) == list(expected.items())


def test_a_chunk_of_uneven_columns_ends_the_list(tmp_path: Path) -> None:
    """A chunk that checks out but makes no sense is left out whole, with what follows, and is cut off."""
    first, second, third = (record_of(ObjectRef("s3://b", key, 1, "e"), *RUNS[0]) for key in "abc")
    journal = Journal(tmp_path)
    journal.start([first])
    journal.close()
    good_bytes = (tmp_path / INDEX_NAME).stat().st_size
    names = bytes.fromhex(second.name + third.name)
    payload = msgspec.msgpack.encode([[RUNS[0]], [b"s3://b"], names, [b"b", b"c"], [b"e", b"e"], [1], [0, 0], [0, 0]])
    with (tmp_path / INDEX_NAME).open("ab") as file:
        file.write(_FRAME.pack(len(payload), crc32c(payload)) + payload)
    again = Journal(tmp_path)
    assert list(again.read()) == [first.name]
    again.resume([first])
    again.close()
    assert (tmp_path / INDEX_NAME).stat().st_size == good_bytes
