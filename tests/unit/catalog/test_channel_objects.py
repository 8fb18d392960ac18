"""The objects of a channel, as SageMaker lists them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from feedd.catalog import channel_objects
from feedd.catalog.channel_objects import list_channel
from feedd.catalog.sources import Sources
from feedd.channels.channel import Channel
from feedd.clock import SystemClock
from feedd.errors import BadRequest, NotFound
from feedd.fetch.fetch_options import SourceOptions
from feedd.observe.recorder import NullRecorder

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.catalog.channel_objects import ChannelObjects


async def _listed(url: str, *attributes: str) -> ChannelObjects:
    async with Sources(SourceOptions(), NullRecorder(), SystemClock()) as sources:
        return await list_channel(sources, Channel("train", attributes=attributes).at(url, "test"), 4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that FeedDataset would partly leave out."""
    names = ("b.bin", "a.bin", "_hidden", "x.sha256", "_feedd_index.json", "sub/c.bin", "empty")
    (tmp_path / "sub").mkdir()
    for name in names:
        (tmp_path / name).write_bytes(b"" if name == "empty" else name.encode())
    return tmp_path


@pytest.mark.parametrize("many", [False, True])
async def test_nothing_below_a_prefix_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch, *, many: bool) -> None:
    """All files in the order of their names, whatever they are; of many only columns are held."""
    monkeypatch.setattr(channel_objects, "_MANY", 1 if many else 1000)
    found = await _listed(f"file://{folder}/")
    names = ["_feedd_index.json", "_hidden", "a.bin", "b.bin", "empty", "sub/c.bin", "x.sha256"]
    assert [ref.key.removeprefix(f"{folder}/") for ref in found.refs] == names
    assert found.count == 7
    assert (await _listed(str(folder))).digest == found.digest
    assert [ref.key for ref in (await _listed(f"{folder}/a.bin")).refs] == [f"{folder}/a.bin"]


async def test_a_manifest_keeps_its_order(folder: Path) -> None:
    """Duplicates stay, and a missing object is an error that names it."""
    names = ["b.bin", "sub/c.bin", "_hidden", "b.bin"]
    (folder / "m").write_text(json.dumps([{"prefix": f"file://{folder}/"}, *names]))
    found = await _listed(f"manifest+file://{folder}/m")
    assert [ref.key.removeprefix(f"{folder}/") for ref in found.refs] == names
    (folder / "m").write_text(json.dumps([{"prefix": f"file://{folder}/"}, "none"]))
    with pytest.raises(NotFound) as caught:
        await _listed(f"manifest+file://{folder}/m")
    assert caught.value.object.endswith(f"{folder}/none")


async def test_the_lines_of_an_augmented_manifest(folder: Path) -> None:
    """They are the list; another content has another digest."""
    (folder / "m").write_text('{"a": 1}\n\n{"a": 2}\n')
    found = await _listed(f"augmented+file://{folder}/m", "a")
    assert found.lines is not None
    assert (found.count, len(found.refs)) == (2, 1)
    assert found.on_node(1, 0).indices(0).tolist() == [0, 1]
    (folder / "m").write_text('{"a": 1}\n\n{"a": 2}\n{"a": 3}')
    assert (await _listed(f"augmented+file://{folder}/m", "a")).digest != found.digest


async def test_a_manifest_that_is_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before it is fetched."""
    monkeypatch.setattr(channel_objects, "MANIFEST_BYTES_MAX", 3)
    with pytest.raises(BadRequest, match="expected a manifest of at most 3 bytes, got 5"):
        await _listed(f"augmented+file://{folder}/a.bin", "a")


@pytest.mark.parametrize("name", ["none/", "none", "bucket/train/"])
async def test_nothing_there(folder: Path, name: str) -> None:
    """A hint follows where ``s3://`` was most likely forgotten."""
    url = name if name.startswith("bucket") else f"{folder}/{name}"
    with pytest.raises(NotFound) as caught:
        await _listed(url)
    assert caught.value.object == url
    assert ("did you mean s3://" in caught.value.hint) == name.startswith("bucket")
