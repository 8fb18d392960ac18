"""FeedDataset: what a training script makes, iterates and checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from torch.utils.data import get_worker_info

from feedd_client import accelerated
from feedd_client import state as states
from feedd_client.dataset_base import DatasetBase
from feedd_client.epochs import Epochs
from feedd_client.errors import BadOptionError
from feedd_client.feeder import Feeder
from feedd_client.iterator import BatchIterator, FeedIterator, PassHooks, PassPlan, SampleIterator, inherited
from feedd_client.leases import COPY_BYTES
from feedd_client.opener import Consumer, Opener
from feedd_client.options import FeedOptions, explain_keywords, parse_shuffle, parse_sources, parse_urls
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

# No state to resume from, no number of steps known, no last step.
_NOTHING: Final[tuple[states.Resume | None, int | None, int | None, bool, bool]] = (None, None, None, False, False)


class FeedDataset(DatasetBase):
    """Decoded batches of a dataset, leased from the feedd daemon of this node.

    Iterating yields ``dict[str, Tensor | Ragged | list]`` batches. A host batch is a view of shared memory and
    stays valid as long as any of its tensors is held; where all slots are held, further batches are private copies.
    The constructor validates and opens nothing, so datasets may be pickled and forked; each process opens its own
    channel when it iterates.

    One object is one dataset: once opened, every further pass must find the same objects, or is an error.

    Epochs: the first pass is epoch 0, and each *complete* pass moves on to the next epoch, so plain nested loops
    shuffle anew each time. ``set_epoch`` overrides. A pass that was left early starts the same epoch again. Where the
    number of steps is known, a pass is complete with its last batch, and ``state_dict()`` is then of the next epoch's
    start; where it is not, with the StopIteration behind it.

    Args:
        url: prefix, object, list of them, or ``manifest+s3://…``; a format before it (``tfrecord+s3://…``) is that of
            all shards, whatever their names. ``{000..127}``, ``{a,b}`` and ``::`` are lists, as in WebDataset.
            Or a list of ``Source``, which are mixed by their weights. Mixing needs
            sample counts (``feedd index``). A source that ends begins again, shuffled anew, and goes on from epoch to
            epoch where it stood; ranks have as many whole steps by themselves.
        batch_size: samples per batch; None yields single samples.
        fields: what to decode and how; None takes the format's defaults by extension, or by how columns are stored:
            floats of any width become float32 then, and ``"float:float64"`` keeps their bits.
        shuffle: True, False, or a ``Shuffle``.
        seed: of the order and of augmentations.
        sharding: "key" (ShardedByS3Key), "size" or "replicated": which objects a node gets. "sample": equal shares of
            all samples, to within one; needs sample counts (``feedd index``).
        uneven: what equalises the steps of ranks. "drop": what would make some rank's last steps short or missing is
            left out; "pad": ranks that end early see samples again, marked False in ``batch["__valid__"]``; "repeat":
            the same without marks; these need sample counts, or ``steps``. "join": all ranks stop where the first one
            ends (needs torch.distributed). "allow": each ends by itself.
            None: "allow" for one rank, else "drop" where sample counts are known and "join" where not.
        partitions: parts the dataset is cut into, a multiple of the number of nodes; None: one for each node. A run can
            go on with other numbers of nodes and ranks as long as the partitions, and the samples of a step of all
            ranks together, stay what they are.
        steps: of every rank in every epoch, instead of what the samples make; ranks that end early begin again.
        mix: "stratified": each span of a batch holds every source's share, as evenly as whole samples can. "sample":
            the source of each sample is drawn. "batch": whole batches of one source, as even as "stratified".
            "batch-sample": whole batches of one source, drawn.
        samples_per_epoch: of a mixture, all ranks together, rounded down to whole steps; None: until the first source
            ends.
        replicas: groups of so many consecutive ranks read the same batches: those that share a model (tensor, pipeline
            or sequence parallel). They count as one rank everywhere else. Each decodes its own, unless ``share`` is
            given.
        share: "job-group", or any name: jobs on this node that say the same, and ask for the same batches, share one
            decode of each; a job that falls far behind has its batches decoded once more.
        address: of the daemon; None: ``$FEEDD_ADDRESS``, else ``unix:///run/feedd/feedd.sock``, else a daemon is
            started for this process tree.
        topology: where this process stands; None: torch.distributed or the launcher's variables.
        keys: add ``"__key__"`` and ``"__url__"``.
        copy: yield private copies.
        copy_bytes: of private copies that are made because the trainer holds all slots of shared memory; more of them
            at once is an error.
        prefetch: batches in shared memory at once; the daemon may grant fewer, and up to 16 of small batches of
            numbers (4 MiB of them). None: the daemon chooses, about 64 MiB of them, between 4 and 64.
        bad_samples: what becomes of samples that cannot be decoded or are not of the dataset's schema. "error": the
            first one is an error. "skip": left out of their batch. "replace": the next good sample of the batch takes
            the row, so that batches stay full; ``batch["__valid__"]`` is False there. "quarantine": as "skip", and the
            daemon names each in a file. Counted in ``stats()``; steps stay what they are. None: "skip" within
            ``max_bad_samples``.
        max_bad_samples: most of them in an epoch before it is an error; None: none where ``bad_samples`` is not given,
            any number where it is.
        filter: conditions a sample must meet, a mapping or a list of them: ``{"field": "txt", "min_bytes": 1,
            "max_bytes": 4096}`` (stored size), ``{"field": "jpg", "min_height": 64, "min_width": 64}`` (from the
            header; ``max_`` as well), ``{"field": "score", "min": 0.5, "max": 1}`` (a number), ``{"field": "json",
            "key": "score", "min": 0.5}`` (a value inside JSON). Others are left out of their batch, and counted in
            ``stats()``.
        decoded_cache: have the node keep images decoded, as far as its cache has room, so that later epochs only do
            what is left of their recipes. Batches are the same; but of recipes that begin with a random cut
            (``image:224x224:random``), which then cut from images whose shorter side is 256 (more for larger cuts).
        open_timeout_s: for opening; includes fetching a first shard, and the wait for the successor of a daemon that
            is going away.
        reconnect_timeout_s: how long a daemon may be away in the middle of an epoch.
        stall_timeout_s: how long a daemon may send nothing, not even a heartbeat, while a batch is awaited. After that
            a health check decides whether it is given up as lost. A wait of 20 s is logged with its reason.

    Raises:
        BadOptionError: an argument that cannot work.
    """

    @explain_keywords
    def __init__(
        self,
        url: str | Sequence[str] | Source | Sequence[Source],
        *,
        batch_size: int | None,
        fields: Mapping[str, str | Mapping[str, Any]] | None = None,
        shuffle: bool | Shuffle = False,
        seed: int = 0,
        sharding: Sharding = "key",
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
            shuffle=parse_shuffle(shuffle),
            seed=seed,
            sharding=sharding,
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
        self._epochs, self._position, self._fingerprint, self._standing = Epochs(), Position(), b"", dict[str, int]()
        self._resume, self._known_steps, self._last_step, self._asked_steps, self._done = _NOTHING
        self._reset_process_state()

    # ------------------------------------------------------------------ what users call

    def __iter__(self) -> Iterator[Any]:
        accelerated.refuse_dealing()
        if _siblings_have_more(self._resume, self._epochs, self._options.open_timeout_s):
            self._resume = None
            return iter(self._end_at_once, None)
        return self.start_pass(copy=self._options.copy)

    def __len__(self) -> int:
        """Steps of this rank in an epoch, where they are known; the first time the daemon is asked.

        Raises:
            TypeError: they are not, or samples are yielded one at a time.
            FeedError: the dataset cannot be opened.
        """
        if self._options.batch_size is None:
            raise TypeError("the number of samples is not known ahead; count them, or set batch_size and count steps")
        if self._known_steps is None and not self._asked_steps:
            self._known_steps = self._asker.steps(self._fingerprint, self._epochs.current())
            self._asked_steps = True
        if self._known_steps is None:
            raise TypeError(
                "the number of steps is not known: tar shards are counted as they arrive. Run feedd index on the data,"
                " pass steps=, or iterate without len(); it is known once an epoch was seen to its end"
            )
        return self._known_steps

    def classes(self, field: str) -> list[str]:
        """Return the names of the classes that a field's labels number: a label is a place in this list.

        Of labels by folder, and of those that a table names by text; in order of their names, over the whole dataset,
        so that all nodes have the same. The daemon is asked, the first time.

        Raises:
            FeedError: the field's labels are numbers in the data, or the dataset cannot be opened.
        """
        return self._asker.classes(field, self._fingerprint, self._epochs.current())

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the one the next pass runs. A loaded position of another epoch is dropped.

        Raises:
            BadOptionError: it is negative.
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
        """Return the resume position as a small JSON-able dict; it counts only what the trainer took."""
        now = states.Resume(self._position, self._fingerprint, self._standing, self._done)
        return states.dump(now, self._options)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass go on where ``state`` was taken.

        Raises:
            StateError: it was taken with other arguments, or is damaged. Topology and data are compared when
                the pass begins.
        """
        resume = states.load(state, self._options)
        self.set_epoch(resume.position.epoch)
        self._resume, self._position, self._done = resume, resume.position, resume.done
        self._fingerprint, self._standing = resume.fingerprint, resume.standing
        info = get_worker_info()
        if info is not None:
            self._epochs.loaded(resume.position.epoch, info.id, info.seed - info.id)

    def stats(self) -> dict[str, Any]:
        """Return counters of this process (see ``LoaderStats``)."""
        return self._stats.as_dict()

    def close(self) -> None:
        """Close what is open; also done when the dataset goes away. It may be iterated again."""
        self._runtime.close()

    # ------------------------------------------------------------------ what DeviceLoader calls

    def start_pass(self, *, copy: bool, pinned: bool = False) -> FeedIterator[Any]:
        """Begin a pass; as ``iter()``, with ``copy`` decided by the caller; ``pinned``: for a device to read from.

        Raises:
            FeedError: daemon, dataset, state or ranks are not as they must be.
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
        opener = Opener(self._options, consumer, runtime.connect, runtime.drop_channel, uneven, pinned=pinned)
        feeder = Feeder(opener, self._options, consumer, self._stats, self._runtime.copies)
        try:
            feeder.start(start, runtime.borrow(pinned=pinned), self._fingerprint, first=not self._epochs.begun)
            self._epochs.begin()
            if uneven == "auto" and feeder.uneven == "join":
                ranks.check_join(consumer.topology, in_worker=in_worker)
            # Of single samples that are collected, each would hold a whole slot.
            single = self._options.batch_size is None and not pinned
            plan = PassPlan(copy=copy or in_worker or single, skip_rows=start.row)
            if not in_worker:
                plan = ranks.agree(plan, feeder, start, consumer.topology)
        except BaseException:
            feeder.interrupt()
            runtime.give_back(feeder.close())
            raise
        assert feeder.session is not None
        self._fingerprint, self._standing = feeder.session.granted.fingerprint, states.standing(consumer, self._options)
        self._resume = None
        if feeder.known_steps is not None:
            limit = plan.step_limit
            self._known_steps = feeder.known_steps if limit is None else start.step + limit
        # ranks that end apart come to the next epoch apart: each must have been asked for more than it has
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
        """Take note that the trainer took everything before ``position``.

        Whoever took as many batches as there are is at the next epoch's start, even without having asked for one more:
        trainers that go by ``len()`` never do.
        """
        self._position, self._done = position, False
        if self._last_step is not None and position.step >= self._last_step:
            self._come_to(position.epoch + 1, worker_id)
            self._done = worker_id is not None

    def finish_epoch(self, epoch: int, steps: int, worker_id: int | None = None) -> None:
        """Take note that the trainer saw the end of ``epoch`` after ``steps``: the next pass runs the next one."""
        self._known_steps = steps
        self._come_to(epoch + 1, worker_id)
        self._done = False  # whoever asks for more than there is has had the others' batches, too

    # ------------------------------------------------------------------ inside

    def _end_at_once(self) -> None:
        self._done = False  # as at any end: behind it the next epoch begins

    def _come_to(self, epoch: int, worker_id: int | None) -> None:
        self._epochs.come_to(epoch, worker_id)
        self._position = Position(epoch)
        self._forget_steps()

    def _forget_steps(self) -> None:
        """Forget how many steps the last epoch had, where another epoch may have others."""
        if self._options.lengths_vary:
            self._known_steps, self._asked_steps = None, False


def _siblings_have_more(resume: states.Resume | None, epochs: Epochs, timeout_s: float) -> bool:
    """Whether a DataLoader worker goes on from a state behind its part of an epoch of which others have a rest."""
    info = get_worker_info()
    if resume is None or not resume.done or info is None:
        return False
    pass_id = info.seed - info.id  # torch draws it anew for each
    return epochs.first_loaded(info.num_workers, pass_id, timeout_s) < resume.position.epoch
