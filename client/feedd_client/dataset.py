"""FeedDataset: the dataset class that a training script constructs, iterates and checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import get_worker_info

from feedd_client import accelerated
from feedd_client import state as states
from feedd_client.asking import Plan
from feedd_client.dataset_base import DatasetBase
from feedd_client.epochs import Epochs
from feedd_client.errors import BadOptionError
from feedd_client.feeder import Feeder
from feedd_client.iterator import BatchIterator, FeedIterator, PassHooks, PassPlan, SampleIterator, inherited
from feedd_client.leases import COPY_BYTES
from feedd_client.opener import Consumer, Opener, ToDaemon
from feedd_client.options import (
    FeedOptions,
    explain_keywords,
    parse_order,
    parse_sources,
    parse_urls,
)
from feedd_client.policy import parse_policy
from feedd_client.recipe import encode_fields
from feedd_client.session import Position
from feedd_client.transport import checked_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from feedd_client.options import Mix, Sharding, Uneven
    from feedd_client.policy import BadSamples
    from feedd_client.topology import Topology
    from feedd_client.values import Shuffle, Source

# Nothing to resume from, no known number of steps, no known last step.
_NOTHING: Final[tuple[states.Resume | None, int | None, int | None, bool, bool]] = (None, None, None, False, False)


class FeedDataset(DatasetBase):
    """Decoded batches of a dataset, leased from the feedd daemon of this node.

    Iterating yields ``dict[str, Tensor | Ragged | list]`` batches. A host batch is a view of shared memory. The view
    stays valid while any of its tensors is held. If the trainer holds every slot, further batches are private copies.
    The constructor checks its arguments and opens no connection, so a dataset may be pickled or forked. Each process
    opens its own channel when it iterates. Every later pass must find the same objects as the first; otherwise the
    pass raises an error.

    Epochs: the first pass is epoch 0. Each *complete* pass moves on to the next epoch, so plain nested loops get a new
    shuffle each time. ``set_epoch`` overrides this. A pass that was left early starts the same epoch again. If the
    number of steps is known, a pass is complete with its last batch, and ``state_dict()`` then returns the start of the
    next epoch. If it is unknown, a pass is complete when it raises StopIteration.

    Args:
        url: a prefix, an object, a list of them, ``manifest+s3://…``, or ``augmented+s3://…``. A format in front
            (``tfrecord+s3://…``) applies to all shards, whatever their names. ``{000..127}``, ``{a,b}`` and ``::``
            make lists, as in WebDataset. ``frozen+s3://bucket/train/`` reads the folder's frozen manifest and lists
            nothing. ``channel://train`` is a channel of the SageMaker job that the daemon sees.
            A list of ``Source`` is mixed by their weights. Mixing needs sample counts (``feedd index``). A source that
            ends starts again with a new shuffle, and keeps its position from epoch to epoch. All ranks of a mixture
            have the same number of whole steps.
        batch_size: samples per batch; None yields single samples.
        fields: what to decode, and how. None selects the default codec for each extension or stored column type.
            Floats of any width then become float32; ``"float:float64"`` keeps their bits.
        shuffle: True, False, or a ``Shuffle``. None is False, or as a channel says.
        seed: seed of the order and of augmentations. None is 0, or as a channel says.
        sharding: which objects a node gets: "key" (as ShardedByS3Key), "size" or "replicated". "sample" gives each node
            an equal share of all samples, to within one sample, and needs sample counts (``feedd index``). None is
            "key", or as a channel says.
        uneven: how all ranks get the same number of steps. "drop" leaves out steps that some rank would miss or have
            short. "pad" gives ranks that end early samples again, marked False in ``batch["__valid__"]``. "repeat" does
            the same without marks. These three need sample counts or ``steps``. "join" stops all ranks where the first
            rank ends (needs torch.distributed). "allow" lets each rank end by itself. None is "repeat" with
            ``steps``, "allow" for one rank, "drop" if sample counts are known, and "join" otherwise.
        partitions: number of parts of the dataset, a multiple of the number of nodes; None: one part per node. A run
            may resume with other numbers of nodes and ranks. The number of partitions must stay the same, and so must
            the number of samples that all ranks together take in a step.
        steps: steps of every rank in every epoch, whatever the number of samples. Ranks that end early begin again.
        mix: "stratified": each run of consecutive samples in a batch holds every source's share, to within whole
            samples. "sample": each sample's source is drawn at random. "batch": each batch comes from one source,
            spread as evenly as "stratified". "batch-sample": each batch comes from one source, drawn at random.
        samples_per_epoch: samples of a mixture per epoch over all ranks, rounded down to whole steps. None: the epoch
            ends when the first source ends.
        replicas: size of the groups of consecutive ranks that read the same batches, because they share a model
            (tensor, pipeline or sequence parallel). A group counts as one rank everywhere else. Each rank decodes its
            own batches unless ``share`` is given.
        share: "job-group", or any name. Jobs on this node that give the same name and request the same batches share
            one decode of each batch. Batches are decoded again for a job that falls far behind.
        address: address of the daemon; None: ``$FEEDD_ADDRESS``, else ``unix:///run/feedd/feedd.sock``. If neither is
            given and no daemon answers at that socket, the client starts one for this process tree.
        topology: ranks and nodes of this process; None: from torch.distributed or the launcher's variables.
        keys: add ``"__key__"`` and ``"__url__"``.
        copy: yield private copies.
        copy_bytes: limit in bytes for private copies, made while the trainer holds all slots of shared memory. Holding
            more is an error.
        prefetch: batches in shared memory at once. The daemon may grant fewer, or up to 16 if batches are small and
            hold only numbers (4 MiB in total). None: the daemon chooses 4 to 64 batches, about 64 MiB.
        bad_samples: what to do with samples that cannot be decoded or do not fit the schema. "error": raise at the
            first. "skip": leave them out of the batch. "replace": repeat the next good sample of the batch, so that
            batches stay full; ``batch["__valid__"]`` is False for such a row. "quarantine": skip, and have the daemon
            list them in a file. ``stats()`` counts bad samples. The number of steps stays the same. None: "skip" within
            ``max_bad_samples``.
        max_bad_samples: bad samples allowed in an epoch before an error is raised. None: 0 if ``bad_samples`` is not
            given, otherwise no limit.
        filter: conditions that every sample must meet, a mapping or a list of mappings: ``{"field": "txt", "min_bytes":
            1, "max_bytes": 4096}`` (stored size), ``{"field": "jpg", "min_height": 64, "max_width": 640}`` (from the
            header), ``{"field": "score", "min": 0.5, "max": 1}`` (a number), or ``{"field": "json", "key": "score",
            "min": 0.5}`` (a value inside JSON). Other samples are left out of their batch and counted in ``stats()``.
        decoded_cache: keep decoded images in the node's cache while it has room, so that later epochs do only the rest
            of their recipes. Batches stay the same, except for recipes that begin with a random crop
            (``image:224x224:random``). These crop from images with a shorter side of 256 (more for larger crops).
        open_timeout_s: seconds for opening. This includes the fetch of a first shard and the wait for the successor of
            a daemon that is shutting down.
        reconnect_timeout_s: seconds that a daemon may be away in the middle of an epoch.
        stall_timeout_s: seconds without any message or heartbeat from the daemon while a batch is awaited. The client
            then gives the stream up and opens again. A wait of 20 s is logged with its reason.

    Raises:
        BadOptionError: an argument is invalid.
    """

    @explain_keywords
    def __init__(
        self,
        url: str | Sequence[str] | Source | Sequence[Source],
        *,
        batch_size: int | None,
        fields: Mapping[str, str | Mapping[str, Any]] | None = None,
        shuffle: bool | Shuffle | None = None,
        seed: int | None = None,
        sharding: Sharding | None = None,
        uneven: Uneven | None = None,
        partitions: int | None = None,
        steps: int | None = None,
        mix: Mix = "stratified",
        samples_per_epoch: int | None = None,
        replicas: int = 1,
        share: str | None = None,
        address: str | None = None,
        topology: Topology | None = None,
        keys: bool = False,
        copy: bool = False,
        copy_bytes: int = COPY_BYTES,
        prefetch: int | None = None,
        bad_samples: BadSamples | None = None,
        max_bad_samples: int | None = None,
        filter: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        decoded_cache: bool = False,
        open_timeout_s: float = 120.0,
        reconnect_timeout_s: float = 300.0,
        stall_timeout_s: float = 120.0,
    ) -> None:
        sources = parse_sources(url)
        self._options = FeedOptions(
            urls=() if sources else parse_urls(url),
            batch_size=batch_size,
            fields=encode_fields(fields),
            **parse_order(url, shuffle, seed, sharding),
            uneven=uneven,
            partitions=partitions,
            steps=steps,
            replicas=replicas,
            share=share,
            keys=keys,
            copy=copy,
            copy_bytes=copy_bytes,
            prefetch=prefetch,
            samples=parse_policy(bad_samples, max_bad_samples, filter),
            open_timeout_s=open_timeout_s,
            reconnect_timeout_s=reconnect_timeout_s,
            stall_timeout_s=stall_timeout_s,
            sources=sources,
            mix=mix,
            samples_per_epoch=samples_per_epoch,
            decoded_cache=decoded_cache,
        )
        self.batch_size, self._address, self._topology = batch_size, checked_address(address), topology
        self._epochs, self._position, self._fingerprint, self._topology_state = Epochs(), Position(), b"", {}
        self._resume, self._known_steps, self._last_step, self._requested_steps, self._done = _NOTHING
        self._reset_process_state()

    # ------------------------------------------------------------------ what users call

    def __iter__(self) -> Iterator[Any]:
        accelerated.refuse_dealing()
        if _siblings_have_more(self._resume, self._epochs, self._options.open_timeout_s):
            self._resume = None
            return iter(self._end_at_once, None)
        return self.start_pass(copy=self._options.copy)

    def __len__(self) -> int:
        """Steps of this rank in an epoch, if known; the first call opens a session with the daemon.

        Raises:
            TypeError: the number of steps is unknown, or the dataset yields single samples.
            FeedError: the dataset cannot be opened.
        """
        if self._options.batch_size is None:
            raise TypeError("the number of samples is not known in advance; set batch_size, and len() counts steps")
        if self._known_steps is None and not self._requested_steps:
            self._known_steps = self._asker.steps(Plan(self._fingerprint, self._topology_state), self._epochs.current())
            self._requested_steps = True
        if self._known_steps is None:
            raise TypeError(
                "the number of steps is not known: tar shards are counted as they arrive. Run feedd index on the data,"
                " pass steps=, or iterate without len(); after one complete epoch len() works"
            )
        return self._known_steps

    def classes(self, field: str) -> list[str]:
        """Return the class names of a field's labels: label ``i`` is the name at index ``i``.

        Labels come from folder names or from a table's text labels. Names are sorted over the whole dataset, so all
        nodes get the same list. The first call opens a session with the daemon.

        Raises:
            FeedError: the field's labels are numbers in the data, or the dataset cannot be opened.
        """
        return self._asker.classes(field, Plan(self._fingerprint, self._topology_state), self._epochs.current())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass. A loaded position of another epoch is dropped.

        Raises:
            BadOptionError: ``epoch`` is negative.
        """
        if epoch < 0:
            raise BadOptionError(f"expected an epoch >= 0, got {epoch}", object="epoch")
        accelerated.refuse_dealing()
        info = get_worker_info()
        self._epochs.set(epoch, None if info is None else info.id)
        if self._position.epoch != epoch:
            self._position = Position(epoch)
            self._forget_steps()
        if self._resume is not None and self._resume.position.epoch != epoch:
            self._resume = None

    def state_dict(self) -> dict[str, Any]:
        """Return the resume position as a small JSON-able dict. Only batches that the trainer took count."""
        now = states.Resume(self._position, self._fingerprint, self._topology_state, self._done)
        return states.dump(now, self._options)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the next pass from the position in ``state``.

        Raises:
            StateError: the state was taken with other arguments, or is damaged. Topology and data are compared when
                the pass begins.
        """
        resume = states.load(state, self._options)
        self.set_epoch(resume.position.epoch)
        self._resume, self._position, self._done = resume, resume.position, resume.done
        self._fingerprint, self._topology_state = resume.fingerprint, resume.topology_state
        info = get_worker_info()
        if info is not None:
            self._epochs.loaded(resume.position.epoch, info.id, info.seed - info.id)

    def stats(self) -> dict[str, Any]:
        """Return counters of this process (see ``LoaderStats``)."""
        return self._stats.as_dict()

    def close(self) -> None:
        """Close sessions and channel; a finalizer does the same. The dataset may be iterated again."""
        self._runtime.close()

    # ------------------------------------------------------------------ what DeviceLoader calls

    def start_pass(self, *, copy: bool, pinned: bool = False) -> FeedIterator[Any]:
        """Begin a pass like ``iter()``, with ``copy`` chosen by the caller; ``pinned``: a device reads the slots.

        Raises:
            FeedError: the daemon, dataset, state or ranks do not allow a pass.
        """
        if self._runtime.pid != os.getpid():  # after a fork: the channel belongs to the parent
            inherited.append(self._runtime)
            self._reset_process_state()
        info = get_worker_info()
        worker_id, worker_count = (None, 1) if info is None else (info.id, info.num_workers)
        in_worker = info is not None
        ranks, runtime = self._ranks, self._runtime
        consumer = Consumer(ranks.topology(in_worker=in_worker), worker_count, worker_id or 0)
        uneven = ranks.uneven(consumer.topology, in_worker=in_worker)
        start = states.begin(self._resume, self._epochs.current(worker_id), consumer, self._options)
        lane_count = states.lanes_of(self._topology_state, consumer.topology, self._options, start.row)
        idle = runtime.borrow(lane_count, pinned=pinned)
        if idle is not None:
            lane_count = idle.lane_count
        to_daemon = ToDaemon(runtime.connect, runtime.drop_channel)
        opener = Opener(self._options, consumer, to_daemon, uneven, lane_count=lane_count, pinned=pinned)
        single = self._options.batch_size is None
        feeder = Feeder(opener, self._options, consumer, self._stats, self._runtime.copies)
        try:
            feeder.start(start, idle, self._fingerprint, first=not self._epochs.started)
            self._epochs.begin()
            if uneven == "auto" and feeder.uneven == "join":
                ranks.check_join(consumer.topology, in_worker=in_worker)
            # Each collected single sample would hold a whole slot, so single samples are copied.
            plan = PassPlan(copy=copy or in_worker or (single and not pinned), skip_rows=start.row)
            plan = ranks.agree(plan, feeder, start, consumer, in_worker=in_worker)
            self._stats.ranks_compared = ranks.compared
        except BaseException:
            feeder.interrupt()
            runtime.give_back(feeder.close())
            raise
        assert feeder.session is not None
        self._fingerprint, self._topology_state = (
            feeder.session.granted.fingerprint,
            states.topology_state(consumer, self._options, feeder.session.lane_count),
        )
        self._resume = None
        if feeder.known_steps is not None:
            limit = plan.step_limit
            self._known_steps = feeder.known_steps if limit is None else start.step + limit
        # without common steps, ranks reach the next epoch at different times: each must ask beyond its last batch
        together = feeder.uneven != "allow" or consumer.topology.world_size == 1
        self._last_step = self._known_steps if together else None
        self.commit(start, worker_id)
        hooks = PassHooks(
            commit=lambda position: self.commit(position, worker_id),
            finish=lambda epoch, steps: self.finish_epoch(epoch, steps, worker_id),
            retire=runtime.give_back,
            leave=runtime.left.append,
        )
        kind: type[FeedIterator[Any]] = SampleIterator if self._options.batch_size is None else BatchIterator
        return kind(feeder, plan, hooks, self._stats)

    def commit(self, position: Position, worker_id: int | None = None) -> None:
        """Record that the trainer took every batch before ``position``.

        After the last known step, the dataset moves to the next epoch's start at once. Trainers that loop over
        ``len()`` never ask for one batch more.
        """
        self._position, self._done = position, False
        if self._last_step is not None and position.step >= self._last_step:
            self._come_to(position.epoch + 1, worker_id)
            self._done = worker_id is not None

    def finish_epoch(self, epoch: int, steps: int, worker_id: int | None = None) -> None:
        """Record that the trainer saw the end of ``epoch`` after ``steps``; the next pass runs the next epoch."""
        self._known_steps = steps
        self._come_to(epoch + 1, worker_id)
        self._done = False  # a consumer that asks beyond the end has seen the other workers' batches too

    # ------------------------------------------------------------------ inside

    def _end_at_once(self) -> None:
        self._done = False  # the next epoch begins after this end, as after any other

    def _come_to(self, epoch: int, worker_id: int | None) -> None:
        self._epochs.come_to(epoch, worker_id)
        self._position = Position(epoch)
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Forget the last epoch's number of steps if another epoch may have another number."""
        if self._options.lengths_vary:
            self._known_steps, self._requested_steps = None, False


def _siblings_have_more(resume: states.Resume | None, epochs: Epochs, timeout_s: float) -> bool:
    """Whether this DataLoader worker had finished its part of the resumed epoch while other workers had not."""
    info = get_worker_info()
    if resume is None or not resume.done or info is None:
        return False
    pass_id = info.seed - info.id  # torch draws a new base seed for each pass
    return epochs.first_loaded(info.num_workers, pass_id, timeout_s) < resume.position.epoch
