"""The interfaces between rooms. Implementations and wrappers of an interface must pass its conformance suite.

Ownership: a ``memoryview`` argument is borrowed until the call returns and not kept longer. Cancellation: every
coroutine here may be cancelled at any await and then holds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from feedd.metrics import Metric
    from feedd.open_spec import OpenSpec
    from feedd.range_sink import RangeSink
    from feedd.shard_index import ShardIndex
    from feedd.values import (
        ByteRange,
        Cursor,
        EpochEnd,
        NextUses,
        ObjectChecksum,
        ObjectRef,
        Produced,
        ReadProgress,
        SessionInfo,
        ShardFile,
        SlotRef,
        TensorSpec,
    )


class Clock(Protocol):
    """A source of time that tests can replace."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never jumps."""

    async def sleep_s(self, duration_s: float) -> None:
        """Suspend the calling task for ``duration_s`` seconds."""


class Recorder(Protocol):
    """Receives measurements; cheap enough to call per part, not per byte."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        """Add to a gauge; ``delta`` may be negative."""

    def observe(self, metric: Metric, value: float, times: int = 1, /, **labels: str) -> None:
        """Add an observation to a histogram, several times if many batches took the same time."""


@runtime_checkable
class ObjectStore(Protocol):
    """One bucket or directory tree. ``repr`` of a wrapper shows the wrapped store: ``RetryStore(S3Store(s3://b))``."""

    @property
    def root(self) -> str:
        """The root URL: ``s3://bucket`` or ``file://``."""

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[list[ObjectRef]]:
        """Yield pages of the objects whose key starts with ``prefix``, in UTF-8 byte order of keys.

        Only keys after ``start_after`` are listed, so that a broken listing can be resumed. Close a listing that is not
        read to its end (``contextlib.aclosing``), because it may hold a thread. Zero-byte keys that end in ``/``
        (folder markers) are left out. Pages hold at most 1,000 refs.

        Raises:
            NotFound: the bucket or directory does not exist. A prefix without objects yields nothing.
            PermissionDenied, StoreUnavailable: as named.
        """

    async def head(self, key: str) -> ObjectRef:
        """Return the current version of one object.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable: as named.
        """

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Return the stored checksum of the whole object, or None if the store has none.

        Raises:
            ObjectChanged: the store now has another version.
            NotFound, PermissionDenied, StoreUnavailable, Throttled: as named.
        """

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, sink: RangeSink, progress: ReadProgress | None = None
    ) -> None:
        """Write a range of a version of an object to ``sink``, which has the same length.

        ``progress``, fresh for each call, is updated if the store can report it.

        Raises:
            ObjectChanged: the store now has another version.
            BadResponse: length or range differs from the request; the sink's content is then undefined.
            NotFound, PermissionDenied, StoreUnavailable, Throttled: as named.
        """

    async def close(self) -> None:
        """Close connections; idempotent."""


class FetchWatch(Protocol):
    """The observer of a fetch, which also states its urgency."""

    def urgency(self) -> float:
        """Position at which the object is needed; lower goes first. Called at each scheduling choice."""

    def arrived(self, span: ByteRange, part: RangeSink) -> None:
        """Handle a whole part, whose bytes are in ``part``. A span that arrives again replaces the earlier one.

        Parts arrive in any order. When the fetch returns, the last call for each byte of the object had its final
        value.
        """


class ShardFetcher(Protocol):
    """Fetches a whole object into a sink, by parallel ranges within the byte budget."""

    async def fetch(self, ref: ObjectRef, sink: RangeSink, watch: FetchWatch | None = None) -> None:
        """Write an object to ``sink``, which has its length, and verify the store's checksum if there is one.

        Raises what ``ObjectStore.read_into`` raises; ``BadResponse`` if the checksum differs from a second fetch too.
        """


class SpanFetcher(ShardFetcher, Protocol):
    """A fetcher that can also fetch parts of objects."""

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], sink: RangeSink, watch: FetchWatch | None = None
    ) -> None:
        """Write spans to ``sink``, which has the object's length; checksums of whole objects are not verified.

        Raises what ``ObjectStore.read_into`` raises.
        """


class VerifyingFetcher(SpanFetcher, Protocol):
    """A fetcher that also verifies bytes which came in another way."""

    async def matches(self, ref: ObjectRef, sink: RangeSink) -> bool:
        """Whether ``sink`` holds the object's bytes, by the store's checksum; True if the store has none.

        Raises what ``ObjectStore.checksum`` raises.
        """


class PinnedShards(Protocol):
    """Shards that stay on disk until released. A context manager; releasing twice is harmless."""

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """One file per requested ref, in that order."""

    def release(self) -> None:
        """Drop the pins."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, *exc: object) -> None:
        """Release the pins."""


class ShardCache(Protocol):
    """Whole shards: reserve, fill, commit; pinned in use; evicted by next use, then least recent."""

    async def acquire(self, refs: Sequence[ObjectRef]) -> PinnedShards:
        """Return pins on all of ``refs``, fetching missing ones; callers share one fetch per object.

        Space for all missing objects is reserved all or nothing, and no pin is held while waiting for space. So two
        acquirers cannot starve each other.

        Raises:
            CacheTooSmall: the objects cannot fit together even into an empty cache.
            CacheUnavailable: the directory cannot be written.
            Whatever the fetcher raises.
        """

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s prefetches, which evict nothing needed sooner; an empty list ends those nobody awaits."""

    def note_next_use(self, times: NextUses, refs: Sequence[ObjectRef] | None = None) -> None:
        """Ask ``times`` from now on when shards are needed next; it changed for ``refs``, or for any shards."""

    async def discard(self, ref: ObjectRef) -> None:
        """Drop a damaged entry once no pin holds it; the next acquire fetches it again."""

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an undamaged entry as ``discard`` does, because missing objects of it can be fetched now."""

    async def close(self) -> None:
        """Cancel fills and release the directory. Committed entries stay for the next start."""


class ShardFormat(Protocol):
    """Finds the byte spans of samples in a shard. Runs in decode workers."""

    @property
    def name(self) -> str:
        """Registry name, such as ``tar``."""

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index of a shard's samples.

        Raises:
            BadShard: broken framing, with url and byte offset in the message.
        """


class PartialObject(Protocol):
    """The available parts of an object that is being converted."""

    @property
    def size_bytes(self) -> int:
        """Length of the object."""

    @property
    def spans(self) -> tuple[ByteRange, ...]:
        """The available byte ranges, ascending and not adjacent."""

    @property
    def data(self) -> memoryview:
        """The whole object, read-only; bytes outside of ``spans`` are zero."""


class ShardWriter(Protocol):
    """Output of a conversion, written from start to end."""

    @property
    def at(self) -> int:
        """Bytes written so far."""

    @property
    def limit_bytes(self) -> int:
        """Upper limit of the written bytes."""

    def write(self, data: Buffer) -> None:
        """Append ``data``, which may be reused at once.

        Raises:
            BadShard: the output exceeds ``limit_bytes``.
        """


class PlacedWriter(ShardWriter, Protocol):
    """Output of a conversion that is written in any order."""

    def move_to(self, at: int) -> None:
        """Have the next bytes written at an offset of the shard."""


class ShardConverter(Protocol):
    """Converts an object that cannot be read at random into a shard that can. Runs in decode workers; stateless.

    The output for the same bytes is always the same; if the output changes, the name changes too.
    """

    @property
    def name(self) -> str:
        """Registry name, such as ``gunzip``."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the ranges still needed before the shard can be made; empty: nothing more.

        Called again after each answer. The first call, with nothing held, runs in the daemon, so that answer is only
        arithmetic.

        Raises:
            BadShard, Unsupported: as ``make``.
        """

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the shard; return the name of the format by which it is indexed.

        Args:
            held: the object, with all wanted ranges available.
            url: URL of the object, for errors.
            params: the parameters after the converter's name.
            out: receives the shard.

        Raises:
            BadShard: the object's bytes are broken.
            Unsupported: a library is missing, or this version cannot read the object.
        """


class SampleCodec(Protocol):
    """Decoding of one field. Runs in decode workers; independent of shards and batches."""

    def spec(self, name: str) -> TensorSpec:
        """Return the field's spec in a batch."""

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the decoded shape of one sample (RAGGED only), reading headers only.

        Raises:
            BadSample: the sample cannot be decoded.
        """

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Decode into ``out``: the sample's row of the batch slot, with the exact shape and dtype.

        Raises:
            BadSample: the sample cannot be decoded; the content of ``out`` is then undefined.
        """


class Slots(Protocol):
    """Memory of a session's batches: numbered slots of equal size in one memfd."""

    @property
    def slot_count(self) -> int:
        """Number of slots."""

    @property
    def slot_bytes(self) -> int:
        """Size of each slot."""

    def view(self, slot: SlotRef) -> memoryview:
        """Return the slot's bytes (daemon's own mapping), writable."""


class BatchProducer(Protocol):
    """Makes batches of one consumer's dataset in slots."""

    async def produce(self, at: Cursor, count: int = 1) -> Produced | EpochEnd:
        """Make the batches of ``count`` steps from ``at`` on in one slot; fewer if the epoch ends or a batch fails.

        The steps are those of the session's consumer. ``count`` is at most ``SessionInfo.run_batches``. A slot must be
        free.

        Raises, if the first batch fails, and no slot is held then:
            The errors of source, cache and workers for the needed shards and samples.
        """

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a produced batch."""

    @property
    def stage(self) -> str:
        """The stage that pending batches are in: "fetching" or "decoding"."""


class FeedSession(BatchProducer, Protocol):
    """One consumer's open dataset: produces any of its batches, in any order, several at a time."""

    @property
    def info(self) -> SessionInfo:
        """The answer to Open."""

    @property
    def slots(self) -> Slots:
        """The slots in which its batches are made."""

    def client_mapping(self) -> AbstractContextManager[int]:
        """Yield the arena's memfd for one client. Its memory counts until the exit, even after the session's end."""

    def steps(self, epoch: int) -> int | None:
        """Return the steps of an epoch of the session's rank, or None if not known yet."""

    def retain_leased(self) -> None:
        """Keep leased slots out of use, because the client may go on reading them; called before they are released."""

    async def close(self) -> None:
        """Free the arena and cancel prefetches. Called once, after the last produce ended and all slots are free."""


class FeedBackend(Protocol):
    """The pipeline as the server uses it."""

    async def open(self, spec: OpenSpec) -> FeedSession:
        """Resolve and open a dataset.

        Raises:
            BadRequest, NotFound, PermissionDenied, ResourceExhausted, ...: passed to the client unchanged.
        """
