"""Runs: several batches in one slot, for one credit, in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadShard
from tests.fakes.backend import SPECS, FakeScript, expected_payload
from tests.unit.serve.raw_client import serving

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.wire import feedd_pb2 as pb

RUN = 3


def _all(message: pb.Batch) -> list[pb.Batch]:
    return [message, *message.more]


async def test_a_credit_is_worth_a_run(short_dir: Path) -> None:
    """Runs grow from one batch; each batch lies where the answer to Open says, inline as in a slot."""
    async with serving(short_dir, FakeScript(run_batches=RUN, steps=9)) as rig:
        opened = await rig.open(prefetch_batches=4)
        assert (opened.run_batches, opened.batch_bytes) == (RUN, rig.backend.sessions[0].batch_bytes)
        stream = await rig.stream(opened.session_id, credits=4, inline_only=True)
        await stream.until(4)
        assert [[one.cursor.step for one in _all(run)] for run in stream.batches] == [[0], [1, 2, 3], [4, 5, 6], [7, 8]]
        for run in stream.batches:
            payload = stream.payloads[run.seq]
            for place, one in enumerate(_all(run)):
                at = place * opened.batch_bytes
                expected = expected_payload(SPECS, 0, one.cursor.step, 0, 4)
                assert payload[at : at + one.size_bytes] == expected
        await stream.send(credits=1)
        await stream.finish()
        assert stream.end is not None
        assert (stream.end.steps, stream.end.samples) == (9, 36)


async def test_a_later_epoch_begins_with_a_full_run(short_dir: Path) -> None:
    """Its first run is made in advance. A stream that begins elsewhere has nothing in advance, so its runs grow."""
    async with serving(short_dir, FakeScript(run_batches=RUN, steps=6)) as rig:
        opened = await rig.open(prefetch_batches=4)
        found = []
        for epoch, step, count in ((0, 0, 3), (1, 0, 2), (2, 4, 2)):
            stream = await rig.stream(opened.session_id, credits=4, epoch=epoch, step=step, inline_only=True)
            await stream.until(count)
            found.append([[one.cursor.step for one in _all(run)] for run in stream.batches])
            await stream.finish()
        assert found == [[[0], [1, 2, 3], [4, 5]], [[0, 1, 2], [3, 4, 5]], [[4], [5]]]


@pytest.mark.parametrize("failing", [0, 1, 2, 4])
async def test_batches_before_one_that_fails_are_sent(short_dir: Path, failing: int) -> None:
    """The error ends the stream behind them, wherever in a run the batch would have been."""
    fault = BadShard("expected a tar header, got zeros", object="s3://b/1.tar", stage="decode")
    async with serving(short_dir, FakeScript(run_batches=RUN, steps=9, faults={failing: fault})) as rig:
        opened = await rig.open(prefetch_batches=4)
        stream = await rig.stream(opened.session_id, credits=4, inline_only=True)
        await stream.finish()
        assert [one.cursor.step for run in stream.batches for one in _all(run)] == list(range(failing))
        assert stream.error is not None
        assert stream.error.kind == "bad-shard"
