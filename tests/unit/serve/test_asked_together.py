"""Batches that are little work are asked for several at a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from structlog.testing import capture_logs

from feedd.errors import BadShard
from tests.fakes.backend import FakeScript
from tests.fakes.fetchers import until
from tests.unit.serve.raw_client import serving

if TYPE_CHECKING:
    from pathlib import Path


async def test_batches_are_asked_for_together_where_that_pays(short_dir: Path) -> None:
    """As many at once as the backend says, no more than credits and slots allow; they come in order all the same."""
    async with serving(short_dir, FakeScript(batches_per_call=3, steps=8)) as rig:
        opened = await rig.open(prefetch_batches=8)
        stream = await rig.stream(opened.session_id, credits=8, inline_only=True)
        await stream.until(8)
        assert [b.cursor.step for b in stream.batches] == list(range(8))
        assert set(rig.backend.sessions[0].together) == {3, 2}
        stream.call.cancel()


async def test_where_one_of_several_fails_each_is_asked_for_alone(short_dir: Path) -> None:
    """The error of a step is that step's, and follows the batches before it. The log has it once."""
    fault = BadShard("expected a tar header, got zeros", object="s3://b/1.tar", stage="decode")
    async with serving(short_dir, FakeScript(batches_per_call=4, faults={2: fault})) as rig:
        opened = await rig.open(prefetch_batches=4)
        with capture_logs() as logs:
            stream = await rig.stream(opened.session_id, credits=4, inline_only=True)
            await stream.finish()
        assert [b.cursor.step for b in stream.batches] == [0, 1]
        assert stream.error is not None
        assert stream.error.kind == "bad-shard"
        (told,) = [line for line in logs if line["event"] == "an epoch ended with an error"]
        assert (told["log_level"], told["object"], told["session"]) == ("warning", fault.object, opened.session_id[:8])


async def test_what_is_not_made_is_asked_for_again(short_dir: Path) -> None:
    """A backend that makes only the first of several is asked for the others, and all come in order."""
    async with serving(short_dir, FakeScript(batches_per_call=4, steps=9, alone={1, 3, 6})) as rig:
        opened = await rig.open(prefetch_batches=8)
        stream = await rig.stream(opened.session_id, credits=16, inline_only=True)
        await stream.finish()
        assert [b.cursor.step for b in stream.batches] == list(range(9))
        session = rig.backend.sessions[0]
        assert sorted({at.step for at in session.produced}) == [
            *range(9),
            *range(9, max(a.step for a in session.produced) + 1),
        ]
        assert len([at for at in session.produced if at.step < 9]) == 9


async def test_what_several_ask_for_again_is_asked_for_in_order(short_dir: Path) -> None:
    """Whoever gave back first: earlier steps go first, or what is made of them may wait behind the epoch's end."""
    gate = asyncio.Event()
    script = FakeScript(batches_per_call=4, steps=12, alone={2, 6}, gates={1: gate, 5: gate})
    async with serving(short_dir, script) as rig:
        opened = await rig.open(prefetch_batches=8)
        stream = await rig.stream(opened.session_id, credits=8, inline_only=True)
        session = rig.backend.sessions[0]
        await until(lambda: session.producing_count == 2)
        gate.set()
        await stream.until(8)
        assert [b.cursor.step for b in stream.batches] == list(range(8))
        assert [at.step for at in session.produced if at.step in {2, 3, 6, 7}] == [2, 3, 6, 7]
        stream.call.cancel()


async def test_few_requests_wait_only_while_others_are_made(short_dir: Path) -> None:
    """Requests are collected while a batch is being made. Its end starts the others, however few they are."""
    first, second = asyncio.Event(), asyncio.Event()
    script = FakeScript(batches_per_call=3, batches_per_call_least=3, gates={0: first, 1: second}, steps=20)
    async with serving(short_dir, script) as rig:
        opened = await rig.open(prefetch_batches=8)
        stream = await rig.stream(opened.session_id, credits=1, inline_only=True)
        session = rig.backend.sessions[0]
        await until(lambda: session.producing_count == 1)
        await stream.send(credits=2)
        await stream.send(credits=1)
        await until(lambda: len(session.together) > 1)
        assert session.together == [1, 3]
        await stream.send(credits=2)
        first.set()
        await stream.until(1)
        assert session.together == [1, 3]
        second.set()
        await stream.until(6)
        assert session.together == [1, 3, 2]
        assert [batch.cursor.step for batch in stream.batches] == list(range(6))
        stream.call.cancel()


async def test_requests_that_wait_are_served_to_a_client_that_sends_no_more(short_dir: Path) -> None:
    """The end of the client's side does not strand the requests that were collected."""
    gate = asyncio.Event()
    script = FakeScript(batches_per_call=3, batches_per_call_least=3, gates={0: gate}, steps=20)
    async with serving(short_dir, script) as rig:
        opened = await rig.open(prefetch_batches=8)
        stream = await rig.stream(opened.session_id, credits=1, inline_only=True)
        session = rig.backend.sessions[0]
        await until(lambda: session.producing_count == 1)
        await stream.send(credits=2)
        await stream.call.done_writing()
        gate.set()
        await stream.finish()
        assert [batch.cursor.step for batch in stream.batches] == [0, 1, 2]
        assert session.together == [1, 2]
