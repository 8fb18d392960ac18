from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from feedd import metrics
from feedd.errors import BadShard, NotFound
from feedd.serve.server_options import ServeOptions
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feed_messages import PROTOCOL_MINOR, OpenLimits
from tests.budget import PATIENT_S
from tests.fakes.backend import SPECS, FakeScript, expected_payload
from tests.unit.serve.raw_client import attach, error_of, open_request, release, serving

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


async def test_open_says_everything_a_client_needs(short_dir: Path) -> None:
    """Open answers specs, fingerprint, counts, slots and the arena."""
    async with serving(short_dir) as rig:
        opened = await rig.open(prefetch_batches=3)
        assert (opened.version.major, opened.version.minor) == (1, PROTOCOL_MINOR)
        assert [spec.name for spec in opened.specs] == ["image", "cls", "tokens"]
        assert opened.specs[0].kind == pb.TensorSpec.DENSE
        assert list(opened.specs[0].shape) == [8, 8, 3]
        assert opened.specs[2].kind == pb.TensorSpec.RAGGED
        assert opened.fingerprint == bytes(range(16))
        assert opened.slot_count == 3
        assert opened.steps == 8
        assert opened.daemon_id == rig.server.daemon_id
        assert opened.arena.size_bytes == 3 * opened.arena.slot_bytes
        assert len(opened.arena.token) == 16
        assert opened.arena.socket_path == f"{short_dir}/feedd.sock.arena"


async def test_leases_come_in_order_within_credits(short_dir: Path) -> None:
    """No more batches come than credits were given, in step order, each as the backend wrote it."""
    async with serving(short_dir) as rig:
        opened = await rig.open(prefetch_batches=4)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=2)
        await stream.until(2)
        assert len(rig.backend.sessions[0].produced) == 2
        await stream.send(credits=1, releases=[release(stream.batches[0])])
        await stream.until(3)
        assert [(b.seq, b.cursor.step, b.rows) for b in stream.batches] == [(0, 0, 4), (1, 1, 4), (2, 2, 4)]
        for batch in stream.batches[1:]:
            assert not batch.inline
            assert arena.payload(batch) == expected_payload(SPECS, 0, batch.cursor.step, 0, 4)
        assert stream.known_steps == 8
        stream.call.cancel()
        arena.close()


async def test_each_stream_says_the_steps_of_its_epoch(short_dir: Path) -> None:
    """Where one epoch is longer than another, each stream of a session says how long its own is."""
    async with serving(short_dir, script=FakeScript(steps=2, more_steps=3)) as rig:
        opened = await rig.open(prefetch_batches=4)
        for epoch in (2, 0):
            stream = await rig.stream(opened.session_id, epoch=epoch, credits=1)
            await stream.until(1)
            assert stream.known_steps == 2 + 3 * epoch
            stream.call.cancel()


async def test_a_slow_step_holds_back_faster_ones(short_dir: Path) -> None:
    """Steps are made side by side and sent in order, whichever is ready first."""
    script = FakeScript(gates={0: asyncio.Event()})
    async with serving(short_dir, script) as rig:
        opened = await rig.open(prefetch_batches=3)
        stream = await rig.stream(opened.session_id, credits=3, inline_only=True)
        session = rig.backend.sessions[0]
        await rig.until(lambda: len(session.produced) == 3 and session.producing_count == 1)
        assert not stream.batches
        script.gates[0].set()
        await stream.until(3)
        assert [b.cursor.step for b in stream.batches] == [0, 1, 2]
        await stream.finish()
        assert session.producing_peak == 2


async def test_slots_bound_what_credits_allow(short_dir: Path) -> None:
    """With more credits than slots, a further batch needs a release."""
    async with serving(short_dir) as rig:
        opened = await rig.open(prefetch_batches=2)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=8)
        await stream.until(2)
        assert len(rig.backend.sessions[0].produced) == 2
        await stream.send(releases=[release(stream.batches[1])])
        await stream.until(3)
        assert stream.batches[2].slot == stream.batches[1].slot
        assert stream.batches[2].generation == stream.batches[1].generation + 1
        stream.call.cancel()
        arena.close()


