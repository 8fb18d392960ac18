"""``state_dict``: a small, JSON-able resume position; a state of another run is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from feedd_client.errors import StateError
from feedd_client.session import Position
from feedd_client.topology import in_lane

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd_client.opener import Consumer
    from feedd_client.options import FeedOptions, SourceOptions
    from feedd_client.topology import Topology

STATE_VERSION: Final = 2
_NUMBERS: Final = ("epoch", "step", "row")


@dataclass(frozen=True, slots=True)
class Resume:
    """A loaded state, checked against the dataset's arguments; topology and data are checked when a pass begins.

    Attributes:
        position: where to continue.
        fingerprint: fingerprint of the dataset; empty if nothing had been opened yet.
        topology_state: topology and consumer of the saving process; empty if nothing had been opened yet.
        done: True if a DataLoader worker had finished its part of the epoch before. If other workers had not, this
            worker gets no batches in the pass that continues the epoch.
    """

    position: Position
    fingerprint: bytes
    topology_state: dict[str, int]
    done: bool = False

    def for_consumer(self, consumer: Consumer, options: FeedOptions) -> Position:
        """Return the position for ``consumer``.

        The numbers of nodes and ranks may have changed since the state was taken. All ranks together must still take
        the same samples in a step, from the same number of partitions.

        Raises:
            StateError: they do not, or the state was taken in the middle of a batch, or by another number of workers.
        """
        was = self.topology_state
        if not was:
            return self.position
        now = topology_state(consumer, options, lanes_of(was, consumer.topology, options, self.position.row) or 1)
        _same(was, now, ("partitions", "step_samples"))
        at = self.position
        if at.row:
            _same(was, now, ("world_size", "local_world_size", "node_count"))
        if was["consumer_count"] != 1:
            _same(was, now, ("world_size", "consumer_count", "consumer_index"))
        if (was["node_rank"], was["node_count"]) != (now["node_rank"], now["node_count"]):
            # Steps are the same on all ranks, but anchors hold for one node only: without anchors the daemon recounts.
            return Position(at.epoch, at.step, row=at.row)
        return at


def begin(resume: Resume | None, epoch: int, consumer: Consumer, options: FeedOptions) -> Position:
    """Return the start of a pass over ``epoch``: the position of a loaded state, or the consumer's first step.

    Raises:
        StateError: the state does not fit this consumer.
    """
    at = Position(epoch) if resume is None or resume.position.epoch != epoch else resume.for_consumer(consumer, options)
    return at._replace(step=consumer.first_step(at.step))


def recipe_of(options: FeedOptions) -> dict[str, Any]:
    """Return the arguments that decide the place of each sample, apart from how ranks take steps."""
    mix: dict[str, Any] = {}
    if options.sources:  # the state of a single dataset has no keys for mixtures
        mix = {
            "mix": options.mix,
            "samples_per_epoch": options.samples_per_epoch,
            "sources": [_source(one) for one in options.sources],
        }
    return {
        "seed": options.seed,
        "fields": [list(pair) for pair in options.fields],
        "shuffle": options.shuffle is not None,
        "window_shards": options.window_shards,
        "window_bytes": options.window_bytes,
        "sharding": options.sharding,
        **mix,
    }


def _source(source: SourceOptions) -> dict[str, Any]:
    return {
        "urls": list(source.urls),
        "fields": [list(pair) for pair in source.fields],
        "weights": [list(pair) for pair in source.weights],
    }


def lanes_of(topology_state: Mapping[str, int], topology: Topology, options: FeedOptions, row: int = 0) -> int | None:
    """Return the lanes with which a plan goes on, on nodes that may have other lanes or ranks; None: any will do.

    With ``partitions``, all ranks together take the same samples in a step whatever the lanes.

    Args:
        topology_state: of the last pass, or of a loaded state; empty if there is none.
        topology: ranks and nodes now.
        options: the dataset's options.
        row: where in a batch the pass goes on; within a batch each rank must be as it was.
    """
    if not topology_state or (options.partitions and not row):
        return None
    lane_count, left = divmod(topology_state["node_count"], topology.node_count)
    if left or topology.local_world_size % lane_count:
        return None
    return lane_count


def topology_state(consumer: Consumer, options: FeedOptions, lane_count: int) -> dict[str, int]:
    """Return the consumer's place in the plan, in which each lane is a node, and the samples of all ranks in a step."""
    topology = in_lane(consumer.topology, lane_count)
    return {
        "world_size": topology.world_size,
        "local_world_size": topology.local_world_size,
        "node_count": topology.node_count,
        "node_rank": topology.node_rank,
        "consumer_count": consumer.count,
        "consumer_index": consumer.index,
        "partitions": options.partitions or topology.node_count,
        "step_samples": options.wire_batch_size * topology.world_size,
    }


