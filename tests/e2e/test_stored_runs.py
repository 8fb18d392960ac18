"""What a run reads is what it read when this was stored: orders, values, pixels and states, whatever the code is like.

``STORE_RUNS=1 python -m pytest tests/e2e/test_stored_runs.py`` stores them anew. Do that only where a change of
them is meant, and say so in the changelog: a checkpoint of the version before no longer goes on as it did.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from feedd_client import FeedDataset
from tests.e2e.stored_runs import RUNS, STORED, Run, fill, read, rest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

_STORE = "STORE_RUNS" in os.environ
_MOST_OFF, _MEAN_OFF = 3, 0.25  # of 255: what processors' ways of rounding may change in a picture


def _close(found: Any, stored: Any) -> None:
    """Make sure that two fields of pictures differ by no more than rounding."""
    scale = 1.0 if stored.dtype == np.uint8 else 1 / 50
    off = np.abs(found.astype(np.float64) - stored.astype(np.float64))
    assert off.max(initial=0) <= _MOST_OFF * scale
    assert off.size == 0 or off.mean() <= _MEAN_OFF * scale


def _without_pictures(value: Any, where: str, pictures: dict[str, Any]) -> Any:
    """Return what is stored as JSON; numbers of pictures are put beside it."""
    if isinstance(value, dict):
        if "numbers" in value:
            pictures[where] = value["numbers"]
        kept = {name: one for name, one in value.items() if name != "numbers"}
        return {name: _without_pictures(one, f"{where}/{name}", pictures) for name, one in kept.items()}
    if isinstance(value, list):
        return [_without_pictures(one, f"{where}/{number}", pictures) for number, one in enumerate(value)]
    return value


def _read(dataset: FeedDataset, run: Run) -> tuple[Any, dict[str, Any]]:
    """Return what a run reads as JSON says it, and the numbers of its pictures."""
    pictures: dict[str, Any] = {}
    epochs, state = read(dataset, run)
    dataset.close()
    return {"epochs": _without_pictures(epochs, "epochs", pictures), "state": state}, pictures


@pytest.mark.parametrize("name", RUNS)
def test_a_run_reads_what_it_read(s3: S3Server, daemons: Callable[..., Daemon], name: str) -> None:
    """Batches of whole epochs, and what follows a state that was stored then."""
    run, address = RUNS[name], daemons().address
    fill(s3, run)
    found, pictures = _read(FeedDataset(run.url, address=address, **run.options), run)
    path = STORED / (name.replace(": ", "-").replace(" ", "-") + ".json")
    if _STORE:
        path.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
        if run.pictures:
            np.savez_compressed(path.with_suffix(".npz"), **pictures)
        return
    stored = json.loads(path.read_text())
    assert found == stored
    if run.pictures:
        with np.load(path.with_suffix(".npz")) as pixels:
            assert sorted(pictures) == sorted(pixels.files)
            for where, numbers in pictures.items():
                _close(numbers, pixels[where])
    if run.state_at is not None:
        resumed = FeedDataset(run.url, address=address, **run.options)
        resumed.load_state_dict(stored["state"])
        again, _ = _read(resumed, run)
        assert again["epochs"] == rest(stored["epochs"], run.state_at)
