"""Ways to damage a cache directory, and to see that nothing of it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.cache import entry_layout

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.cache.cache import Cache
    from feedd.values import ObjectRef
    from tests.fakes.caches import CacheRig

ROOMY = 1000.0  # shards of the usual size


def path_of(rig: CacheRig, ref: ObjectRef) -> Path:
    """Where an entry lies."""
    return entry_layout.file_path(rig.directory, ref)


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


async def filled(rig: CacheRig, *refs: ObjectRef) -> None:
    """Leave a directory with these entries behind."""
    async with rig.open(ROOMY) as cache:
        with await cache.acquire(refs):
            pass


async def served(rig: CacheRig, cache: Cache, refs: list[ObjectRef]) -> None:
    """Acquire and check every byte."""
    with await cache.acquire(refs) as pins:
        rig.check(pins, refs)
