"""Admin.Observe: one look at the daemon, of all for an administrator, else of the caller's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from feedd.owner import Owner
from feedd.serve.server_options import BadSampleRow, FolderRow, LogLine, ServeHooks, ServeOptions, StatSample
from feedd.serve.tickets import OWNER_GREETING, TICKET_BYTES, TICKET_HEADER
from feedd.wire import feedd_pb2 as pb
from tests.unit.serve.raw_client import WAIT_S, open_request, serving

if TYPE_CHECKING:
    from pathlib import Path


async def _folders() -> list[FolderRow]:
    return [FolderRow("s3://b/other/", 2, 20, 0), FolderRow("s3://b/train/", 1, 10, 10), FolderRow("", 5, 1, 0)]


def _hooks() -> ServeHooks:
    me = Owner.of_this_process()
    samples = [
        BadSampleRow(number, owner, "s3://b/train/x.tar", f"key{number}", "jpg", "torn", 3, 1.5, "replaced")
        for number, owner in ((1, me), (2, Owner.of_uid(4242)))
    ]
    return ServeHooks(
        samples=lambda: [StatSample("feedd_x_total", {}, 3.0)],
        log=lambda: [LogLine("disk is slow", "warning", 2.0, 7)],
        bad_samples=lambda: samples,
        cache_folders=_folders,
    )


async def test_an_administrator_sees_everything(short_dir: Path) -> None:
    """At a socket for one user: metrics, log, the bad samples of all owners, and all folders."""
    async with serving(short_dir, hooks=_hooks()) as rig:
        opened = await rig.open()
        seen: pb.ObserveResponse = await rig.admin.Observe(pb.ObserveRequest(), timeout=WAIT_S)
        assert (await rig.server.observation()).bad_samples == seen.bad_samples
        assert [one.value for one in seen.stats.samples] == [3.0]
        assert [(one.text, one.level, one.count) for one in seen.log] == [("disk is slow", "warning", 7)]
        assert [(one.id, one.key, one.outcome, one.epoch) for one in seen.bad_samples] == [
            (1, "key1", "replaced", 3),
            (2, "key2", "replaced", 3),
        ]
        assert [(one.url, one.entries, one.bytes, one.pinned_bytes) for one in seen.folders] == [
            ("s3://b/other/", 2, 20, 0),
            ("s3://b/train/", 1, 10, 10),
            ("", 5, 1, 0),
        ]
        (session,) = seen.sessions
        assert (session.epoch, session.step, session.ready, session.consumers) == (0, 0, 0, 1)
        assert session.steps == opened.steps
        assert session.HasField("steps")


async def test_a_client_sees_what_is_its_own(short_dir: Path) -> None:
    """At a socket for several users: no log, own bad samples, and folders below the URLs of own sessions."""
    options = ServeOptions(listen=(f"unix://{short_dir}/feedd.sock",), socket_mode=0o660)
    async with serving(short_dir, None, options, _hooks()) as rig:
        reader, writer = await asyncio.open_unix_connection(f"{short_dir}/feedd.sock.arena")
        writer.write(OWNER_GREETING)
        headers = ((TICKET_HEADER, (await reader.readexactly(1 + TICKET_BYTES))[1:]),)
        await rig.feed.Open(open_request(urls=["s3://b/train/"]), timeout=WAIT_S, metadata=headers)
        seen: pb.ObserveResponse = await rig.admin.Observe(pb.ObserveRequest(), timeout=WAIT_S, metadata=headers)
        assert not seen.log
        assert [one.key for one in seen.bad_samples] == ["key1"]
        assert [one.url for one in seen.folders] == ["s3://b/train/"]
        assert len(seen.sessions) == 1
        writer.close()


async def test_a_daemon_without_hooks_answers(short_dir: Path) -> None:
    """A server without cache and log is seen, too."""
    async with serving(short_dir) as rig:
        seen: pb.ObserveResponse = await rig.admin.Observe(pb.ObserveRequest(), timeout=WAIT_S)
        assert seen.stats.state == "ready"
        assert not seen.folders
