"""The object store suite over the store of docs/examples/plugins."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from tests.conformance import object_store_suite as suite
from tests.conformance.object_store_suite import Bed
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path


_S3_ONLY = {"test_folder_markers_are_left_out", "test_checksum_that_is_kept_is_told"}  # files have neither
globals().update({name: test for name, test in vars(suite).items() if name[:5] == "test_" and name not in _S3_ONLY})


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """A shelf of one folder."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples" / "plugins"))
    monkeypatch.setenv("SHELF_ROOT", str(tmp_path))
    store = importlib.import_module("shelf_store").ShelfStore
    folder = tmp_path / "toys"
    folder.mkdir()

    def put(name: str, data: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    return Bed(store("shelf://toys"), put, lambda name: (folder / name).unlink(), odd_names=(" lead", "q?x=1#y&z"))
