"""Frozen value types shared by all rooms. No behaviour beyond arithmetic on their own fields."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from feedd.shard_index import ShardIndex as ShardIndex  # noqa: PLC0414 - plugins import it from here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from feedd.conversion import Conversion
    from feedd.errors import FeeddError
    from feedd.notices import Notice


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Half-open ``[start, end)`` in bytes of one object."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"expected 0 <= start <= end, got [{self.start}, {self.end})")

    @property
    def size_bytes(self) -> int:
        """Length of the range."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One version of one object.

    Attributes:
        root: the object's store: ``s3://bucket`` or ``file://``; no trailing slash.
        key: key in the store, exactly as listed; for ``file://`` the absolute path.
        size_bytes: length of the object.
        etag: version tag without quotes; for files derived from size, mtime and inode. Never empty.
        conversion: what makes the shard; None: it is the object itself. A converted shard has its own ``size_bytes``.
    """

    root: str
    key: str
    size_bytes: int
    etag: str
    conversion: Conversion | None = None

    @property
    def url(self) -> str:
        """The object's URL, as a user would type it."""
        return f"{self.root}{self.key}" if self.root == "file://" else f"{self.root}/{self.key}"


@dataclass(frozen=True, slots=True, eq=False)
class ArchivedRef(ObjectRef):
    """An object that may have to be restored before it can be read. It equals the plain ref of the same version."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self.plain == (other.plain if isinstance(other, ArchivedRef) else other)

    __hash__ = ObjectRef.__hash__

    @property
    def plain(self) -> ObjectRef:
        """The same version as any other object."""
        return ObjectRef(self.root, self.key, self.size_bytes, self.etag, self.conversion)


NextUses: TypeAlias = "Callable[[Sequence[ObjectRef]], Sequence[float]]"
"""Returns when each shard is needed next, on any scale: later times are needed later, ``inf`` never."""


@dataclass(slots=True)
class ReadProgress:
    """Progress of one read. The store that receives updates it, and any task may read it.

    Attributes:
        filled_bytes: bytes of the target, from its start, that are valid. A read that broke off continues after them.
        first_byte_s: when the first byte of the body came, on ``time.monotonic``; None: not yet.
        answered_by: request id and address of the sender, for messages; empty: unknown.
        round_trip_s: TCP round trip to the store when the connection opened; None: not known.
    """

    filled_bytes: int = 0
    first_byte_s: float | None = None
    answered_by: str = ""
    round_trip_s: float | None = None


@dataclass(frozen=True, slots=True)
class ObjectChecksum:
    """The stored checksum of a whole object.

    Attributes:
        algorithm: ``crc64nvme``, ``crc32c``, ``crc32``, ``sha1`` or ``sha256``.
        digest: digest of the object's bytes, big-endian for CRCs. With ``part_sizes``: of the parts' digests.
        part_sizes: bytes of each part of a composite checksum; empty: the digest is of the full object.
        part_digests: one digest per part if the store returns them, else empty.
    """

    algorithm: str
    digest: bytes
    part_sizes: tuple[int, ...] = ()
    part_digests: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A whole shard as a local file; valid while its pin is held.

    Attributes:
        ref: the object in the file.
        path: file to open read-only.
        data_at: offset of the object's first byte in the file; a multiple of the page size.
        format: format by which a converted shard is indexed; empty: derived from its name.
        inflight: the object is being fetched, and only the awaited parts are present.
        fd: descriptor of the file, for reading, which the cache owns; -1: open ``path``.
        is_opened_late: so many files are open that the daemon opens ``path`` for each request of a worker.
        owned: keeps ``fd`` open while this object lives; None: the owner of ``fd`` closes it.
    """

    ref: ObjectRef
    path: str
    data_at: int
    format: str = ""
    inflight: bool = False
    fd: int = -1
    owned: object = field(default=None, compare=False, repr=False)
    is_opened_late: bool = False


