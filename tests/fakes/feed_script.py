"""What the scripted feed server is told, and what it knows of one session."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from feedd_client._wire import feedd_pb2 as pb
from tests.fakes.feed_data import blank, lay_out, sample_ids

if TYPE_CHECKING:
    from tests.fakes.feed_data import Layout


@dataclass(frozen=True)
class Fault:
    """What goes wrong when the batch at ``step`` is due; once, unless ``times`` says more.

    Kinds: vanish, eof, error (in-band), trailer, slow, hang, bad-seq, wrong-epoch, stale-generation, bad-slot,
    huge-inline.
    """

    step: int
    kind: str
    times: int = 1
    error: dict[str, Any] = field(default_factory=dict)
    delay_s: float = 0.0
    waiting_for: str = ""  # said by heartbeats all through a hang; empty: none come


@dataclass(frozen=True)
class Script:
    """What the server serves. ``steps`` may differ by rank; ``last_rows`` is the size of each rank's last batch."""

    steps: int | dict[int, int] = 5
    last_rows: int | None = None
    specs: str = "rich"
    slot_count: int = 4
    slot_bytes: int = 1 << 16
    arena: bool = True
    tell_steps: bool = False
    fill: bool = True
    coalesce: int = 1
    fingerprints: dict[int, bytes] = field(default_factory=dict)
    fingerprint_per_rank: bool = False
    faults: tuple[Fault, ...] = ()
    open_errors: tuple[dict[str, Any], ...] = ()
    major: int = 1
    minor: int = 0
    hollow: bool = False  # all batches but the last are empty, as where filters leave nothing
    uneven: str = ""
    again: dict[int, bytes] = field(default_factory=dict)
    notices: tuple[dict[str, Any], ...] = ()
    later_notices: dict[int, tuple[dict[str, Any], ...]] = field(default_factory=dict)  # by the step of the first epoch

    def fingerprint_of(self, rank: int) -> bytes:
        """Fingerprint one rank is told."""
        return self.fingerprints.get(rank, b"fingerprint-%04d" % (rank if self.fingerprint_per_rank else 0))

    def steps_of(self, rank: int) -> int:
        """Steps of one rank."""
        return self.steps if isinstance(self.steps, int) else self.steps[rank]


class FakeSession:
    """One Open: its arena and who holds which slot."""

    def __init__(self, script: Script, request: pb.OpenRequest, number: int) -> None:
        self.id = f"session-{number}"
        self.request = request
        self.slot_count = max(1, min(script.slot_count, request.prefetch_batches or 4))
        self.token = os.urandom(16)
        self.fd = os.memfd_create("fake-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.slot_count * script.slot_bytes)
        self.map = mmap.mmap(self.fd, self.slot_count * script.slot_bytes)
        self.generations = [0] * self.slot_count
        self.leased: dict[int, int] = {}
        self.credits = 0
        self.closed = False
        self.abandoned = False  # its lifeline has ended, which may be seen before what was sent on its stream
        self.streams_open = 0
        self.half_closed = -1  # the turn whose client sends nothing more
        self.turn = 0  # the number of the latest stream

    def take(self, *, stale: bool) -> int:
        """Lease a free slot; with the generation it had before where ``stale``."""
        free = [slot for slot in range(self.slot_count) if slot not in self.leased]
        slot = min(free, key=lambda one: self.generations[one])  # no free one: the client had no right to a credit
        self.generations[slot] += not stale
        self.leased[slot] = self.generations[slot]
        return slot

    def ended(self, turn: int) -> bool:
        """Whether nothing is to be served to the stream of that turn any more."""
        return self.closed or self.turn != turn or (self.half_closed == turn and self.credits < 1)

    def free(self) -> None:
        """Let go of the memory."""
        if self.fd >= 0:
            self.map.close()
            os.close(self.fd)
            self.fd = -1


def compose(script: Script, request: pb.OpenRequest, epoch: int, step: int) -> tuple[pb.Batch, Layout]:
    """Return the batch of one step, and its payload to be laid wherever it travels."""
    size, last = request.recipe.batch_size, step == script.steps_of(request.topology.rank) - 1
    rows = script.last_rows if last and script.last_rows is not None else 0 if script.hollow else size
    if script.fill:
        layout, regions = lay_out(script.specs, sample_ids(epoch, step, rows, size, request.topology))
    else:
        layout, regions = blank(script.specs, rows)
    cursor = pb.Cursor(epoch=epoch, step=step, anchor_window=step // 2, anchor_sample=step // 2 * 2 * size)
    again = script.again.get(step, b"")
    return pb.Batch(cursor=cursor, rows=rows, regions=regions, size_bytes=layout.size_bytes, again=again), layout
