"""Which folders are refused because only their own metadata tells which of their files count."""

from __future__ import annotations

import pytest

from feedd.catalog.ignored_objects import IgnoredKeys
from feedd.catalog.table_roots import refuse_root
from feedd.errors import Unsupported
from feedd.values import ObjectRef

MARKERS = {
    "_delta_log/00000000000000000000.json": "a Delta table",
    "_delta_log/_last_checkpoint": "a Delta table",
    "_delta_log/00000000000000000010.checkpoint.parquet": "a Delta table",
    "metadata/v1.metadata.json": "an Iceberg table",
    "metadata/00000-5f2e.gz.metadata.json": "an Iceberg table",
    ".hoodie/hoodie.properties": "a Hudi table",
    "snapshot/snapshot-1": "a Paimon table",
    "_versions/1.manifest": "a Lance dataset",
    ".nv-meta/split.yaml": "an Energon dataset",
}


def refused(key: str, prefix: str, root: str = "s3://bucket") -> Unsupported | None:
    """Return the error for a listing of data and one more object."""
    try:
        refs = [ObjectRef(root, one, 1, "e") for one in (f"{prefix}x/0.parquet", key)]
        refuse_root(refs, prefix, IgnoredKeys(prefix))
    except Unsupported as error:
        return error
    return None


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("prefix", ["", "t/", "a/t/"])
def test_a_root_is_refused_wherever_it_lies(marker: str, prefix: str) -> None:
    """The folder that a URL names, one below it, and one that the URL names without its slash are refused alike."""
    for folder in ("", "day=1/", "x/y/"):
        error = refused(f"{prefix}{folder}{marker}", prefix)
        assert error is not None
        assert MARKERS[marker] in error.message
        assert error.object == f"s3://bucket/{prefix}{folder}".removesuffix("/") or not prefix + folder
        assert "manifest+s3://" in error.hint or "Lance" in error.message
    if prefix:
        assert refused(f"{prefix}{marker}", prefix[:-1]) is not None


@pytest.mark.parametrize("marker", MARKERS)
def test_a_root_among_what_is_passed_over_is_no_reason(marker: str) -> None:
    """Files below a hidden folder are no data, so a table there spoils nothing."""
    assert refused(f"t/_old/{marker}", "t/") is None
    assert refused(f"t/.trash/x/{marker}", "t/") is None


def test_other_names_are_data() -> None:
    """Only the exact names that the formats write tell a table."""
    others = (
        "t/metadata.json t/metadata/a.json t/my_delta_log/00000000000000000000.json t/_delta_log/0.parquet "
        "t/_delta_log.tar t/snapshot/snapshot-a t/snapshot-1 t/x.hoodie/a t/_versions/a.manifest t/split.yaml "
        "t/.nv-meta/.info.json t/xmetadata/v1.metadata.json t/v1.metadata.json"
    )
    for key in others.split():
        assert refused(key, "t/") is None, key


def test_who_names_the_metadata_itself_gets_it() -> None:
    """A URL that begins within the metadata names a folder of files, and not the table."""
    key = "t/_delta_log/00000000000000000000.json"
    for prefix in ("t/_delta_log/", "t/_delta_log", "t/_delta"):
        assert refused(key, prefix) is None


def test_a_folder_of_files_is_named_as_a_path() -> None:
    """The error of a local table names its directory."""
    error = refused("/data/t/.hoodie/x", "/data/t/", "file://")
    assert error is not None
    assert error.object == "file:///data/t"
