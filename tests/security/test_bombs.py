"""Small objects that expand: bounded workers, a bounded daemon, and a typed error or the exact data."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from feedd_client import FeedDataset
from tests.e2e.daemon import Daemon
from tests.security.bombs import BOMBS, HONEST, SETTINGS, WORKER_BYTES, laid, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.security.bombs import Bomb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_FINAL = {"BadShardError", "BadSampleError", "BadRecipeError", "BadConfigError", "BadRequestError", "UnsupportedError"}
_CASES = [
    pytest.param(bomb, id=name, marks=[pytest.mark.nightly] if bomb.is_heavy else []) for name, bomb in BOMBS.items()
]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """A daemon with a small limit for its workers."""
    with (
        TemporaryDirectory(prefix="fd-", dir="/tmp") as home,
        Daemon(Path(home), "http://127.0.0.1:9", cache_size="256MiB", settings=SETTINGS, forked=False) as daemon,
    ):
        assert _healthy(daemon, Path(home) / "healthy") == 40
        yield daemon


def _healthy(daemon: Daemon, folder: Path) -> int:
    """Return how many lines of a healthy dataset are read."""
    folder.mkdir(exist_ok=True)
    (folder / "0.txt").write_text("".join(f"line {number}\n" for number in range(40)))
    dataset = FeedDataset(f"file://{folder}/", batch_size=8, fields={"text": "str"}, address=daemon.address, copy=True)
    return sum(len(batch["text"]) for batch in dataset)


@pytest.mark.parametrize("bomb", _CASES)
def test_a_bomb_is_bounded(daemon: Daemon, bomb: Bomb, tmp_path: Path) -> None:
    """No worker and no daemon takes more than its limit, and a healthy dataset is read afterwards."""
    found = opened(daemon, bomb, laid(bomb, tmp_path / "data"))
    assert found.worker_bytes <= WORKER_BYTES, found
    assert found.rise_bytes <= bomb.rise_bytes, found
    assert not found.error or found.error in _FINAL, found
    if bomb.reads:
        assert f"the first of {bomb.reads} rows" in found.said, found
    assert _healthy(daemon, tmp_path / "healthy") == 40


@pytest.mark.parametrize("name", HONEST)
def test_a_small_file_with_many_rows_is_read(daemon: Daemon, name: str, tmp_path: Path) -> None:
    """The limits that stop bombs let small files with a million rows or more pass."""
    rows, make = HONEST[name]
    (tmp_path / name).write_bytes(make(rows))
    dataset = FeedDataset(f"file://{tmp_path}/", batch_size=1 << 16, address=daemon.address, copy=True)
    assert sum(len(next(iter(batch.values()))) for batch in dataset) == rows
