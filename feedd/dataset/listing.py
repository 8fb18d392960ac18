"""A resolved dataset: the ordered objects with the facts about them, and the views in which sessions read them."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from feedd.dataset.assignment import Partitioning
from feedd.dataset.field_names import FieldNames
from feedd.dataset.fingerprint import fingerprint, listing_digest, recipe_facts, runs_of
from feedd.dataset.index_file import folder_of
from feedd.dataset.object_spans import is_span
from feedd.dataset.passed_over import PassedOver
from feedd.dataset.ref_columns import RefColumns, ShardNumbers
from feedd.dataset.sharding import balance
from feedd.dataset.step_counts import UNEQUAL, Uneven, common_steps, known_counts, needs_counts, partition_samples
from feedd.errors import ObjectChanged

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, MutableMapping, Sequence

    from numpy.typing import NDArray

    from feedd.conversion import Conversion
    from feedd.dataset.assignment import Assignment
    from feedd.dataset.fingerprint import Runs
    from feedd.dataset.object_spans import Span
    from feedd.dataset.packs import Packs
    from feedd.open_spec import OrderSpec
    from feedd.values import FieldRecipe, ObjectRef

_VIEWS_MAX: Final = 64
_MANY: Final = 1 << 16  # with fewer objects, 280 bytes for each are little memory, and a tuple answers faster


def growing_windows(listing: Listing, order: OrderSpec) -> bool:
    """Return whether shuffle windows of epoch 0 grow from one shard: if the client chose no size of windows.

    Packs need no small windows: a batch waits for its own objects only. And neighbours in a pack are of one class.
    """
    return order.shuffle and not (listing.packs or order.window_shards or order.window_bytes)


@dataclass(slots=True)
class Listing:
    """One listing of one set of URLs.

    Attributes:
        refs: the objects, in the dataset's order; a shard's dataset index is its position here.
        sizes: int64[shards], bytes.
        digest: digest over keys, sizes and ETags.
        listed_s: monotonic time of the listing.
        numbers: finds an object's position in ``refs``.
        counts: known sample counts by dataset index. Plans rest on them, so no count ever changes.
        indexed: sidecars tell all counts, so every daemon that lists the data knows the same counts.
        counted_by: URLs of the sidecars behind the counts.
        firsts: the first dataset index of each source; the sources are concatenated.
        named: the format of shards whose URL names one, by dataset index.
        formats: the format of shards whose sidecar names one, by dataset index.
        packs: content of the shards that are packs of objects.
        labels: labels of the packs' samples, by column (see ``recipe.label_recipes``) and shard.
        passed_over: listed objects that are ignored.
        idx_bytes: size of MXNet's ``.idx`` next to record shards, by dataset index.
        frozen: the versions of frozen manifests that list the objects; empty: stores listed them.
        spans: samples of the shards that are spans of large objects, by dataset index.
    """

    refs: Sequence[ObjectRef]
    sizes: NDArray[np.int64]
    digest: bytes
    listed_s: float
    numbers: ShardNumbers
    counts: MutableMapping[int, int] = field(default_factory=dict)
    indexed: bool = False
    counted_by: tuple[str, ...] = ()
    firsts: tuple[int, ...] = (0,)
    named: Mapping[int, str] = field(default_factory=dict)
    formats: Mapping[int, str] = field(default_factory=dict)
    packs: tuple[Packs, ...] = ()
    labels: dict[str, dict[int, NDArray[np.int64]]] = field(default_factory=dict)
    passed_over: PassedOver = field(default_factory=PassedOver)
    idx_bytes: Mapping[int, int] = field(default_factory=dict)
    frozen: tuple[ObjectRef, ...] = ()
    spans: Mapping[int, Span] = field(default_factory=dict)
    _as_listed: DatasetView | None = field(default=None, repr=False)
    _counts_apart: dict[tuple[str, ...], dict[int, int]] = field(default_factory=dict, repr=False)
    _view_names: dict[tuple[str, ...], FieldNames] = field(default_factory=dict, repr=False)
    _owners: tuple[int, NDArray[np.int64]] | None = field(default=None, repr=False)
    _named: tuple[Mapping[int, str], Runs] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, refs: Sequence[ObjectRef], listed_s: float, firsts: tuple[int, ...] = (0,)) -> Listing:
        """Build from the refs; hashes every key, so call it off the event loop for many refs."""
        if isinstance(refs, RefColumns):
            sizes = refs.sizes
        else:
            sizes = np.fromiter((ref.size_bytes for ref in refs), dtype=np.int64, count=len(refs))
        return cls(_columns_if_many(refs), sizes, listing_digest(refs), listed_s, ShardNumbers(refs), firsts=firsts)

    @property
    def as_listed(self) -> DatasetView:
        """The view of objects that are read as they were listed; one for all who ask."""
        if self._as_listed is None:
            self._as_listed = DatasetView.as_listed(self)
        return self._as_listed

    def counts_apart(self, view: tuple[str, ...], counts: Mapping[int, int]) -> dict[int, int]:
        """Return the counts that views of one name share, at first a copy of ``counts``."""
        _make_room(self._counts_apart, view)
        return self._counts_apart.setdefault(view, dict(counts))

    def names_of_view(self, view: tuple[str, ...]) -> FieldNames:
        """Return the field names that views of one name share, as far as they are known."""
        _make_room(self._view_names, view)
        return self._view_names.setdefault(view, FieldNames())

    def format_of(self, shard: int) -> str:
        """Return the format named for a shard; empty: derived from its name."""
        named, told = self.named.get(shard, ""), self.formats.get(shard, "")
        return told if not named or told.startswith(f"{named}:") else named  # the named format, with its parameters

    def source_of(self, shard: int) -> int:
        """Return the source of a shard."""
        return bisect.bisect_right(self.firsts, shard) - 1

    def shards_of(self, source: int) -> range:
        """Return the dataset indices of one source."""
        ends = (*self.firsts[1:], len(self.refs))
        return range(self.firsts[source], ends[source])

    def add_counts(self, exact: Mapping[int, int], claimed: Mapping[int, int], counted_by: tuple[str, ...]) -> None:
        """Add counts from sidecars; later opens may then get another policy.

        Args:
            exact: counts of exactly these object versions.
            claimed: counts of other shards, claimed by any tool.
            counted_by: URLs of the sidecars.

        Raises:
            ObjectChanged: two counts of a shard differ.
        """
        _add(self.counts, exact)
        wrong = self.contradicts(claimed)
        if wrong is not None:
            raise _contradiction(self.refs[wrong].url, claimed[wrong], counted_by, self.counts[wrong])
        _add(self.counts, claimed)
        self.indexed, self.counted_by = len(exact) + len(claimed) == len(self.refs), counted_by

    def renew(self, newer: Listing) -> None:
        """Take the facts of a later listing of the same objects, which contradicts nothing here."""
        for shard, count in newer.counts.items():  # one by one, see ``_add``
            self.counts.setdefault(shard, count)  # counts learned meanwhile, on the loop, came from the shard itself
        self.listed_s, self.indexed, self.counted_by = newer.listed_s, newer.indexed, newer.counted_by
        self.formats, self.passed_over = newer.formats, newer.passed_over
        self.as_listed.read_as.clear()

    def contradicts(self, counts: Mapping[int, int]) -> int | None:
        """Return the first shard whose known count differs, or None."""
        return next((shard for shard, count in counts.items() if self.counts.get(shard, count) != count), None)

    def settled(self, uneven: Uneven) -> Uneven:
        """Return the policy, with AUTO resolved. All openers of this listing get the same, because ranks must agree."""
        if uneven is not Uneven.AUTO:
            return uneven
        return Uneven.DROP if self.indexed else Uneven.JOIN

    def partitioning(self, order: OrderSpec) -> Partitioning:
        """Return how the dataset is cut.

        Raises:
            BadRequest: partitions and topology do not fit together.
        """
        cut = Partitioning.of(order.sharding, order.partitions, order.batch_size, order.topology)
        return replace(cut, owners_of=self._owners_of)

    def _owners_of(self, sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        """Return ``balance``, with the last result for the whole listing remembered, because each rank asks twice."""
        if sizes is not self.sizes:
            return balance(sizes, count)
        last = self._owners  # read once, because opens run concurrently on threads
        if last is None or last[0] != count:
            last = self._owners = (count, balance(sizes, count))
            last[1].setflags(write=False)
        return last[1]

    def fingerprint(
        self,
        order: OrderSpec,
        recipes: Sequence[FieldRecipe],
        window_shards: int,
        mix: Mapping[str, object] | None = None,
        filters: Sequence[str] = (),
    ) -> bytes:
        """Return 16 bytes over everything that decides which samples a step of the run holds.

        For shards with a named format, the first call takes a tenth of a microsecond each. The fingerprint leaves out
        how a step's samples are dealt out to ranks and nodes, which may change when a run resumes.

        Args:
            order: what the request says about order and steps.
            recipes: recipes of the fields; for several sources they are among the facts of ``mix``.
            window_shards: shards per shuffle window.
            mix: facts of a mixture.
            filters: conditions that samples must meet, as text.
        """
        columns: dict[str, Runs] = {}
        facts: dict[str, object] = {
            "fields": recipe_facts(recipes),
            "step_samples": order.batch_size * order.topology.world_size,
            "partitions": order.partitions or order.topology.node_count,
            "sharding": order.sharding,
            "shuffle": [
                order.shuffle,
                window_shards if order.shuffle else 1,
                order.window_bytes,
                *(["growing"] if growing_windows(self, order) else []),
            ],
            "seed": order.seed,
        }
        if self.named:
            columns["formats"] = self._named_runs()
        if mix is not None:
            facts["mix"] = {**mix, "firsts": list(self.firsts)}
        if filters:
            facts["filters"] = list(filters)
        if order.bucket_by:
            facts["bucket_by"] = order.bucket_by
        return fingerprint(self.digest, facts, columns)

    def _named_runs(self) -> Runs:
        """Return the named format of each shard, computed once."""
        known = self._named
        if known is None or known[0] is not self.named:
            runs = runs_of(self.named.get(shard, "") for shard in range(len(self.refs)))
            known = self._named = (self.named, runs)
        return known[1]


@dataclass(slots=True)
class DatasetView:
    """A listing's objects in certain conversions. All facts about the objects themselves are the listing's.

    Attributes:
        listing: the objects as they were listed.
        refs: the same objects, each with the conversion in which it is read.
        counts: known sample counts by dataset index. It is the listing's own table unless the conversions may have
            other samples than the objects; then all views of one name share a table.
        name: one text for each choice that led to the conversions; empty: the objects are read as they were listed.
        twins: int64[shards], for each shard the first shard that is the same object; None: there are none, or the
            listing has only one source.
        learned: shards whose counts came from an index of the shard, and need not be learned again.
        read_as: the format by which a shard is indexed, by dataset index, once known.
        field_names: fields of the shards whose counts came from an index of the shard, for all views of one name.
    """

    listing: Listing
    refs: Sequence[ObjectRef]
    counts: MutableMapping[int, int] = field(repr=False)
    name: tuple[str, ...] = ()
    twins: NDArray[np.int64] | None = field(default=None, repr=False)
    learned: set[int] = field(default_factory=set, repr=False)
    read_as: dict[int, str] = field(default_factory=dict, repr=False)
    field_names: FieldNames = field(default_factory=FieldNames, repr=False)

    @classmethod
    def as_listed(cls, listing: Listing) -> DatasetView:
        """Return the view of objects that are read as they were listed."""
        return cls(listing, listing.refs, listing.counts, twins=_twins(listing, listing.refs))

    def converted(self, refs: Sequence[ObjectRef], name: tuple[str, ...], *, apart: bool = False) -> DatasetView:
        """Return a view of the same objects in other conversions.

        Args:
            refs: the objects in those conversions.
            name: the name of that view.
            apart: the conversions may have other samples than the objects, so their counts are kept apart.
        """
        counts = self.listing.counts_apart(name, self.counts) if apart else self.counts
        names = self.listing.names_of_view(name)
        return DatasetView(
            self.listing, _columns_if_many(refs), counts, name, _twins(self.listing, refs), field_names=names
        )

    def learn(self, shard: int, sample_count: int) -> None:
        """Record the count of a shard that was read.

        Raises:
            ObjectChanged: another count was known before, and plans were made with it.
        """
        told = self.counts.setdefault(shard, sample_count)
        if told != sample_count:
            raise _contradiction(self.refs[shard].url, told, self.listing.counted_by, sample_count)
        self.learned.add(shard)

    def find(self, refs: Collection[ObjectRef]) -> NDArray[np.int64]:
        """Return the dataset index of each object as read here, int64[refs]; -1: the dataset does not have it."""
        return self.listing.numbers.find(refs, self.refs)

    def shares(self, order: OrderSpec) -> tuple[Assignment, ...]:
        """Return the partitions of the node that the rank runs on.

        Raises:
            BadRequest: see ``Partitioning``.
        """
        cut, topology = self.listing.partitioning(order), order.topology
        return cut.shares(self.listing.sizes, self.counts, topology.node_count, topology.node_rank)

    def steps(self, order: OrderSpec, uneven: Uneven) -> int | None:
        """Return the steps of every rank; None: ranks differ, or the steps are not known in advance.

        Raises:
            BadRequest, Unsupported: equal steps are required but cannot be computed.
        """
        if order.steps:
            return order.steps
        if uneven in UNEQUAL:
            return None
        counts = known_counts(self.counts, len(self.refs))
        if counts is None:
            raise needs_counts(uneven)
        samples = partition_samples(self.listing.partitioning(order), self.listing.sizes, counts)
        return common_steps(uneven, samples, order.batch_size, order.topology)


def _columns_if_many(refs: Sequence[ObjectRef]) -> Sequence[ObjectRef]:
    """Return the same objects, in columns if they are many; takes a microsecond for each."""
    if isinstance(refs, RefColumns):
        return refs
    return tuple(refs) if len(refs) < _MANY else RefColumns(refs)


def _add(counts: MutableMapping[int, int], more: Mapping[int, int]) -> None:
    """Add counts one by one, because a single call with a million of them would block other threads for too long."""
    for shard, count in more.items():
        counts[shard] = count


def _make_room(facts: dict[tuple[str, ...], Any], view: tuple[str, ...]) -> None:
    """Drop the oldest facts of views if those of ``view`` are new and too many are held."""
    while len(facts) >= _VIEWS_MAX and view not in facts:
        del facts[next(iter(facts))]


def _contradiction(url: str, told: int, counted_by: tuple[str, ...], found: int) -> ObjectChanged:
    files = " or ".join(file for file in counted_by if url.startswith(folder_of(file)))
    return ObjectChanged(
        f"expected {told} samples, as {files or 'an earlier reading'} says, got {found}",
        object=url,
        hint="correct or remove that file; an index by feedd index takes precedence over it"
        if files
        else "open it again",
        stage="plan",
    )


def _twins(listing: Listing, refs: Sequence[ObjectRef]) -> NDArray[np.int64] | None:
    """Search for objects that several sources share; a single source lists each object once."""
    if len(listing.firsts) == 1:
        return None
    first: dict[tuple[str, str, str, Conversion | None], int] = {}
    names = ((ref.root, ref.key, ref.etag if is_span(ref) else "", ref.conversion) for ref in refs)
    found = [first.setdefault(name, number) for number, name in enumerate(names)]
    return np.array(found, dtype=np.int64) if len(first) < len(refs) else None
