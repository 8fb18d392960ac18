"""A pack: the same bytes whoever writes them, in one run or many, from and to folders and buckets."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest
import simplejpeg

from feedd.dataset.index_file import parse
from feedd.dataset.shard_part import ShardPart
from feedd.errors import BadRequest, BadSample, NotFound, ObjectChanged, Unsupported
from feedd.fetch.local_store import file_etag
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.server import S3Server
from tests.unit.pack.packing import WHOLE, folder, options, packed, reading, shards, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from feedd.pack.pack_run import Packing

SOURCE = "s3://data/train/"
TARGET = "s3://out/packed/"


@pytest.fixture
def s3(aws_credentials: None) -> Iterator[S3Server]:
    """An S3 server with an empty bucket for the shards."""
    with S3Server() as server:
        server.create_bucket("out")
        yield server


def _members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = [(one.name, archive.extractfile(one)) for one in archive]
        return {name: file.read() for name, file in found if file is not None}


def _in_bucket(server: S3Server) -> dict[str, bytes]:
    page, _ = server._objects.page("out", "packed/", "", 1000)
    return {key.removeprefix("packed/"): bytes(stored.data or b"") for key, stored in page}


async def test_every_object_is_in_one_shard_with_its_label(tmp_path: Path) -> None:
    """Objects keep names and bytes, each has its folder's number, counts are known, and nothing else is left."""
    files, out = folder(tmp_path / "in"), tmp_path / "out"
    write(tmp_path / "in", {"class-1/UPPER.JPG": b"x"})
    files["class-1/UPPER.JPG"] = b"x"
    progress = await packed(options(tmp_path / "in"), out)
    found = [_members(data) for data in shards(out).values()]
    together = {name: data for one in found for name, data in one.items()}
    labels = {f"{name[:-4]}.cls": name[len("class-")].encode() for name in files}
    assert together == files | labels
    assert sum(map(len, found)) == len(together)
    assert len(found) == progress.shard_count > 3
    sizes = [len(data) for data in shards(out).values()]
    assert max(sizes) <= 1.2 * min(sizes)
    rows = parse((out / "_feedd_index.json").read_bytes())
    assert [(row.key, row.sample_count) for row in rows] == [
        (name, len(one) // 2) for name, one in zip(shards(out), found, strict=True)
    ]
    assert [row.etag for row in rows] == [file_etag((out / row.key).stat()) for row in rows]
    names = {path.name for path in out.iterdir()}
    assert names == {*shards(out), "_feedd_pack.plan", "_feedd_pack.json", "_feedd_index.json"}


async def test_parts_and_buckets_give_the_same_bytes(tmp_path: Path, s3: S3Server) -> None:
    """One run, four parts in any order, and runs from a bucket into a bucket write the same shards, manifest last."""
    files = folder(tmp_path / "in")
    for name, data in files.items():
        s3.put("data", f"train/{name}", data)
    wanted = options(tmp_path / "in", seed=3)
    await packed(wanted, tmp_path / "one")
    for part in (2, 0, 3, 1):
        progress = await packed(wanted, tmp_path / "four", ShardPart(part, 4))
        assert bool(progress.manifest) == (part == 1)
        assert (tmp_path / "four" / "_feedd_pack.json").exists() == (part == 1)
    await asyncio.gather(*(packed(options(SOURCE, seed=3), TARGET, ShardPart(part, 3), server=s3) for part in range(3)))
    stored = _in_bucket(s3)
    assert shards(tmp_path / "one") == shards(tmp_path / "four")
    assert {name: data for name, data in stored.items() if name.startswith("shard-")} == shards(tmp_path / "one")
    manifests = [json.loads((tmp_path / name / "_feedd_pack.json").read_bytes()) for name in ("one", "four")]
    assert manifests[0] == manifests[1]
    assert json.loads(stored["_feedd_pack.json"])["shards"] == manifests[0]["shards"]
    writes = [one.key for one in s3.requests if one.op == "PUT" and one.bucket == "out"]
    assert writes[-1] == "packed/_feedd_pack.json"
    etags = {row.key: row.etag for row in parse(stored["_feedd_index.json"])}
    assert etags == {name: s3._objects.find("out", f"packed/{name}").etag for name in etags}  # type: ignore[union-attr]  # the server holds it
    assert await packed(options(SOURCE, seed=4), "s3://out/other/", server=s3)
    others = s3._objects.find("out", "other/shard-000000.tar")
    assert others is not None
    assert others.data != stored["shard-000000.tar"]


async def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    """Shards that are there are not written again; a shard without its record, or with other bytes, is."""
    folder(tmp_path / "in", each=250)
    wanted, out = options(tmp_path / "in"), tmp_path / "out"
    await packed(wanted, tmp_path / "whole")

    def stop(progress: Packing) -> None:
        if progress.done_count == 2:
            raise KeyError("stopped")

    with pytest.raises(ExceptionGroup):
        await packed(wanted, out, report=stop)
    assert not (out / "_feedd_pack.json").exists()
    there = {path: path.stat() for path in out.glob("shard-*")}
    assert 2 <= len(there) < len(shards(tmp_path / "whole"))
    first, second, *_ = sorted(there)
    (out / ".feedd_pack" / f"{first.name}.json").unlink()
    data = bytearray(second.read_bytes())
    data[1000] ^= 1
    second.write_bytes(data)
    await packed(wanted, out)
    assert shards(out) == shards(tmp_path / "whole")
    again = {path for path, status in there.items() if path.stat().st_ino != status.st_ino}
    assert again == {first, second}


async def test_a_complete_pack_is_verified_and_mended(tmp_path: Path) -> None:
    """Another run reads every shard: a damaged or missing one is written again, and the others are left alone."""
    folder(tmp_path / "in")
    wanted, out = options(tmp_path / "in"), tmp_path / "out"
    await packed(wanted, out)
    good, manifest = shards(out), (out / "_feedd_pack.json").read_bytes()
    damaged, lost, *others = sorted(out.glob("shard-*"))
    before = {path: path.stat().st_ino for path in others}
    damaged.write_bytes(bytes(damaged.stat().st_size))
    lost.unlink()
    await packed(wanted, out)
    assert shards(out) == good
    assert (out / "_feedd_pack.json").read_bytes() == manifest
    assert before == {path: path.stat().st_ino for path in others}
    rows = parse((out / "_feedd_index.json").read_bytes())
    assert {row.key: row.etag for row in rows} == {path.name: file_etag(path.stat()) for path in out.glob("shard-*")}


async def test_a_bucket_keeps_what_was_written(tmp_path: Path, s3: S3Server) -> None:
    """A second run sends no shard; a lost answer is no failure; the store is sent the digest of each shard."""
    folder(tmp_path / "in")
    wanted = options(tmp_path / "in")
    s3.script("out", "packed/shard-000000.tar", fault.reset_before(), op="PUT")
    await packed(wanted, TARGET, server=s3)
    stored = _in_bucket(s3)
    sent = [one for one in s3.requests if one.op == "PUT" and "shard-" in one.key]
    assert len(sent) == len({one.key for one in sent}) + 1  # the one with the lost answer twice
    for one in sent:
        told = base64.b64decode(one.headers["x-amz-checksum-sha256"])
        assert told == hashlib.sha256(stored[one.key.removeprefix("packed/")]).digest()
    s3.requests.clear()
    progress = await packed(wanted, TARGET, server=s3)
    assert progress.done_count == progress.shard_count
    assert not [one for one in s3.requests if one.op == "PUT" and "shard-" in one.key]
    assert _in_bucket(s3) == stored
    heads = [one.headers for one in s3.requests if one.op == "HEAD" and "shard-" in one.key]
    assert len(heads) >= progress.shard_count


async def test_what_others_wrote_is_not_replaced(tmp_path: Path, s3: S3Server) -> None:
    """An object of another program at a shard's name is an error that names it, and it stays."""
    folder(tmp_path / "in")
    wanted = options(tmp_path / "in")
    await packed(wanted, TARGET, ShardPart(0, 2), server=s3)
    s3.put("out", "packed/shard-000001.tar", b"another")
    with pytest.raises(ExceptionGroup) as caught:
        await packed(wanted, TARGET, ShardPart(1, 2), server=s3)
    error = caught.value.exceptions[0]
    assert isinstance(error, BadRequest)
    assert error.object == f"{TARGET}shard-000001.tar"
    assert _in_bucket(s3)["shard-000001.tar"] == b"another"


async def test_readers_refuse_an_incomplete_pack(tmp_path: Path, s3: S3Server) -> None:
    """As long as the manifest is missing, the folder cannot be opened; afterwards it can, also from above."""
    folder(tmp_path / "in")
    for target in (TARGET, f"{tmp_path}/packed/train/"):
        await packed(options(tmp_path / "in"), target, ShardPart(0, 2), server=s3)
        async with reading(s3) as sources:
            for url in (target, f"{target.rpartition('/')[0].rpartition('/')[0]}/"):
                with pytest.raises(Unsupported, match="got one without its manifest"):
                    await sources.resolve_all([url])
        await packed(options(tmp_path / "in"), target, ShardPart(1, 2), server=s3)
        async with reading(s3) as sources:
            found = await sources.resolve_all([target])
        assert {ref.key.rpartition("/")[2][:8] for ref in found.refs} == {"shard-00"}
        assert len(found.sidecar_refs) == 1


async def test_a_changed_source_is_an_error(tmp_path: Path, s3: S3Server) -> None:
    """An object that was replaced after the freeze is not packed, in a folder and in a bucket."""
    files = folder(tmp_path / "in")
    for name, data in files.items():
        s3.put("data", f"train/{name}", data)
    for source, target in ((str(tmp_path / "in"), str(tmp_path / "out")), (SOURCE, TARGET)):
        progress = await packed(options(source), target, ShardPart(0, 2), server=s3)
        assert progress.shard_count > 1
    name = max(files)  # in the last shard
    (tmp_path / "in" / name).write_bytes(files[name][:-1] + b"x")
    s3.put("data", f"train/{name}", files[name][:-1] + b"x")
    for source, target in ((str(tmp_path / "in"), str(tmp_path / "out")), (SOURCE, TARGET)):
        with pytest.raises(ExceptionGroup) as caught:
            await packed(options(source), target, server=s3)
        error = caught.value.exceptions[0]
        assert isinstance(error, ObjectChanged)
        assert error.object.endswith(name)
        assert "another destination" in error.hint
    (tmp_path / "in" / name).unlink()
    with pytest.raises(ExceptionGroup) as caught:
        await packed(options(tmp_path / "in"), tmp_path / "out")
    error = caught.value.exceptions[0]
    assert isinstance(error, NotFound)
    assert "another destination" in error.hint


async def test_other_options_need_another_destination(tmp_path: Path) -> None:
    """A destination belongs to one pack: other options, and files of others, are refused before anything is written."""
    folder(tmp_path / "in")
    out = tmp_path / "out"
    await packed(options(tmp_path / "in"), out, ShardPart(0, 2))
    before = sorted(out.iterdir())
    for change, said in (
        ({"seed": 1}, "expected seed None, with which this pack was begun, got 1"),
        ({"shard_bytes": 2 << 20}, "expected shard_bytes 1048576"),
        ({"labels": "none"}, "expected labels 'folder'"),
    ):
        with pytest.raises(BadRequest, match=said):
            await packed(options(tmp_path / "in", **change), out)
    assert sorted(out.iterdir()) == before
    write(tmp_path / "full", {"notes.txt": b"mine"})
    with pytest.raises(BadRequest, match="expected an empty destination"):
        await packed(options(tmp_path / "in"), tmp_path / "full")
    with pytest.raises(BadRequest, match="outside of the source"):
        await packed(options(tmp_path / "in"), tmp_path / "in" / "shards")


async def test_labels_follow_the_data(tmp_path: Path) -> None:
    """Captions beside images, or one folder, make no labels; a wish for labels that cannot be met is an error."""
    write(
        tmp_path / "captions",
        {f"{name}/{n}.{end}": b"x" * 100 for name in "ab" for n in range(3) for end in ("jpg", "txt")},
    )
    write(tmp_path / "flat", {f"{n}.jpg": b"x" * 100 for n in range(3)})
    for name in ("captions", "flat"):
        progress = await packed(options(tmp_path / name), tmp_path / f"{name}-out")
        assert progress.manifest["classes"] == []
        assert progress.manifest["options"]["labels"] == "none"
    progress = await packed(options(tmp_path / "captions", labels="folder"), tmp_path / "labelled")
    assert progress.manifest["classes"] == ["a", "b"]
    with pytest.raises(BadRequest, match="expected every sample in a folder that is its class"):
        await packed(options(tmp_path / "flat", labels="folder"), tmp_path / "refused")


async def test_only_small_objects_are_packed(tmp_path: Path) -> None:
    """A shard among the objects is an error that names it; objects that are no samples are counted."""
    write(tmp_path / "in", {"a.jpg": b"x" * 100, "b.jpg": b"x" * 100, "labels.csv": b"a,1\n"})
    progress = await packed(options(tmp_path / "in"), tmp_path / "out")
    assert progress.passed_over.count == 1
    write(tmp_path / "in", {"c.tar": b"x" * 100})
    with pytest.raises(BadRequest, match="got a shard of many samples"):
        await packed(options(tmp_path / "in"), tmp_path / "other")
    write(tmp_path / "text", {"a.txt": b"x", "a.json": b"{}"})
    with pytest.raises(Unsupported, match="to resize, got none"):
        await packed(options(tmp_path / "text", resize=8), tmp_path / "third")


async def test_names_are_text(tmp_path: Path) -> None:
    """A name that is no UTF-8 is an error that names the file: manifests and keys are texts."""
    write(tmp_path / "in", {"a.jpg": b"x", os.fsdecode(b"b\xff.jpg"): b"x", "c.jpg": b"x"})
    with pytest.raises(BadRequest, match="expected names of UTF-8") as caught:
        await packed(options(tmp_path / "in"), tmp_path / "out")
    assert os.fsencode(caught.value.object).endswith(b"b\xff.jpg")


async def test_two_runs_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with the same part, on a file system without links too, leave one whole pack."""
    folder(tmp_path / "in")
    wanted = options(tmp_path / "in")
    await packed(wanted, tmp_path / "one")
    await asyncio.gather(*(packed(wanted, tmp_path / "two", WHOLE) for _ in range(2)))
    assert shards(tmp_path / "two") == shards(tmp_path / "one")

    def link(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)
    await packed(wanted, tmp_path / "three")
    assert shards(tmp_path / "three") == shards(tmp_path / "one")


async def test_images_are_reduced(tmp_path: Path) -> None:
    """With resize, large images are written again in the same shards by every part; a damaged one is named."""
    noise = np.random.default_rng(1).integers(0, 256, (90, 120, 3), np.uint8)
    data = simplejpeg.encode_jpeg(noise, 95)
    write(tmp_path / "in", {f"{n:03d}.jpg": data for n in range(100)})
    wanted = options(tmp_path / "in", resize=30)
    await packed(wanted, tmp_path / "one")
    for part in range(2):
        await packed(wanted, tmp_path / "two", ShardPart(part, 2))
    found = shards(tmp_path / "one")
    assert found == shards(tmp_path / "two")
    images = [image for one in found.values() for image in _members(one).values()]
    assert {simplejpeg.decode_jpeg_header(image)[:2] for image in images} == {(30, 40)}
    manifest = json.loads((tmp_path / "one" / "_feedd_pack.json").read_bytes())
    assert set(manifest["libraries"]) == {"simplejpeg", "opencv-python-headless"}
    (tmp_path / "in" / "050.jpg").write_bytes(data[:2000])
    with pytest.raises(ExceptionGroup) as caught:
        await packed(wanted, tmp_path / "three")
    error = caught.value.exceptions[0]
    assert isinstance(error, BadSample)
    assert error.object.endswith("050.jpg")
