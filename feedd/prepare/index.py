"""Counting the samples of a dataset: each shard once, what is known already not at all."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from feedd.errors import BadRequest, FeeddError
from feedd.plan.counts import INDEX_NAME, Row, folder_of, render
from feedd.source.urls import parse_url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from feedd.pipeline import Pipeline
    from feedd.plan.listing import Listing
    from feedd.values import ObjectRef

_log = structlog.get_logger("feedd.prepare")
_SAVE_EVERY_S = 60.0  # so much work is lost at most when it is broken off


@dataclass(slots=True)
class Counting:
    """How far a counting has come.

    Attributes:
        shard_count: of the dataset.
        size_bytes: of the dataset.
        known_count: were known before.
        done_count: known now.
        done_bytes: of those.
        sample_count: in those.
        failures: one per shard that could not be counted.
    """

    shard_count: int = 0
    size_bytes: int = 0
    known_count: int = 0
    done_count: int = 0
    done_bytes: int = 0
    sample_count: int = 0
    failures: list[FeeddError] = field(default_factory=list)


def index_url(url: str) -> str:
    """Return where the index of a folder belongs: into it.

    Raises:
        BadRequest: no folder: an index of some of its objects would take the place of that of all.
    """
    location = parse_url(url)
    folder = not location.key or location.key.endswith("/")
    local = location.root == "file://" and Path(location.key).is_dir()
    if location.manifest or not (folder or local):
        raise BadRequest("expected a folder to index, with a slash at its end, got something else", object=url)
    key = location.key if folder else f"{location.key}/"
    base = location.root if location.root == "file://" else f"{location.root}/"
    return f"{base}{folder_of(key)}{INDEX_NAME}"


async def count(
    pipeline: Pipeline,
    url: str,
    save: Callable[[bytes], Awaitable[None]],
    tell: Callable[[Counting], object],
    at_once: int,
) -> Counting:
    """Count every shard that is not known yet, and save the index now and then and at the end.

    Args:
        pipeline: open stages, with a cache of their own.
        url: prefix or folder.
        save: writes the index object.
        tell: called after each shard.
        at_once: shards read side by side.

    Raises:
        NotFound, PermissionDenied, StoreUnavailable: the listing, or ``save``, failed. Shards that fail are told.
    """
    listing = await pipeline.shelf.fresh((url,))  # what others claim is counted all the same
    folder = folder_of(parse_url(index_url(url)).key)
    progress = Counting(len(listing.refs), int(listing.sizes.sum()), len(listing.counts))
    for shard in listing.counts:
        _done(progress, listing, shard)
    tell(progress)
    todo = iter([shard for shard in range(len(listing.refs)) if shard not in listing.counts])
    saved_s = time.monotonic()
    saving = asyncio.Lock()

    async def work() -> None:
        nonlocal saved_s
        for shard in todo:  # shared: each takes the next
            try:
                await pipeline.shelf.index(listing, shard)
            except FeeddError as error:
                error.object = error.object or listing.refs[shard].url
                progress.failures.append(error)
            else:
                _done(progress, listing, shard)
            tell(progress)
            if time.monotonic() - saved_s > _SAVE_EVERY_S and not saving.locked():
                async with saving:
                    saved_s = time.monotonic()
                    try:
                        await save(_file(listing, folder))
                    except FeeddError as error:  # the last one counts
                        _log.warning("the index could not be saved for now", reason=str(error))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
    await save(_file(listing, folder))
    return progress


def _done(progress: Counting, listing: Listing, shard: int) -> None:
    progress.done_count += 1
    progress.done_bytes += listing.refs[shard].size_bytes
    progress.sample_count += listing.counts[shard]


def _file(listing: Listing, folder: str) -> bytes:
    return render(_row(listing.refs[shard], folder, count) for shard, count in listing.counts.items())


def _row(ref: ObjectRef, folder: str, sample_count: int) -> Row:
    return Row(ref.key.removeprefix(folder), ref.size_bytes, ref.etag, sample_count)
