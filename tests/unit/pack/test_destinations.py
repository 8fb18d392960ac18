"""Destinations of a pack: what is there stays, and memory is not used again before it is written."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from feedd.errors import BadRequest, ObjectChanged, StoreUnavailable
from feedd.pack import local_folder
from feedd.pack.bucket_folder import destination
from feedd.pack.destination import ShardRecord
from feedd.pack.local_folder import LocalFolder
from tests.fakes.s3.server import S3Server
from tests.unit.pack.packing import folder, options, packed, reading, shards

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.pack.packed_sample import Piece

NAME = "shard-000000.tar"


@pytest.mark.parametrize("links", [True, False])
async def test_a_second_plan_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, links: bool) -> None:
    """Who comes second is told, and the object of the first stays, with links and on file systems without."""
    if not links:

        def link(*_: object) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", link)
    target = LocalFolder(str(tmp_path))
    assert await target.create("plan", b"first")
    assert not await target.create("plan", b"second")
    assert await target.read("plan") == b"first"


@pytest.mark.parametrize("moment", ["mkdir", "open", "rename"])
async def test_another_process_may_finish_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It removes all drafts, also one that is being written: the draft is written again."""
    target = LocalFolder(str(tmp_path))
    removals: list[str] = []

    def finish(result: object = None) -> object:
        if not removals:
            removals.append(moment)
            shutil.rmtree(tmp_path / ".feedd_pack", ignore_errors=True)
            if moment == "mkdir":
                raise FileExistsError(17, "File exists", ".feedd_pack")
        return result

    token_hex, write_all, mkdir = secrets.token_hex, local_folder._write_all, Path.mkdir
    if moment == "mkdir":
        monkeypatch.setattr(Path, "mkdir", lambda *args, **kwargs: (mkdir(*args, **kwargs), finish())[0])
    elif moment == "open":
        monkeypatch.setattr(secrets, "token_hex", lambda size: finish(token_hex(size)))
    else:
        monkeypatch.setattr(local_folder, "_write_all", lambda *args: finish(write_all(*args)))
    await target.replace("manifest", b"whole")
    removals.clear()
    assert await target.create("plan", b"plan")
    assert (await target.read("manifest"), await target.read("plan")) == (b"whole", b"plan")
    assert removals


async def test_a_bucket_never_replaces_a_shard(aws_credentials: None) -> None:
    """The same shard again is fine; an object that appeared meanwhile is an error, and stays."""
    with S3Server() as server:
        server.create_bucket("out")
        async with reading(server) as sources:
            target = destination(sources, "s3://out/packed")
            first = await target.write_shard(NAME, [b"a", memoryview(b"bc")], "a", 1)
            assert first == ShardRecord("a", hashlib.sha256(b"abc").hexdigest(), 3, 1, first.etag)
            assert await target.write_shard(NAME, [b"abc"], "a", 1) == first
            assert await target.find(NAME, "a") == first
            with pytest.raises(ObjectChanged):
                await target.write_shard(NAME, [b"abd"], "a", 1)
            with pytest.raises(BadRequest, match="another pack has written"):
                await target.write_shard(NAME, [b"abc"], "other", 1)
            server.put("out", "packed/foreign.tar", b"foreign")
            with pytest.raises(BadRequest, match="another program"):
                await target.write_shard("foreign.tar", [b"abc"], "a", 1)
            assert await target.read("foreign.tar") == b"foreign"
            assert await target.names() == {NAME, "foreign.tar"}
            assert await target.read("none") is None


async def test_slow_writes_keep_their_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a shard waits to be written, no other shard is read into its memory."""
    folder(tmp_path / "in", each=150)
    await packed(options(tmp_path / "in"), tmp_path / "one")
    write_shard = LocalFolder.write_shard

    async def later(target: LocalFolder, name: str, pieces: Iterable[Piece], plan: str, samples: int) -> ShardRecord:
        await asyncio.sleep(0.1 if name[-5] in "0369" else 0.01)
        return await write_shard(target, name, pieces, plan, samples)

    monkeypatch.setattr(LocalFolder, "write_shard", later)
    await packed(options(tmp_path / "in"), tmp_path / "out")
    assert shards(tmp_path / "out") == shards(tmp_path / "one")


async def test_a_folder_that_cannot_be_written_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk names the folder and what to do, and does not say that something could not be read."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(StoreUnavailable, match="cannot be read or written: No space left") as caught:
        await LocalFolder(str(tmp_path)).write_shard(NAME, [b"abc"], "a", 1)
    assert (caught.value.object, caught.value.hint[:10]) == (str(tmp_path), "free space")