class FieldKind(enum.Enum):
    """Layout of a batch field (feedd.proto TensorSpec.Kind has the same names)."""

    DENSE = "dense"  # rows x shape, one region
    RAGGED = "ragged"  # values + int64 offsets[rows + 1] in elements, + int64 shapes[rows, ndim]
    TEXT = "text"  # UTF-8 bytes + offsets; list[str] for the user
    JSON = "json"  # as TEXT, parsed by the client
    PADDED = "padded"  # as DENSE, with a different shape in each batch: ``Region.dims``


@dataclass(frozen=True, slots=True)
class FieldRecipe:
    """One parsed field of the recipe: declarative, without any code.

    Attributes:
        name: key in the batch.
        sources: extensions that may hold it, first match wins.
        codec: name in the codec registry ("image", "int", "bytes", ...).
        params: the codec's parameters as canonical JSON text (sorted keys), part of the fingerprint.
        encoding: in the data (see ``recipe.encodings``), set once a shard is known; users do not set it.
        pad: how samples of different shapes become equal (see ``recipe.padding``), canonical JSON; empty: not padded.
    """

    name: str
    sources: tuple[str, ...]
    codec: str
    params: str = "{}"
    encoding: str = ""
    pad: str = ""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and type of a field in a batch.

    Attributes:
        name: key in the batch.
        kind: layout.
        dtype: numpy name, little-endian ("uint8", "float32", ...).
        shape: per-sample shape (DENSE); empty for scalars and for the other kinds.
        ndim: dimensions of one sample; RAGGED with ndim > 1 carries int64 shapes[rows, ndim]; PADDED: see each batch.
    """

    name: str
    kind: FieldKind
    dtype: str
    shape: tuple[int, ...] = ()
    ndim: int = 1


@dataclass(frozen=True, slots=True)
class Region:
    """Position of a field, in bytes from the start of its slot. ``dims``: PADDED only. Unused parts are 0."""

    values_at: int
    values_bytes: int
    offsets_at: int = 0
    shapes_at: int = 0
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """Position of a trainer process, in torchrun's words."""

    world_size: int = 1
    rank: int = 0
    local_world_size: int = 1
    local_rank: int = 0
    node_count: int = 1
    node_rank: int = 0

    def __post_init__(self) -> None:
        pairs = (
            ("rank", self.rank, "world_size", self.world_size),
            ("local_rank", self.local_rank, "local_world_size", self.local_world_size),
            ("node_rank", self.node_rank, "node_count", self.node_count),
        )
        for name, value, bound_name, bound in pairs:
            if not 0 <= value < bound:
                raise ValueError(f"expected 0 <= {name} < {bound_name} ({bound}), got {value}")

    def in_lane(self, lane_count: int) -> Topology:
        """Return the position in a plan in which each of ``lane_count`` lanes of a node counts as a node.

        Each lane has as many consecutive ranks of the node as the others. Lane ``l`` of node ``n`` is node ``l *
        node_count + n`` of the plan. So a node reads the same keys and partitions, however many lanes it has.

        Raises:
            ValueError: the ranks of the nodes cannot be split so.
        """
        if lane_count == 1:
            return self
        size, left = divmod(self.local_world_size, lane_count)
        if left or self.world_size != self.node_count * self.local_world_size:
            raise ValueError(
                f"expected each node's ranks to be a multiple of {lane_count} lanes, got {self.world_size} ranks on"
                f" {self.node_count} nodes, {self.local_world_size} of them on this one"
            )
        lane, local_rank = divmod(self.local_rank, size)
        node_rank = lane * self.node_count + self.node_rank
        return Topology(self.world_size, self.rank, size, local_rank, self.node_count * lane_count, node_rank)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Resume position of one rank; travels with every batch.

    Attributes:
        anchors: a window and its start in the stream, for each partition of the node, to count from; empty: unknown.
    """

    epoch: int = 0
    step: int = 0
    anchors: tuple[tuple[int, int], ...] = ()

    @property
    def window(self) -> int:
        """The first window that is still needed according to the anchors."""
        return min((window for window, _ in self.anchors), default=0)


@dataclass(frozen=True, slots=True)
class SlotRef:
    """One use of one slot. ``generation`` grows at each use, so that a stale return is recognised."""

    index: int
    generation: int


class Lifecycle(enum.Enum):
    """States of the daemon, in order."""

    STARTING = "starting"
    STANDBY = "standby"  # only of a daemon that waits for another one's end
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The answer to Open.

    Attributes:
        fingerprint: 16 bytes over ordered keys, sizes, ETags and recipe.
        steps: batches of the rank in the epoch, if known.
        uneven: how the steps of all ranks are equalised: as requested, or as chosen.
        left_out: samples of the rank in no step of an epoch, reported to its first consumer only; None: not known.
        run_batches: a slot holds a run of so many batches; 1: each batch has its own slot.
        batch_bytes: bytes from one batch of a run to the next; 0 if slots hold single batches.
        largest_shard_bytes: size of the largest assigned shard.
        object_bytes: mean size of the dataset's objects. Objects in packs count singly.
        shared_slot_count: slots of the arena, if other sessions read it too; 0: the arena belongs to the session alone.
        classes: class names behind the numbers of text labels, in order, by field; the same on all nodes.
        notices: which data is left out or changed.
    """

    specs: tuple[TensorSpec, ...]
    fingerprint: bytes
    shard_count: int
    assigned_shard_count: int
    assigned_bytes: int
    steps: int | None = None
    uneven: str = "allow"
    left_out: int | None = None
    run_batches: int = 1
    batch_bytes: int = 0
    shared_slot_count: int = 0
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()
    largest_shard_bytes: int = 0
    object_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BatchReady:
    """A produced batch, in the given slot, or in ``oversize`` if it did not fit.

    Attributes:
        oversize: private buffer of ``size_bytes`` for a batch larger than its slot; sent inline.
        again: one byte per row, 1 if the sample came before in this epoch, to fill up a step; empty: no row did.
        filtered: number of samples that the recipe's filters left out.
        arena_slot: the batch's slot, in an arena that several sessions read (``SessionInfo.shared_slot_count``).
        samples: number of samples packed into its rows; 0: each row is one sample.
    """

    cursor: Cursor
    rows: int
    regions: tuple[Region, ...]
    size_bytes: int
    bad_samples: int = 0
    oversize: memoryview | None = None
    again: bytes = b""
    filtered: int = 0
    arena_slot: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Produced:
    """A batch, or a run of batches of successive steps, and the slot that holds them until its release.

    Attributes:
        batch: the batch, or the first one of the run.
        alike: number of batches that follow in the slot and differ from the first in their steps only. Each batch
            begins ``SessionInfo.batch_bytes`` behind the one before.
        more: the batches after those.
        failure: why the batch after these cannot be made.
    """

    batch: BatchReady
    slot: SlotRef
    alike: int = 0
    more: tuple[BatchReady, ...] = ()
    failure: FeeddError | None = None

    @property
    def batch_count(self) -> int:
        """Number of batches in the slot."""
        return 1 + self.alike + len(self.more)

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches in the slot."""
        return self.batch.size_bytes * (1 + self.alike) + sum(one.size_bytes for one in self.more)

    @property
    def sample_count(self) -> int:
        """Samples of all batches in the slot."""
        first = (self.batch.samples or self.batch.rows) * (1 + self.alike)
        return first + sum(one.samples or one.rows for one in self.more)

    @property
    def bad_sample_count(self) -> int:
        """Bad samples of all batches in the slot."""
        return self.batch.bad_samples * (1 + self.alike) + sum(one.bad_samples for one in self.more)


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """There is no batch at the requested step: the rank's epoch has ``steps`` steps."""

    epoch: int
    steps: int