def dump(resume: Resume, options: FeedOptions) -> dict[str, Any]:
    """Return the state dict.

    All states have the same shape, because distributed checkpoints are loaded into a freshly made state.
    """
    position, where = resume.position, resume.topology_state
    return {
        "version": STATE_VERSION,
        **{name: getattr(position, name) for name in _NUMBERS},
        "anchors": " ".join(f"{window}:{sample}" for window, sample in position.anchors),
        "done": resume.done,
        "batch_size": options.batch_size,
        "fingerprint": resume.fingerprint.hex(),
        **recipe_of(options),
        **{name: where.get(name) for name in _STANDING},
    }


def load(state: Mapping[str, Any], options: FeedOptions) -> Resume:
    """Return the position in ``state``.

    Raises:
        StateError: the state is damaged, of another version, or taken with other arguments; the message says which.
    """
    if state.get("version") != STATE_VERSION:
        raise StateError(f"expected a state of version {STATE_VERSION}, got {state.get('version')!r}", object="version")
    numbers = {name: state.get(name) for name in _NUMBERS}
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 0:
            raise StateError(f"expected a number >= 0, got {value!r}", object=name)
    recipe = {"mix": None, **recipe_of(options)}
    _same(dict(state), recipe, tuple(recipe))
    if options.by_batches:  # each batch comes from one source, so another batch size would change the samples
        _same(state, {"batch_size": options.batch_size}, ("batch_size",))
    _same({"batch_size": state.get("batch_size") is None}, {"batch_size": options.batch_size is None}, ("batch_size",))
    try:
        pairs = [anchor.split(":") for anchor in state["anchors"].split()]
        anchors = tuple((int(window), int(sample)) for window, sample in pairs)
        fingerprint = bytes.fromhex(state["fingerprint"])
        where = {name: int(state[name]) for name in _STANDING if state.get(name) is not None}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"expected a state made by state_dict(), got {error!r}") from None
    if where and len(where) != len(_STANDING):
        raise StateError(f"expected {', '.join(_STANDING)}, got only {', '.join(where)}")
    at = {name: int(value or 0) for name, value in numbers.items()}
    return Resume(Position(at["epoch"], at["step"], anchors, at["row"]), fingerprint, where, bool(state.get("done")))


_STANDING: Final = (
    "world_size",
    "local_world_size",
    "node_count",
    "node_rank",
    "consumer_count",
    "consumer_index",
    "partitions",
    "step_samples",
)


def _same(state: Mapping[str, Any], now: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        got = [list(pair) for pair in state[name]] if name == "fields" and name in state else state.get(name)
        if got != now[name]:
            what, ours, theirs = _first_difference(name, now[name], got)
            raise StateError(
                f"expected {what} {ours!r} as now, got a state taken with {theirs!r}",
                object=name,
                hint="resume with the arguments and topology of the run that saved it",
            )


def _first_difference(name: str, now: object, got: object) -> tuple[str, object, object]:
    """Return the name and both values of the first difference; for equally many sources, of the first that differs."""
    if name == "sources" and isinstance(now, list) and isinstance(got, list) and len(now) == len(got):
        for number, (ours, theirs) in enumerate(zip(now, got, strict=True)):
            for key in ours if isinstance(theirs, dict) else ():
                if theirs.get(key) != ours[key]:
                    return f"{key} of source {number}", ours[key], theirs.get(key)
    return name, now, got
