"""``state_dict``: a small, JSON-able resume position, and the refusal of one that belongs to another run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from feedd_client.errors import StateError
from feedd_client.session import Position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd_client.feeder import Consumer
    from feedd_client.options import FeedOptions

STATE_VERSION: Final = 1
_POSITION: Final = ("epoch", "step", "row", "anchor_window", "anchor_sample")


@dataclass(frozen=True, slots=True)
class Resume:
    """A loaded state, checked against the dataset's arguments; the rest is checked when a pass begins.

    Attributes:
        position: where to go on.
        fingerprint: the dataset it belongs to; empty where nothing had been opened yet.
        standing: topology and consumer it was taken with; empty where nothing had been opened yet.
    """

    position: Position
    fingerprint: bytes
    standing: dict[str, int]

    def for_consumer(self, consumer: Consumer) -> Position:
        """Return the position for ``consumer``.

        Raises:
            StateError: the state was taken with another number of ranks, nodes or workers.
        """
        now = standing(consumer)
        if not self.standing:
            return self.position
        _same(self.standing, now, ("world_size", "local_world_size", "node_count"))
        at = self.position
        if self.standing["consumer_count"] != 1:
            _same(self.standing, now, ("consumer_count", "consumer_index"))
        if self.standing["node_rank"] != now["node_rank"]:
            # Steps are the same on all ranks, anchors only on one node: without it the daemon recounts.
            return Position(at.epoch, at.step, row=at.row)
        return at


def recipe_of(options: FeedOptions) -> dict[str, Any]:
    """Return the arguments that decide which sample is where."""
    return {
        "seed": options.seed,
        "batch_size": options.batch_size,
        "fields": [list(pair) for pair in options.fields],
        "shuffle": options.shuffle is not None,
        "window_shards": options.window_shards,
        "sharding": options.sharding,
    }


def standing(consumer: Consumer) -> dict[str, int]:
    """Return where the consumer stands."""
    topology = consumer.topology
    return {
        "world_size": topology.world_size,
        "local_world_size": topology.local_world_size,
        "node_count": topology.node_count,
        "node_rank": topology.node_rank,
        "consumer_count": consumer.count,
        "consumer_index": consumer.index,
    }


def dump(position: Position, fingerprint: bytes, options: FeedOptions, where: dict[str, int]) -> dict[str, Any]:
    """Return the state dict."""
    return {
        "version": STATE_VERSION,
        **{name: getattr(position, name) for name in _POSITION},
        "fingerprint": fingerprint.hex(),
        **recipe_of(options),
        **where,
    }


def load(state: Mapping[str, Any], options: FeedOptions) -> Resume:
    """Return the position in ``state``.

    Raises:
        StateError: damaged, of another version, or taken with other arguments; says which.
    """
    if state.get("version") != STATE_VERSION:
        raise StateError(f"expected a state of version {STATE_VERSION}, got {state.get('version')!r}", object="version")
    numbers = {name: state.get(name) for name in _POSITION}
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 0:
            raise StateError(f"expected a number >= 0, got {value!r}", object=name)
    _same(dict(state), recipe_of(options), tuple(recipe_of(options)))
    try:
        fingerprint = bytes.fromhex(state["fingerprint"])
        where = {name: int(state[name]) for name in _STANDING if name in state}
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"expected a state made by state_dict(), got {error!r}") from error
    if where and len(where) != len(_STANDING):
        raise StateError(f"expected {', '.join(_STANDING)}, got only {', '.join(where)}")
    return Resume(Position(**{name: int(value or 0) for name, value in numbers.items()}), fingerprint, where)


_STANDING: Final = ("world_size", "local_world_size", "node_count", "node_rank", "consumer_count", "consumer_index")


def _same(state: Mapping[str, Any], now: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        got = [list(pair) for pair in state[name]] if name == "fields" and name in state else state.get(name)
        if got != now[name]:
            raise StateError(
                f"expected {name} {now[name]!r} as now, got a state taken with {got!r}",
                object=name,
                hint="resume with the arguments and topology of the run that saved it",
            )
