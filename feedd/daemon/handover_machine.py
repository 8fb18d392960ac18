"""What a predecessor does during a handover: events in, one instruction out. No I/O, no clock, no tasks.

    alone → attached → prepared → switching → committed → over
              │           │          │            │
              └───────────┴──────────┴────────────┴──▶ alone (the successor is gone, or not understood)

Until ``go`` the predecessor can serve on as if there had been no successor. A successor that is late before ``publish``
is forgotten. After ``publish`` it may be serving already, so the predecessor ends unless the successor is gone. After a
signal, the predecessor ends in any case.
"""

from __future__ import annotations

import enum
from typing import Final

from feedd.daemon.handover_messages import VERSION

_PREPARED_S: Final = 0.5  # a daemon ends within three seconds of SIGTERM
_READY_S: Final = 1.5
_GO_S: Final = 0.5


class HandoverStage(enum.Enum):
    """Stages of a handover, as the predecessor sees them."""

    ALONE = "alone"
    ATTACHED = "attached"
    PREPARED = "prepared"
    SWITCHING = "switching"
    COMMITTED = "committed"
    OVER = "over"


class HandoverStep(enum.Enum):
    """What the predecessor has to do now."""

    NOTHING = "nothing"
    REFUSE = "refuse"  # say why, and close the connection
    TELL = "tell"  # send the sessions
    SWITCH = "switch"  # pause the streams, send the positions
    PUBLISH = "publish"  # let the successor replace the sockets
    RESUME = "resume"  # publish the sockets again, let the streams go on, forget the successor
    FORGET = "forget"  # forget the successor
    END = "end"  # drain and end


class PredecessorMachine:
    """One daemon's side; it has one successor at a time.

    Attributes:
        stage: the present stage.
        must_end: the operator asked this daemon to end.
    """

    def __init__(self) -> None:
        self.stage = HandoverStage.ALONE
        self.must_end = False

    @property
    def patience_s(self) -> float | None:
        """How long to wait for the successor's next message; None: without limit."""
        if self.stage is HandoverStage.ATTACHED:
            return _PREPARED_S if self.must_end else None
        return {HandoverStage.SWITCHING: _READY_S, HandoverStage.COMMITTED: _GO_S}.get(self.stage)

    def hello(self, version: int) -> HandoverStep:
        """A process says that it is a successor."""
        if version != VERSION or self.stage is not HandoverStage.ALONE or self.must_end:
            return HandoverStep.REFUSE
        self.stage = HandoverStage.ATTACHED
        return HandoverStep.TELL

    def prepared(self) -> HandoverStep:
        """The successor has opened the sessions."""
        if self.stage is not HandoverStage.ATTACHED:
            return self.lost()
        self.stage = HandoverStage.PREPARED
        return self._switch() if self.must_end else HandoverStep.NOTHING

    def takeover_requested(self) -> HandoverStep:
        """The successor asks to begin."""
        if self.stage is HandoverStage.SWITCHING:
            return HandoverStep.NOTHING  # a signal was faster
        return self._switch() if self.stage is HandoverStage.PREPARED else self.lost()

    def end_requested(self) -> HandoverStep:
        """The operator asks this daemon to end."""
        self.must_end = True
        if self.stage is HandoverStage.PREPARED:
            return self._switch()
        is_alone = self.stage in {HandoverStage.ALONE, HandoverStage.OVER}
        return HandoverStep.END if is_alone else HandoverStep.NOTHING

    def ready(self) -> HandoverStep:
        """The successor has made the first batches."""
        if self.stage is not HandoverStage.SWITCHING:
            return self.lost()
        self.stage = HandoverStage.COMMITTED
        return HandoverStep.PUBLISH

    def go(self) -> HandoverStep:
        """The successor serves."""
        if self.stage is not HandoverStage.COMMITTED:
            return self.lost()
        self.stage = HandoverStage.OVER
        return HandoverStep.END

    def late(self) -> HandoverStep:
        """The successor did not answer in time."""
        return self.go() if self.stage is HandoverStage.COMMITTED else self.lost()

    def lost(self) -> HandoverStep:
        """The successor is gone, or said something that does not belong here."""
        before = self.stage
        if before is HandoverStage.OVER:
            return HandoverStep.NOTHING  # nothing leads back: clients reach the successor already
        self.stage = HandoverStage.ALONE
        if self.must_end:
            return HandoverStep.END
        switching = before in {HandoverStage.SWITCHING, HandoverStage.COMMITTED}
        return HandoverStep.RESUME if switching else HandoverStep.FORGET

    def _switch(self) -> HandoverStep:
        self.stage = HandoverStage.SWITCHING
        return HandoverStep.SWITCH
