"""Documents packed by a session: from shards to rows, resumable, and refused where samples are asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from feedd.errors import BadRequest
from feedd.values import Cursor
from tests.fakes.feeding import ROOT, Taken, batches, feeding, take
from tests.fakes.tfrecords import example, tfrecord

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.feeding import Feeding

LENGTHS = (3, 9, 1, 4, 6, 2, 8, 5, 7, 1)


def store(rig: Feeding) -> None:
    """Two shards of documents whose tokens are 100 times their number and on."""
    for shard in range(2):
        made = [example(ids=[100 * (10 * shard + n) + k for k in range(size)]) for n, size in enumerate(LENGTHS)]
        rig.store.put(f"train/{shard}.tfrecord", tfrecord(*made))


def recipe(**pack: object) -> dict[str, object]:
    """Return what to open."""
    return {
        "urls": (f"{ROOT}/train/",),
        "fields": (("ids", json.dumps({"decode": "array", "pack": pack})),),
        "batch_size": 6,
        "shuffle": True,
    }


def rows(batch: Taken, number: int) -> np.ndarray:
    """Return one of the three fields of a batch."""
    spec, region = batch.specs[number], batch.ready.regions[number]
    flat = np.frombuffer(batch.data, spec.dtype, batch.ready.rows * spec.shape[0], region.values_at)
    return flat.reshape(batch.ready.rows, -1)


@pytest.mark.parametrize("how", ["concat", "bins"])
async def test_every_token_of_an_epoch_once(tmp_path: Path, how: str) -> None:
    """Each document's tokens come once, told apart by document, whatever rows they lie in."""
    async with feeding(tmp_path) as rig:
        store(rig)
        session = await rig.open(**recipe(length=8, how=how, fill=-1))
        assert [spec.name for spec in session.info.specs] == ["ids", "ids.document", "ids.position"]
        made = await batches(session)
        assert len(made) == 4
        found = []
        for batch in made:
            tokens, documents = rows(batch, 0), rows(batch, 1)
            assert (tokens[documents < 0] == -1).all()
            for document in range(documents.max() + 1):
                mine = tokens[documents == document]
                assert mine.tolist() == list(range(int(mine[0]), int(mine[0]) + len(mine)))
                found.append((int(mine[0]) // 100, len(mine)))
        assert sorted(found) == [(10 * shard + n, size) for shard in range(2) for n, size in enumerate(LENGTHS)]


async def test_a_step_is_the_same_wherever_a_run_resumes(tmp_path: Path) -> None:
    """A packed batch depends on its step only."""
    async with feeding(tmp_path) as rig:
        store(rig)
        made = await batches(await rig.open(**recipe(length=8, how="bins")))
        again = await take(await rig.open(**recipe(length=8, how="bins")), Cursor(0, 2, made[2].ready.cursor.anchors))
        assert isinstance(again, Taken)
        assert again.ready == made[2].ready
        for number in range(3):
            assert (rows(again, number) == rows(made[2], number)).all()


async def test_what_asks_for_samples_is_refused(tmp_path: Path) -> None:
    """Keys, other fields, marks of samples and mixtures know samples, not rows; a fill must be a token."""
    async with feeding(tmp_path) as rig:
        store(rig)
        asked = recipe(length=8)
        packed = asked["fields"]
        assert isinstance(packed, tuple)
        for changes, message in (
            ({"keys": True}, "keys"),
            ({"uneven": "pad"}, "pad"),
            ({"fields": (*packed, ("x", "bytes"))}, "all fields to be packed"),
            ({"fields": recipe(length=8, how="best")["fields"]}, "how"),
            ({"fields": recipe(length=0)["fields"]}, "length"),
            ({"fields": recipe(length=8, fill=1 << 63)["fields"]}, "fill"),
        ):
            with pytest.raises(BadRequest, match=message):
                await rig.open(**(asked | changes))
