"""What a batch of many long rows takes beside its decoding does not hold up everybody else."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.batching import assembler as assemble
from feedd.batching import bad_samples
from feedd.batching.packing import Packed
from feedd.values import Cursor
from tests.fakes.feeding import Taken, feeding, take
from tests.fakes.tfrecords import example, tfrecord

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = 1024


def _watched(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[bool]:
    """Return, for each call of that name, whether it was made on the loop's thread."""
    found: list[bool] = []
    loop, real = threading.get_ident(), getattr(owner, name)

    def call(*args: object, **named: object) -> object:
        found.append(threading.get_ident() == loop)
        return real(*args, **named)

    monkeypatch.setattr(owner, name, call)
    return found


def _documents() -> bytes:
    lengths = np.random.default_rng(5).integers(1, 600, SAMPLES).tolist()
    return tfrecord(*(example(ids=list(range(size))) for size in lengths))


@pytest.mark.parametrize(("how", "fitted"), [("bins", [False]), ("concat", [True])])
async def test_packing_is_done_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, fitted: list[bool]
) -> None:
    """Finding room for a thousand documents, and saying of each token which it is of; a cumulative sum is at once."""
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.tfrecord", _documents())
        pack = {"decode": "array", "pack": {"length": 512, "how": how}}
        session = await rig.open(fields=(("ids", json.dumps(pack)),), batch_size=SAMPLES)
        placed = _watched(monkeypatch, Packed, "of")
        finished = _watched(monkeypatch, Packed, "finish")
        await take(session, Cursor())
    assert placed == fitted
    assert finished == [False]


async def test_masks_are_written_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of them are large; those of a few rows are not worth one."""
    pad = {"decode": "array", "pad": {"to": 600}}
    async with feeding(tmp_path) as rig:
        rig.store.put("train/0.tfrecord", _documents())
        for rows, expected in ((SAMPLES, [False]), (16, [True])):
            session = await rig.open(fields=(("ids", json.dumps(pad)),), batch_size=rows)
            with monkeypatch.context() as patched:
                written = _watched(patched, assemble, "write_mask")
                await take(session, Cursor())
            assert written == expected


@pytest.mark.parametrize(("policy", "name"), [("skip", "drop_rows"), ("replace", "_replaced")])
async def test_bad_rows_are_seen_to_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, name: str
) -> None:
    """Closing a gap may move all that lies behind it."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"cls": b"no" if n == 3 else b"1", "bin": bytes(n)} for n in range(SAMPLES)])
        fields = (("cls", "int"), ("bin", "bytes"))
        session = await rig.open(fields=fields, batch_size=SAMPLES, bad_samples=policy, bad_samples_max=9)
        seen = _watched(monkeypatch, bad_samples, name)
        made = await take(session, Cursor())
    assert seen == [False]
    assert isinstance(made, Taken)
    instead = [] if policy == "skip" else [4]
    expected = [*range(3), *instead, *range(4, SAMPLES)]
    assert [len(row) for row in made.texts("bin")] == expected