async def test_a_stale_release_frees_nothing(short_dir: Path) -> None:
    """A release of a former use, or of a slot that does not exist, is counted and ignored."""
    async with serving(short_dir) as rig:
        opened = await rig.open(prefetch_batches=1)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=4)
        await stream.until(1)
        first = release(stream.batches[0])
        await stream.send(releases=[first])
        await stream.until(2)
        await stream.send(releases=[first, pb.Release(slot=77, generation=1)])
        await rig.until(lambda: rig.recorder.total(metrics.SERVE_STALE) == 2)
        assert len(rig.backend.sessions[0].produced) == 2
        assert rig.recorder.total(metrics.SERVE_LEASES) == 1
        stream.call.cancel()
        arena.close()


async def test_end_of_epoch_then_the_next_with_leases_kept(short_dir: Path) -> None:
    """The end comes after all batches; leases survive it and are released on the next epoch's stream."""
    async with serving(short_dir, FakeScript(steps=2)) as rig:
        opened = await rig.open(prefetch_batches=4)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=4)
        await stream.finish()
        assert [b.cursor.step for b in stream.batches] == [0, 1]
        assert stream.end == pb.EndOfEpoch(epoch=0, steps=2, samples=8)
        assert await stream.code() is grpc.StatusCode.OK
        assert rig.recorder.total(metrics.SERVE_LEASES) == 2
        assert arena.payload(stream.batches[1]) == expected_payload(SPECS, 0, 1, 0, 4)
        second = await rig.stream(opened.session_id, epoch=1, credits=2)
        await second.until(2)
        assert not {b.slot for b in second.batches} & {b.slot for b in stream.batches}
        await second.send(releases=[release(b) for b in stream.batches + second.batches])
        await second.finish()
        assert rig.recorder.total(metrics.SERVE_LEASES) == 0
        assert rig.recorder.total(metrics.SERVE_STALE) == 0
        arena.close()


async def test_held_leases_named_at_start_free_all_others(short_dir: Path) -> None:
    """A client that lost messages says what it holds; every other lease is free again."""
    async with serving(short_dir) as rig:
        opened = await rig.open(prefetch_batches=3)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=3)
        await stream.until(3)
        stream.call.cancel()
        held = pb.HeldLeases(leases=[release(stream.batches[1])])
        again = await rig.stream(opened.session_id, credits=2, step=3, held=held)
        await again.until(2)
        assert stream.batches[1].slot not in {b.slot for b in again.batches}
        assert rig.recorder.total(metrics.SERVE_RECLAIMED) == 2
        again.call.cancel()
        arena.close()


async def test_a_second_stream_takes_over(short_dir: Path) -> None:
    """A client that comes back before its former stream was noticed gone is served; the former stream ends."""
    async with serving(short_dir, FakeScript(gates={1: asyncio.Event()})) as rig:
        opened = await rig.open(prefetch_batches=2)
        first = await rig.stream(opened.session_id, credits=2, inline_only=True)
        await first.until(1)
        second = await rig.stream(opened.session_id, credits=2, step=2, inline_only=True)
        await second.until(2)
        assert [b.cursor.step for b in second.batches] == [2, 3]
        assert [b.seq for b in second.batches] == [0, 1]
        assert not await first.read()
        second.call.cancel()


async def test_consumers_split_the_steps(short_dir: Path) -> None:
    """Consumer i of n gets the steps s with s mod n == i, from wherever it resumes."""
    async with serving(short_dir) as rig:
        opened = await rig.open(consumer_count=3, consumer_index=1)
        stream = await rig.stream(opened.session_id, credits=4, step=2, inline_only=True)
        await stream.finish()
        assert [b.cursor.step for b in stream.batches] == [4, 7]
        assert stream.end is not None
        assert stream.end.steps == 8


async def test_inline_is_what_the_slot_held(short_dir: Path) -> None:
    """Without arena the same bytes come in chunks, and each slot is free again once its batch was sent."""
    options = ServeOptions(listen=(f"unix://{short_dir}/f.sock",), chunk_size_bytes=1000)
    async with serving(short_dir, FakeScript(steps=5), options) as rig:
        opened = await rig.open(prefetch_batches=2, recipe=pb.Recipe(batch_size=7, keys=True))
        stream = await rig.stream(opened.session_id, credits=10, inline_only=True)
        await stream.finish()
        specs = rig.backend.sessions[0].specs
        assert len(stream.batches) == 5
        for batch in stream.batches:
            assert batch.inline
            assert stream.payloads[batch.seq] == expected_payload(specs, 0, batch.cursor.step, 0, 7)
        assert rig.recorder.total(metrics.SERVE_BATCHES, transport="inline") == 5
        assert rig.recorder.total(metrics.SERVE_LEASES) == 0


