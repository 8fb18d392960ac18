"""Brings the files of all channels into their directories: compares, copies from the cache, fetches, publishes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from feedd.errors import CacheUnavailable, FeeddError, ResourceExhausted, StoreUnavailable
from feedd.file_mode.channel_directory import PartialFile
from feedd.flow.pools import LOCAL_FILES
from feedd.flow.range_sinks import FileSink
from feedd.flow.tasks import run_to_end
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd.file_mode.cached_entries import CachedEntries
    from feedd.file_mode.channel_directory import ChannelDirectory, Comparison
    from feedd.protocols import FetchWatch, VerifyingFetcher
    from feedd.range_sink import RangeSink
    from feedd.values import ObjectRef

FILES_IN_FLIGHT: Final = 128
"""Files that are written at the same time: enough small ones to keep all requests in flight."""

SMALL_BYTES: Final = 256 << 10
"""Fetched objects below this size are checked by length and ETag only: a checksum would cost a request for each."""

_FAILURES_MAX: Final = 8  # then the cause is not an object, and the other objects are not tried


@dataclass(slots=True, eq=False)
class ChannelFiles:
    """A channel's files, and how far they are.

    Attributes:
        name: name of the channel.
        directory: where they go.
        wanted: the node's objects, by path below the directory.
        total_bytes: bytes of all files.
        present_count: files that were there before.
        present_bytes: bytes of these files.
        fetched_count: files fetched from the store.
        fetched_bytes: bytes of these files.
        copied_count: files copied from the cache.
        copied_bytes: bytes of these files.
        removed_count: files of earlier runs that no longer belong to the node.
        failures: one error for each file that cannot be had.
    """

    name: str
    directory: ChannelDirectory
    wanted: Mapping[str, ObjectRef]
    present_count: int = 0
    present_bytes: int = 0
    fetched_count: int = 0
    fetched_bytes: int = 0
    copied_count: int = 0
    copied_bytes: int = 0
    removed_count: int = 0
    failures: list[FeeddError] = field(default_factory=list)
    total_bytes: int = field(init=False)
    _fetches: dict[str, _FetchProgress] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total_bytes = sum(ref.size_bytes for ref in self.wanted.values())

    @property
    def done_count(self) -> int:
        """Files that are whole."""
        return self.present_count + self.fetched_count + self.copied_count

    @property
    def done_bytes(self) -> int:
        """Bytes of files that are whole, and the arrived bytes of others."""
        whole = self.present_bytes + self.fetched_bytes + self.copied_bytes
        return whole + sum(one.arrived_bytes for one in self._fetches.values())

    @property
    def is_whole(self) -> bool:
        """Whether all files are there."""
        return self.done_count == len(self.wanted)

    @contextlib.contextmanager
    def fetching(self, path: str, ordinal: int) -> Iterator[_FetchProgress]:
        """Yield the watch of a fetch, whose bytes count as done during the body."""
        watch = self._fetches[path] = _FetchProgress(ordinal)
        try:
            yield watch
        finally:
            del self._fetches[path]


class _FetchProgress:
    """A ``FetchWatch`` that counts bytes; files that come first in the channel are fetched first.

    Attributes:
        arrived_bytes: bytes that have arrived; updated in the loop that fetches.
    """

    def __init__(self, ordinal: int) -> None:
        self.arrived_bytes = 0
        self._ordinal = ordinal

    def urgency(self) -> float:
        """Return the position of the file in its channel."""
        return float(self._ordinal)

    def arrived(self, span: ByteRange, part: RangeSink) -> None:  # noqa: ARG002 - the seam's
        """Count a part."""
        self.arrived_bytes += span.size_bytes


class FilesRun:
    """One run for all channels. A cancelled run leaves whole files only; the next run continues after them.

    Args:
        fetcher: fetches objects, and verifies them.
        cached: entries to copy from.
    """

    def __init__(self, fetcher: VerifyingFetcher, cached: CachedEntries) -> None:
        self._fetcher = fetcher
        self._cached = cached

    async def run(self, channels: Sequence[ChannelFiles]) -> None:
        """Bring all files into their directories. All channels are checked before the first file is changed.

        Raises:
            BadRequest: a directory holds other files.
            PermissionDenied, ResourceExhausted, StoreUnavailable: a directory cannot be written.
        """
        comparisons = await run_to_end(LOCAL_FILES.begin(_compared, channels))
        for channel, comparison in zip(channels, comparisons, strict=True):
            await self._bring(channel, comparison)
            if len(channel.failures) >= _FAILURES_MAX:
                return

    async def _bring(self, channel: ChannelFiles, comparison: Comparison) -> None:
        directory = channel.directory
        failures: list[FeeddError] = []
        await run_to_end(LOCAL_FILES.begin(directory.begin, comparison.outdated))
        channel.removed_count = len(comparison.outdated)
        todo = iter(enumerate(comparison.missing))
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(len(comparison.missing), FILES_IN_FLIGHT)):
                    workers.create_task(self._work(channel, todo))
        except* FeeddError as group:
            failures = [error for error in group.exceptions if isinstance(error, FeeddError)]
        finally:
            await LOCAL_FILES.run(directory.finish, whole=channel.is_whole)
        if failures:
            raise failures[0]

    async def _work(self, channel: ChannelFiles, todo: Iterator[tuple[int, str]]) -> None:
        for ordinal, path in todo:  # the iterator is shared: each task takes the next file
            if len(channel.failures) >= _FAILURES_MAX:
                return
            try:
                await self._bring_file(channel, ordinal, path)
            except ResourceExhausted:  # no later file can succeed
                raise
            except FeeddError as error:
                error.object = error.object or channel.wanted[path].url
                channel.failures.append(error)

    async def _bring_file(self, channel: ChannelFiles, ordinal: int, path: str) -> None:
        ref, directory = channel.wanted[path], channel.directory
        stop = threading.Event()
        with PartialFile(directory.path, path, ref.size_bytes) as partial, channel.fetching(path, ordinal) as watch:
            copied = await run_to_end(LOCAL_FILES.begin(self._create, partial, ref, stop), stop)
            sink = FileSink(partial.file, 0, ref.size_bytes)
            try:
                if not (copied := copied and await self._fetcher.matches(ref, sink)):
                    await self._fetch(ref, sink, watch)
            except CacheUnavailable as error:  # the sink's word for a disk that refuses bytes
                message = f"the file cannot be written: {error.message}"
                hint = "see the kernel's log, or name another --root"
                raise StoreUnavailable(message, object=str(partial.final), hint=hint, stage="files") from error
            await run_to_end(LOCAL_FILES.begin(directory.publish, partial, ref))
        if copied:
            channel.copied_count += 1
            channel.copied_bytes += ref.size_bytes
        else:
            channel.fetched_count += 1
            channel.fetched_bytes += ref.size_bytes

    async def _fetch(self, ref: ObjectRef, sink: FileSink, watch: FetchWatch) -> None:
        if ref.size_bytes < SMALL_BYTES:
            await self._fetcher.fetch_spans(ref, (ByteRange(0, ref.size_bytes),), sink, watch)
        else:
            await self._fetcher.fetch(ref, sink, watch)

    def _create(self, partial: PartialFile, ref: ObjectRef, stop: threading.Event) -> bool:
        """Create a partial file; return whether it holds the object's bytes already."""
        partial.create()
        return self._cached.copy(ref, partial.file.fd, stop)


def _compared(channels: Sequence[ChannelFiles]) -> list[Comparison]:
    """Open and compare all channels, and check them for other files and for space."""
    comparisons: list[Comparison] = []
    needed: Counter[int] = Counter()
    for channel in channels:
        channel.directory.open()
        comparison = channel.directory.compare(channel.wanted)
        channel.present_count = len(comparison.present)
        channel.present_bytes = sum(channel.wanted[path].size_bytes for path in comparison.present)
        comparisons.append(comparison)
        channel.directory.check_foreign(comparison.foreign)
    for channel, comparison in zip(channels, comparisons, strict=True):
        device = channel.directory.device
        needed[device] += channel.total_bytes - channel.present_bytes - comparison.freed_bytes
        channel.directory.check_space(needed[device])
    return comparisons
