"""Sources to pack, and runs of a pack in this process."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.dataset.shard_part import ShardPart
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.observe.recorder import NullRecorder
from feedd.pack.pack_options import PackOptions
from feedd.pack.pack_run import Packing, PackRun, normal_source
from feedd.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.fakes.s3.server import S3Server

WHOLE = ShardPart()


def folder(root: Path, *, classes: int = 2, each: int = 60, seed: int = 7) -> dict[str, bytes]:
    """Write folders of small objects that look like JPEGs; return them by path."""
    draw = random.Random(seed)
    found = {
        f"class-{number}/{name:04d}.jpg": b"\xff\xd8\xff" + draw.randbytes(draw.randrange(1_000, 60_000))
        for number in range(classes)
        for name in range(each)
    }
    write(root, found)
    return found


def write(root: Path, files: dict[str, bytes]) -> None:
    """Write files below a folder."""
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def options(source: Path | str, **changes: Any) -> PackOptions:
    """Return options for shards of 1 MiB of tar."""
    return replace(PackOptions(normal_source(str(source)), "tar", MIB), **changes)


def reading(server: S3Server | None) -> Sources:
    """Return the stores of a run, not open yet."""
    access = S3Options(endpoint_url=server.url if server else None, region="us-east-1")
    return Sources(SourceOptions(s3={"*": access}), NullRecorder(), SystemClock())


async def packed(
    wanted: PackOptions,
    target: Path | str,
    part: ShardPart = WHOLE,
    *,
    server: S3Server | None = None,
    report: Callable[[Packing], object] = lambda _: None,
) -> Packing:
    """Run a pack; return its progress."""
    async with reading(server) as sources:
        run = PackRun(sources, wanted, str(target), report)
        frozen = await run.open()
        await run.make(frozen, part)
        await run.finish(frozen)
    return run.progress


def shards(target: Path) -> dict[str, bytes]:
    """Return the shards of a folder by name, after a look at the manifest, if it is there."""
    found = {path.name: path.read_bytes() for path in sorted(target.glob("shard-*"))}
    manifest = target / "_feedd_pack.json"
    if manifest.exists():
        told = {one["name"]: one["sha256"] for one in json.loads(manifest.read_bytes())["shards"]}
        assert told == {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
    return found