async def test_no_lease_without_lifeline(short_dir: Path) -> None:
    """A client that never fetched the arena is served inline, asked or not."""
    async with serving(short_dir, FakeScript(steps=1)) as rig:
        opened = await rig.open()
        stream = await rig.stream(opened.session_id, credits=2)
        await stream.finish()
        assert [b.inline for b in stream.batches] == [True]


async def test_an_oversize_batch_comes_inline_among_leases(short_dir: Path) -> None:
    """A batch larger than its slot is sent in chunks and its slot is free afterwards."""
    async with serving(short_dir, FakeScript(steps=3, oversize={1})) as rig:
        opened = await rig.open(prefetch_batches=4)
        arena = await attach(opened.arena)
        stream = await rig.stream(opened.session_id, credits=4)
        await stream.finish()
        assert [b.inline for b in stream.batches] == [False, True, False]
        assert stream.payloads[1] == expected_payload(SPECS, 0, 1, 0, 4)
        assert arena.payload(stream.batches[2]) == expected_payload(SPECS, 0, 2, 0, 4)
        assert rig.recorder.total(metrics.SERVE_LEASES) == 2
        arena.close()


async def test_a_failing_step_is_said_in_band_after_earlier_ones(short_dir: Path) -> None:
    """The error of a step follows the batches before it; the session and the daemon live on."""
    fault = BadShard("expected a tar header, got zeros", object="s3://b/1.tar", hint="repack it", stage="decode")
    script = FakeScript(faults={2: fault})
    async with serving(short_dir, script) as rig:
        opened = await rig.open(prefetch_batches=4)
        stream = await rig.stream(opened.session_id, credits=4, inline_only=True)
        await stream.finish()
        assert [b.cursor.step for b in stream.batches] == [0, 1]
        assert stream.error == pb.Error(
            kind="bad-shard",
            message="expected a tar header, got zeros",
            object="s3://b/1.tar",
            hint="repack it",
            stage="decode",
        )
        script.faults.clear()
        again = await rig.stream(opened.session_id, credits=1, step=2, inline_only=True)
        await again.until(1)
        assert again.batches[0].cursor.step == 2
        again.call.cancel()


async def test_a_defect_is_said_as_internal(short_dir: Path) -> None:
    """An exception that is not ours becomes kind internal and names no more than its type."""
    async with serving(short_dir, FakeScript(faults={0: KeyError("secret")})) as rig:
        opened = await rig.open()
        stream = await rig.stream(opened.session_id, credits=1, inline_only=True)
        await stream.finish()
        assert stream.error is not None
        assert stream.error.kind == "internal"
        assert "KeyError" in stream.error.message
        assert "secret" not in stream.error.message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"urls": []}, "URL"),
        ({"urls": [""]}, "URL"),
        ({"recipe": pb.Recipe(batch_size=0)}, "batch_size"),
        ({"recipe": pb.Recipe(batch_size=(1 << 20) + 1)}, "batch_size"),
        ({"recipe": pb.Recipe(batch_size=1, fields=[pb.Field(name="a"), pb.Field(name="a")])}, "distinct"),
        ({"topology": pb.Topology(world_size=2, rank=2, local_world_size=1, node_count=1)}, "rank"),
        ({"topology": pb.Topology(world_size=0)}, "world_size"),
        ({"consumer_count": 2, "consumer_index": 2}, "consumer_index"),
        ({"prefetch_batches": 1 << 20}, "prefetch_batches"),
        ({"epoch": 1 << 63}, "epoch"),
        ({"expect_fingerprint": bytes(65)}, "expect_fingerprint"),
        ({"urls": ["s3://" + "x" * 10_000]}, "urls"),
    ],
)
async def test_bad_open_values_are_named(short_dir: Path, changes: dict[str, Any], named: str) -> None:
    """A value that cannot be served is INVALID_ARGUMENT, names the value, and opens nothing."""
    async with serving(short_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.open(**changes)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        error = error_of(failure.value)
        assert error.kind == "bad-request"
        assert named in error.message
        assert not rig.backend.specs


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        (pb.ProtocolVersion(major=2, minor=3), "upgrade feedd on this node"),
        (pb.ProtocolVersion(major=1, minor=PROTOCOL_MINOR + 2), "upgrade feedd on this node"),
        (pb.ProtocolVersion(), "upgrade feedd-client"),
    ],
)
async def test_a_version_further_apart_is_refused(short_dir: Path, version: pb.ProtocolVersion, hint: str) -> None:
    """The refusal names both versions and what to upgrade."""
    async with serving(short_dir) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.open(version=version)
        assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        error = error_of(failure.value)
        assert error.kind == "version-mismatch"
        assert f"1.{PROTOCOL_MINOR}" in error.message
        assert (f"{version.major}.{version.minor} from" if version.major else "none from") in error.message
        assert hint in error.hint


