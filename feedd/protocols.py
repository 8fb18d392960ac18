"""All seams on one page. An implementation or wrapper of a seam passes that seam's conformance suite.

Ownership: a ``memoryview`` handed in is borrowed until the call returns; nothing keeps it longer.
Cancellation: every coroutine here may be cancelled at any await and then holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from feedd.metrics import Metric
    from feedd.values import (
        BatchReady,
        ByteRange,
        Cursor,
        EpochEnd,
        ObjectChecksum,
        ObjectRef,
        OpenSpec,
        ReadProgress,
        SessionInfo,
        ShardFile,
        ShardIndex,
        SlotRef,
        TensorSpec,
    )


class Clock(Protocol):
    """Time, injectable."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never jumps."""

    async def sleep_s(self, duration_s: float) -> None:
        """Suspend the calling task."""


class Recorder(Protocol):
    """Where measurements go; cheap enough to call per part, not per byte."""

    def count(self, metric: Metric, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter."""

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""

    def move(self, metric: Metric, delta: float, **labels: str) -> None:
        """Add to a gauge; ``delta`` may be negative."""

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add one observation to a histogram."""


@runtime_checkable
class ObjectStore(Protocol):
    """One bucket or directory tree. ``repr`` of a wrapper shows what it wraps: ``RetryStore(S3Store(s3://b))``."""

    @property
    def root(self) -> str:
        """``s3://bucket`` or ``file://``."""

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[list[ObjectRef]]:
        """Yield pages of the objects whose key starts with ``prefix``, in UTF-8 byte order of keys.

        Only keys after ``start_after``: that is how a listing that broke off is taken up again. Close what is
        not read to its end (``contextlib.aclosing``): a listing may hold a thread.

        Zero-byte keys that end in ``/`` (folder markers) are left out. Pages hold at most 1,000 refs.

        Raises:
            NotFound: the bucket or directory does not exist. An empty prefix of one that does yields nothing.
            PermissionDenied, StoreUnavailable: as named.
        """

    async def head(self, key: str) -> ObjectRef:
        """Return the current version of one object.

        Raises:
            NotFound, PermissionDenied, StoreUnavailable: as named.
        """

    async def checksum(self, ref: ObjectRef) -> ObjectChecksum | None:
        """Return what the store keeps to check the whole object against; None where it keeps nothing.

        Raises:
            ObjectChanged: the store now has another version.
            NotFound, PermissionDenied, StoreUnavailable, Throttled: as named.
        """

    async def read_into(
        self, ref: ObjectRef, span: ByteRange, target: memoryview, progress: ReadProgress | None = None
    ) -> None:
        """Fill ``target`` (exactly ``span.size_bytes`` long) with that range of that version.

        ``progress``, fresh for each call, is kept up to date where the store can tell.

        Raises:
            ObjectChanged: the store now has another version.
            BadResponse: other length or range than asked; ``target`` may then hold anything.
            NotFound, PermissionDenied, StoreUnavailable, Throttled: as named.
        """

    async def close(self) -> None:
        """Release connections; idempotent."""


class FetchWatch(Protocol):
    """Whoever a fetch is for."""

    def urgency(self) -> float:
        """Position of the future at which the object is needed: lower goes first. Asked whenever there is a choice."""

    def arrived(self, span: ByteRange, piece: memoryview) -> None:
        """Take note of a part that is whole; ``piece`` is borrowed. A span that comes again replaces the earlier one.

        Parts come in any order; each byte of the object is in the last call for it when the fetch returns.
        """


class ShardFetcher(Protocol):
    """Brings a whole object into memory somebody else owns, by parallel ranges within the byte budget."""

    async def fetch(self, ref: ObjectRef, target: memoryview, watch: FetchWatch | None = None) -> None:
        """Fill ``target`` (exactly ``ref.size_bytes`` long), checked against the store's checksum where it has one.

        Raises what ``ObjectStore.read_into`` raises; ``BadResponse`` too where the checksum still differs after the
        object was fetched again.
        """


class SpanFetcher(ShardFetcher, Protocol):
    """A fetcher that brings parts of objects too."""

    async def fetch_spans(
        self, ref: ObjectRef, spans: Sequence[ByteRange], target: memoryview, watch: FetchWatch | None = None
    ) -> None:
        """Fill these spans of ``target``, which is as long as the object; checksums of whole objects say nothing here.

        Raises what ``ObjectStore.read_into`` raises.
        """


class PinnedShards(Protocol):
    """Shards that stay on disk until released. A context manager; releasing twice is harmless."""

    @property
    def files(self) -> tuple[ShardFile, ...]:
        """One per ref asked for, in that order."""

    def release(self) -> None:
        """Drop the pins."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(self, *exc: object) -> None:
        """Release."""


class ShardCache(Protocol):
    """Whole shards on local disk: reserve, fill, commit; pinned in use; evicted by next use, then least recent."""

    async def acquire(self, refs: Sequence[ObjectRef]) -> PinnedShards:
        """Return pins on all of ``refs``, fetching what is missing; one fetch per object however many ask.

        Space for everything missing is claimed all or nothing and no pin is held while waiting for space,
        so that two acquirers cannot starve each other.

        Raises:
            CacheTooSmall: they cannot fit together even into an empty cache.
            CacheUnavailable: the directory cannot be written.
            Whatever the fetcher raises.
        """

    def prefetch(self, refs: Sequence[ObjectRef], owner: str) -> None:
        """Replace ``owner``'s wish list: fill these in order, in the background, never evicting a sooner use.

        An empty list cancels the owner's fills that nobody else awaits.
        """

    def note_next_use(self, uses: Iterable[tuple[ObjectRef, float]]) -> None:
        """Tell at which position of the future each shard is needed next; ``inf``: never again."""

    async def discard(self, ref: ObjectRef) -> None:
        """Drop an entry found to be damaged, as soon as no pin holds it; the next acquire fetches it again."""

    async def renew(self, ref: ObjectRef) -> None:
        """Drop an entry as ``discard`` does, which is not damaged: more of it can be fetched by now."""

    async def close(self) -> None:
        """Cancel fills, release the directory. Committed entries stay for the next start."""


class ShardFormat(Protocol):
    """Framing: from a shard's bytes to sample spans. Runs in decode workers."""

    @property
    def name(self) -> str:
        """Registry name, such as ``tar``."""

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return where each sample lies.

        Raises:
            BadShard: broken framing, with url and byte offset in the message.
        """


class PartialObject(Protocol):
    """What is here of an object that a shard is made of."""

    @property
    def size_bytes(self) -> int:
        """Length of the object."""

    @property
    def spans(self) -> tuple[ByteRange, ...]:
        """Which of its bytes are here: in order, apart from each other."""

    @property
    def data(self) -> memoryview:
        """The whole object, read-only; bytes outside of ``spans`` are zero."""


class ShardWriter(Protocol):
    """Where a made shard is written to, from its start to its end."""

    @property
    def at(self) -> int:
        """Bytes written so far."""

    @property
    def limit_bytes(self) -> int:
        """Most bytes it may have."""

    def write(self, data: Buffer) -> None:
        """Append; ``data`` may be used again at once.

        Raises:
            BadShard: more than ``limit_bytes``.
        """


class ShardConverter(Protocol):
    """Making a shard that can be read at random of an object that cannot. Runs in decode workers; stateless.

    What it makes of the same bytes is always the same: where that changes, so does the name.
    """

    @property
    def name(self) -> str:
        """Registry name, such as ``gunzip``."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return what must be here, besides what is, before the shard can be made; empty: nothing more.

        Asked again after each answer. With nothing held it is asked in the daemon, so that answer is arithmetic.

        Raises:
            BadShard, Unsupported: as ``make``.
        """

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the shard; return the name of the format by which it is indexed.

        Args:
            held: what was wanted is here.
            url: of the object; named in errors.
            params: what follows the name of the form.
            out: takes it.

        Raises:
            BadShard: broken bytes.
            Unsupported: a library is missing, or an object that this version cannot read.
        """


class SampleCodec(Protocol):
    """Decoding of one field. Runs in decode workers; knows nothing of shards or batches."""

    def spec(self, name: str) -> TensorSpec:
        """Return what the field looks like in a batch."""

    def measure(self, data: memoryview) -> tuple[int, ...]:
        """Return the decoded shape of one sample (RAGGED only), reading headers only.

        Raises:
            BadSample: not decodable.
        """

    def decode(self, data: memoryview, out: NDArray[np.generic], seed: int) -> None:
        """Decode into ``out``: the sample's row of the batch slot, of exactly the right shape and dtype.

        Raises:
            BadSample: not decodable; ``out`` may then hold anything.
        """


class Slots(Protocol):
    """Memory of a session's batches: numbered slots of equal size in one memfd."""

    @property
    def slot_count(self) -> int:
        """How many."""

    @property
    def slot_bytes(self) -> int:
        """Size of each."""

    def view(self, slot: SlotRef) -> memoryview:
        """Return the slot's bytes (daemon's own mapping), writable."""


@dataclass(frozen=True, slots=True)
class Produced:
    """A batch, and the slot that is taken for it until it is released."""

    batch: BatchReady
    slot: SlotRef


class BatchMaker(Protocol):
    """Makes batches of one consumer's opened dataset into its slots."""

    async def produce(self, steps: Sequence[Cursor]) -> list[Produced | EpochEnd]:
        """Make the batches of the leading steps, one at least. The others are to be asked for again.

        If one of several fails, all fail: each is then to be asked for alone. What fails holds no slot.

        Args:
            steps: up to ``SessionInfo.at_once``. As many slots must be free, beyond those of calls under way.

        Raises:
            Whatever source, cache and decode raise for the shards and samples it needs.
        """

    def release(self, slot: SlotRef) -> None:
        """Free the slot of a batch that was produced."""

    @property
    def stage(self) -> str:
        """What the batches under way wait for, in a word: "fetching" or "decoding"."""


class FeedSession(BatchMaker, Protocol):
    """One consumer's opened dataset: produces any of its batches, in any order, several at a time."""

    @property
    def info(self) -> SessionInfo:
        """What Open answers."""

    @property
    def slots(self) -> Slots:
        """The memory that its batches are made in."""

    def client_mapping(self) -> AbstractContextManager[int]:
        """Hand the arena's memfd to one client. The memory counts until the exit, even if the session closes first."""

    def steps(self, epoch: int) -> int | None:
        """Return the steps of an epoch of the session's rank; None: not known yet."""

    def keep_lent(self) -> None:
        """Before the slots are released: the client may go on reading what it holds, so nobody writes there."""

    async def close(self) -> None:
        """Give back arena and wishes. Called once, after the last produce has ended and all slots are released."""


class FeedBackend(Protocol):
    """What serve needs from the pipeline."""

    async def open(self, spec: OpenSpec) -> FeedSession:
        """Resolve and open.

        Raises:
            BadRequest, NotFound, PermissionDenied, ResourceExhausted, ...: said to the client as they are.
        """


class BatchTransport(Protocol):
    """How a ready batch reaches the client: as a lease on a slot, or inline in chunks."""

    @property
    def name(self) -> str:
        """Metric label: ``slot`` or ``inline``."""

    async def send(self, seq: int, batch: BatchReady, slot: SlotRef) -> bool:
        """Send one batch; True where the client now holds the slot, False where it is free again."""
