"""What a later run believes about the files of an earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.file_mode.file_journal import FileJournal, FileRecord, FileStamp
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path

RECORD = FileRecord("s3://b/a", "etag", FileStamp(5, 77, 3))
ODD = FileRecord("file:///\udcff", 'e"t', FileStamp(0, 1, 2))


def _written(path: Path, boot: str, **records: FileRecord) -> FileJournal:
    journal = FileJournal(path, boot)
    journal.begin()
    for name, record in records.items():
        journal.add(name, record)
    journal.close()
    return journal


def test_records_of_this_boot_are_believed(tmp_path: Path) -> None:
    """Across runs, the last record of a path counts; names need not be UTF-8."""
    path = tmp_path / "x.files"
    assert FileJournal(path, "one").read() == {}
    _written(path, "one", a=ODD, b=RECORD)
    _written(path, "one", a=RECORD)
    assert FileJournal(path, "one").read() == {"a": RECORD, "b": RECORD}


def test_records_of_another_boot_are_believed_if_they_were_flushed(tmp_path: Path) -> None:
    """After a power cut a file may have its length without its bytes."""
    path = tmp_path / "x.files"
    _written(path, "one", a=RECORD).settle([("a", RECORD)], tmp_path)
    _written(path, "one", b=RECORD)
    assert set(FileJournal(path, "one").read()) == {"a", "b"}
    assert set(FileJournal(path, "two").read()) == {"a"}
    assert [one.name for one in tmp_path.iterdir()] == ["x.files"]


@pytest.mark.parametrize("torn", ['["a", "u', '["a", "u", "e", 1, 2]', '["a", "u", "e", 1, 2, "3"]', "7", "{}", "\0\0"])
def test_a_torn_line_costs_only_itself(tmp_path: Path, torn: str) -> None:
    """A run that was killed leaves half a line; the next run's lines are whole."""
    path = tmp_path / "x.files"
    _written(path, "one", a=RECORD)
    with path.open("a") as text:
        text.write(torn)
    _written(path, "one", b=RECORD)
    assert FileJournal(path, "one").read() == {"a": RECORD, "b": RECORD}


def test_a_torn_line_does_not_hide_the_next_section(tmp_path: Path) -> None:
    """Else files of a boot would be believed like the flushed files of the section before."""
    path = tmp_path / "x.files"
    _written(path, "one").settle([("a", RECORD)], tmp_path)
    with path.open("a") as text:
        text.write('["a", "u')
    _written(path, "one", b=RECORD)
    assert set(FileJournal(path, "two").read()) == {"a"}


def test_a_record_is_of_one_version() -> None:
    """URL, ETag and size all count."""
    assert RECORD.holds(ObjectRef("s3://b", "a", 5, "etag"))
    others = [("s3://c", "a", 5, "etag"), ("s3://b", "a", 6, "etag"), ("s3://b", "a", 5, "other")]
    assert not any(RECORD.holds(ObjectRef(*other)) for other in others)