async def test_a_newer_minor_version_is_served(short_dir: Path) -> None:
    """A client one minor version ahead works."""
    async with serving(short_dir) as rig:
        opened = await rig.open(version=pb.ProtocolVersion(major=1, minor=PROTOCOL_MINOR + 1))
        assert opened.session_id


async def test_backend_errors_of_open_become_statuses(short_dir: Path) -> None:
    """What the backend raises reaches the client whole; nothing stays open."""
    script = FakeScript(open_error=NotFound("expected a bucket, got none", object="s3://nope", hint="check the name"))
    async with serving(short_dir, script) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.open()
        assert failure.value.code() is grpc.StatusCode.NOT_FOUND
        assert error_of(failure.value).object == "s3://nope"
        assert "s3://nope" in (failure.value.details() or "")


async def test_open_has_a_deadline(short_dir: Path) -> None:
    """An Open that takes too long is an error that may be retried, and leaves nothing."""
    options = ServeOptions(listen=(f"unix://{short_dir}/f.sock",), open_timeout_s=0.05)
    async with serving(short_dir, FakeScript(open_gate=asyncio.Event()), options) as rig:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.open()
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert error_of(failure.value).retryable
        assert rig.server.sessions.count == 0


@pytest.mark.parametrize(
    ("bounds", "named"),
    [(ServeOptions(sessions_max=1), "limits.sessions"), (ServeOptions(sessions_per_owner=1), "per_owner")],
)
async def test_sessions_are_bounded(short_dir: Path, bounds: ServeOptions, named: str) -> None:
    """One session too many, of all or of one owner, is RESOURCE_EXHAUSTED; a closed one makes room."""
    options = replace(bounds, listen=(f"unix://{short_dir}/f.sock",))
    async with serving(short_dir, None, options) as rig:
        opened = await rig.open()
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await rig.open()
        assert failure.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert named in error_of(failure.value).hint
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id))
        await rig.open()


async def test_a_stream_needs_a_start_and_a_session(short_dir: Path) -> None:
    """Without start, with an unknown session, or with an impossible cursor, the call fails and says why."""
    async with serving(short_dir) as rig:
        call = rig.feed.Stream()
        await call.write(pb.StreamRequest(credits=1))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = await rig.stream("0" * 32)
        assert await stream.code() is grpc.StatusCode.NOT_FOUND
        stream = await rig.stream("0" * 32, step=1 << 63)
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_close_is_idempotent_and_ends_the_stream(short_dir: Path) -> None:
    """Close ends a running stream, productions included, and may be said twice."""
    async with serving(short_dir, FakeScript(gates={1: asyncio.Event()})) as rig:
        opened = await rig.open()
        stream = await rig.stream(opened.session_id, credits=2, inline_only=True)
        await stream.until(1)
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id), timeout=PATIENT_S)
        assert rig.backend.sessions[0].close_count == 1
        assert not await stream.read()
        await rig.feed.Close(pb.CloseRequest(session_id=opened.session_id), timeout=PATIENT_S)
        with pytest.raises(grpc.aio.AioRpcError):
            await rig.feed.Open(open_request(urls=[]), timeout=PATIENT_S)


@pytest.mark.slow
async def test_a_session_nobody_uses_is_closed(short_dir: Path) -> None:
    """Without stream and lifeline a session ends after its grace, and not while a stream runs."""
    options = ServeOptions(listen=(f"unix://{short_dir}/f.sock",), session_grace_s=0.3)
    script = FakeScript(gates={0: asyncio.Event()})
    async with serving(short_dir, script, options) as rig:
        opened = await rig.open()
        stream = await rig.stream(opened.session_id, credits=1, inline_only=True)
        await rig.until(lambda: rig.backend.sessions[0].producing_count == 1)
        await asyncio.sleep(0.4)
        assert rig.server.sessions.count == 1
        stream.call.cancel()
        await rig.until(lambda: rig.server.sessions.count == 0)
        assert rig.backend.sessions[0].close_count == 1


def test_limits_are_far_above_sane_use() -> None:
    """A million-sample batch or a hundred thousand URLs still open."""
    limits = OpenLimits()
    assert limits.batch_size_max >= 1_000_000
    assert limits.urls_max >= 100_000
