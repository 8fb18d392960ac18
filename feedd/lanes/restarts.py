"""What becomes of a node when the process of a lane ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_PAUSE_S, _PAUSE_MAX_S = 0.5, 30.0
_STEADY_S = 60.0  # a lane that lived so long is not failing again and again


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the lane again after a pause."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop all lanes, and end with this exit code."""

    code: int
    reason: str


class Restarts:
    """Decides for one lane.

    A lane that fails at the node's start ends the node, because its error is most likely one of the configuration. A
    lane that fails later is started again; each failure in a row doubles the pause. A lane that ends without an error
    was told to, and then the node ends too.

    Args:
        ends_node: the node ends with this lane, however it ends.
    """

    def __init__(self, *, ends_node: bool = False) -> None:
        self._ends_node = ends_node
        self._pause_s = 0.0

    def ended(self, code: int, lived_s: float, *, was_ready: bool, node_ready: bool) -> Restart | Stop:
        """Return what follows.

        Args:
            code: exit code of the process; negative: the signal that ended it.
            lived_s: how long the process ran.
            was_ready: whether this process was ready to serve.
            node_ready: whether all lanes have been ready at one time since the node's start.
        """
        if code == 0:
            return Stop(0, "a lane was asked to end")
        if not was_ready and not node_ready:
            return Stop(code if code > 0 else 1, "a lane could not start")
        if self._ends_node:
            return Stop(code if code > 0 else 1, "the first lane has failed, and trainers start another node")
        if lived_s >= _STEADY_S:
            self._pause_s = 0.0
        pause_s = self._pause_s
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * pause_s), _PAUSE_MAX_S)
        return Restart(pause_s)
