"""Which objects a node gets as files: those that SageMaker's File mode would give it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from feedd.channels.channel import Channel, Compression, DataType, Distribution, RecordWrapper
from feedd.errors import BadRequest, NotFound, Unsupported
from feedd.file_mode.channel_listing import files_of
from tests.fakes.stores import serving, sources_over

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.values import ObjectRef

KEYS = ["p/_hidden", "p/a.tar", "p/a.tar.idx", "p/b/_feedd_index.json", "p/b/x.txt", "p/c", "pq/d"]
SHARDED = Channel("train", "s3://bucket/p/", distribution=Distribution.SHARDED)


async def _files(channel: Channel, keys: dict[str, bytes], *node: int) -> dict[str, ObjectRef]:
    with serving(keys) as server:
        async with sources_over(server) as sources:
            return await files_of(sources, channel, *(node or (1, 0)))


async def test_all_objects_below_the_prefix() -> None:
    """Without exception: what feedd would not read as data is data of the user's code. Folder markers are not."""
    keys = {**{key: key.encode() for key in KEYS}, "p/b/": b""}
    found = await _files(Channel("train", "s3://bucket/p/"), keys)
    assert list(found) == [key[2:] for key in KEYS if key.startswith("p/")]
    assert all(ref.key == f"p/{path}" for path, ref in found.items())
    found = await _files(Channel("train", "s3://bucket/p"), keys)
    assert list(found) == [*(key[2:] for key in KEYS if key.startswith("p/")), "pq/d"]


@pytest.mark.parametrize("seed", [None, 7])
async def test_nodes_get_each_object_once(seed: int | None) -> None:
    """ShardedByS3Key: M/N objects each, disjoint, together all; a seed moves objects between the nodes."""
    keys = {f"p/{number:02}": b"x" for number in range(11)}
    channel = replace(SHARDED, seed=seed)
    nodes = [list(await _files(channel, keys, 3, rank)) for rank in range(3)]
    assert [len(node) for node in nodes] == [4, 4, 3]
    assert sorted(path for node in nodes for path in node) == [key[2:] for key in sorted(keys)]
    assert (nodes[0] == ["00", "03", "06", "09"]) == (seed is None)
    assert len(await _files(replace(channel, distribution=Distribution.REPLICATED), keys, 3, 1)) == 11


async def test_a_manifest() -> None:
    """Paths are what the manifest adds to its prefix; a name that stands there twice is one file."""
    names = ["b/x.txt", "a.tar", "a.tar"]
    manifest = json.dumps([{"prefix": "s3://bucket/p/"}, *names]).encode()
    channel = replace(SHARDED, url="s3://bucket/m.json", data_type=DataType.MANIFEST)
    found = await _files(channel, {**dict.fromkeys(KEYS, b"x"), "m.json": manifest})
    assert [(path, ref.key) for path, ref in found.items()] == [("b/x.txt", "p/b/x.txt"), ("a.tar", "p/a.tar")]
    manifest = json.dumps([{"prefix": "s3://bucket/p/b"}, "/../../c"]).encode()
    with pytest.raises(BadRequest, match="begins with a slash"):
        await _files(channel, {"p/b/../../c": b"x", "m.json": manifest})


async def test_local_folders(tmp_path: Path) -> None:
    """A path names a folder or a file, and no folder beside it that begins alike."""
    for path in ("data/a", "data/b/c", "data2/x"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    for url in (f"{tmp_path}/data", f"file://{tmp_path}/data/"):
        assert list(await _files(Channel("train", url), {})) == ["a", "b/c"]
    assert list(await _files(Channel("train", f"{tmp_path}/data/b/c"), {})) == ["c"]


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": Compression.GZIP},
        {"record_wrapper": RecordWrapper.RECORDIO},
        {"data_type": DataType.AUGMENTED, "attributes": ("source-ref",)},
    ],
)
async def test_what_only_pipe_mode_has_is_refused(settings: dict[str, Any]) -> None:
    """Files would hold other bytes than the channel says; the error names setting and channel."""
    with pytest.raises(Unsupported, match="File mode, got") as refused:
        await _files(replace(SHARDED, **settings), {"p/a": b""})
    assert refused.value.object == "channel train"


async def test_nothing_there() -> None:
    """A wrong bucket and a wrong prefix are told apart, and neither is an empty channel."""
    with pytest.raises(NotFound, match="at least one object") as refused:
        await _files(replace(SHARDED, url="s3://bucket/q/"), {"p/a": b""})
    assert refused.value.object == "s3://bucket/q/"
    with pytest.raises(NotFound) as refused:
        await _files(replace(SHARDED, url="s3://bucked/p/"), {"p/a": b""})
    assert "bucked" in refused.value.object
    with pytest.raises(BadRequest, match="plain URL"):
        await _files(replace(SHARDED, url="parquet+s3://bucket/p/"), {"p/a": b""})
