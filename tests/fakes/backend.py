"""A ``FeedBackend`` whose batches are pure functions of (epoch, step, rank), with gates and faults to script."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import FeeddError
from feedd.flow.arena import Arena
from feedd.flow.memory import ArenaBudget
from feedd.values import BatchReady, Cursor, EpochEnd, FieldKind, Produced, Region, SessionInfo, SlotRef, TensorSpec

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from feedd.notices import Notice
    from feedd.open_spec import OpenSpec
    from feedd.protocols import Recorder

ALIGN_BYTES = 64
Arrays = dict[str, "NDArray[np.generic]"]

SPECS = (
    TensorSpec("image", FieldKind.DENSE, "uint8", (8, 8, 3)),
    TensorSpec("cls", FieldKind.DENSE, "int64"),
    TensorSpec("tokens", FieldKind.RAGGED, "uint16"),
)
KEYS = TensorSpec("__key__", FieldKind.TEXT, "uint8")


@dataclass(slots=True)
class FakeScript:
    """What the fake does; change it while it runs.

    Attributes:
        steps: batches per rank and epoch.
        more_steps: by so many each epoch is longer than the one before.
        slot_count_max: slots granted at most; the client's prefetch_batches otherwise.
        slot_bytes: size of each slot.
        steps_known: whether Open says how many steps there are.
        blank: produce without writing a byte (for measuring the hand-off alone).
        open_gate, open_error: Open waits for / raises it.
        gates: producing that step waits for its event.
        faults: producing that step raises.
        stubborn: a cancelled production goes on until its gate opens, as a decoder in native code does.
        oversize: steps whose batch comes as a private buffer instead of in its slot.
        run_batches: batches of each slot.
        classes: names of classes, by field.
    """

    steps: int = 8
    more_steps: int = 0
    slot_count_max: int = 8
    slot_bytes: int = 64 * 1024
    steps_known: bool = True
    blank: bool = False
    open_gate: asyncio.Event | None = None
    open_error: BaseException | None = None
    gates: dict[int, asyncio.Event] = field(default_factory=dict)
    faults: dict[int, BaseException] = field(default_factory=dict)
    stubborn: bool = False
    oversize: set[int] = field(default_factory=set)
    run_batches: int = 1
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()


def expected_arrays(epoch: int, step: int, rank: int, rows: int) -> Arrays:
    """Return what the batch holds: dense fields by name; ragged ones as ``name`` and ``name.offsets``."""
    rng = np.random.default_rng((epoch, step, rank))
    lengths = rng.integers(0, 9, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    keys = [f"e{epoch}-s{step}-r{rank}-{row}".encode() for row in range(rows)]
    return {
        "image": rng.integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8),
        "cls": np.arange(rows, dtype=np.int64) + step * rows,
        "tokens": rng.integers(0, 1 << 16, int(offsets[-1]), dtype=np.uint16),
        "tokens.offsets": offsets,
        "__key__": np.frombuffer(b"".join(keys), np.uint8),
        "__key__.offsets": np.concatenate([[0], np.cumsum([len(key) for key in keys])]).astype(np.int64),
    }


def layout(specs: tuple[TensorSpec, ...], arrays: Arrays) -> tuple[tuple[Region, ...], int]:
    """Return where each field goes, and the bytes in all."""
    at = 0

    def place(size_bytes: int) -> int:
        nonlocal at
        start = at
        at = -(-(at + size_bytes) // ALIGN_BYTES) * ALIGN_BYTES
        return start

    regions = []
    for spec in specs:
        values = arrays[spec.name]
        values_at = place(values.nbytes)
        offsets_at = place(arrays[f"{spec.name}.offsets"].nbytes) if spec.kind is not FieldKind.DENSE else 0
        regions.append(Region(values_at, values.nbytes, offsets_at))
    return tuple(regions), at


def write(specs: tuple[TensorSpec, ...], arrays: Arrays, regions: tuple[Region, ...], out: memoryview) -> None:
    """Lay the arrays out as ``regions`` says."""
    for spec, region in zip(specs, regions, strict=True):
        parts = [(region.values_at, arrays[spec.name])]
        if spec.kind is not FieldKind.DENSE:
            parts.append((region.offsets_at, arrays[f"{spec.name}.offsets"]))
        for start, array in parts:
            out[start : start + array.nbytes] = array.tobytes()


def expected_payload(specs: tuple[TensorSpec, ...], epoch: int, step: int, rank: int, rows: int) -> bytes:
    """Return the slot's first ``size_bytes``; gaps between fields are zero."""
    arrays = expected_arrays(epoch, step, rank, rows)
    regions, size_bytes = layout(specs, arrays)
    out = bytearray(size_bytes)
    write(specs, arrays, regions, memoryview(out))
    return bytes(out)


class FakeSession:
    """One opened session; counts what runs, so that tests can ask."""

    def __init__(self, spec: OpenSpec, script: FakeScript, arena: Arena) -> None:
        self.spec = spec
        self.script = script
        self.arena = arena
        self.specs = (*SPECS, KEYS) if spec.data.keys else SPECS
        self.produced: list[Cursor] = []
        self.producing_count = 0
        self.producing_peak = 0
        self.close_count = 0

    @property
    def info(self) -> SessionInfo:
        """What Open answers."""
        return SessionInfo(
            specs=self.specs,
            fingerprint=bytes(range(16)),
            shard_count=4,
            assigned_shard_count=2,
            assigned_bytes=1 << 20,
            steps=self.script.steps if self.script.steps_known else None,
            run_batches=self.script.run_batches,
            batch_bytes=self.batch_bytes,
            classes=self.script.classes,
            notices=self.script.notices,
        )

    @property
    def batch_bytes(self) -> int:
        """From one batch of a run to the next."""
        runs = self.script.run_batches
        return self.arena.slot_bytes // runs // ALIGN_BYTES * ALIGN_BYTES if runs > 1 else 0

    @property
    def slots(self) -> Arena:
        """The arena."""
        return self.arena

    def client_mapping(self) -> AbstractContextManager[int]:
        """Of the arena."""
        return self.arena.client_mapping()

    @property
    def stage(self) -> str:
        """Always the same."""
        return "decoding"

    def retain_leased(self) -> None:
        """Nobody else writes to the arena."""

    def steps(self, epoch: int) -> int | None:
        """As scripted."""
        return self.script.steps + self.script.more_steps * epoch if self.script.steps_known else None

    async def produce(self, at: Cursor, count: int = 1) -> Produced | EpochEnd:
        """Make the leading ones in one slot; they end before the one that fails."""
        steps, stride = self.script.steps + self.script.more_steps * at.epoch, self.spec.session.consumer_count
        self.produced.append(at)
        if at.step >= steps:
            return EpochEnd(at.epoch, steps)
        slot = self.arena.take()
        assert slot is not None, "more slots are asked for than there are"
        self.producing_count += 1
        self.producing_peak = max(self.producing_peak, self.producing_count)
        made: list[BatchReady] = []
        failure: FeeddError | None = None
        try:
            for step in range(at.step, min(at.step + count * stride, steps), stride):
                made.append(await self._make(Cursor(at.epoch, step), slot, len(made) * self.batch_bytes))
        except FeeddError as error:
            failure = error
        except BaseException:
            self.release(slot)
            raise
        finally:
            self.producing_count -= 1
        if failure is not None and not made:
            self.release(slot)
            raise failure
        return Produced(made[0], slot, more=tuple(made[1:]), failure=failure)

    def release(self, slot: SlotRef) -> None:
        """Free it."""
        assert self.arena.give_back(slot), "a slot was released twice"

    async def _make(self, at: Cursor, slot: SlotRef, in_slot: int = 0) -> BatchReady:
        if (gate := self.script.gates.get(at.step)) is not None:
            await self._wait(gate)
        if (fault := self.script.faults.get(at.step)) is not None:
            raise fault
        return self._fill(at, slot, in_slot)

    async def _wait(self, gate: asyncio.Event) -> None:
        cancelled: asyncio.CancelledError | None = None
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError as error:
                if not self.script.stubborn:
                    raise
                cancelled = error
        if cancelled is not None:
            raise cancelled

    def _fill(self, at: Cursor, slot: SlotRef, in_slot: int) -> BatchReady:
        rows = self.spec.order.batch_size
        cursor = Cursor(at.epoch, at.step, ((at.step // 4, at.step // 4 * 4 * rows),))
        if self.script.blank:
            return BatchReady(cursor, rows, _BLANK_REGIONS, 4096)
        arrays = expected_arrays(at.epoch, at.step, self.spec.order.topology.rank, rows)
        regions, size_bytes = layout(self.specs, arrays)
        if at.step in self.script.oversize or size_bytes > self.arena.slot_bytes:
            private = memoryview(bytearray(size_bytes))
            write(self.specs, arrays, regions, private)
            return BatchReady(cursor, rows, regions, size_bytes, oversize=private)
        view = self.arena.view(slot)[in_slot:]
        view[:size_bytes] = bytes(size_bytes)  # gaps are zero whatever the slot held before
        write(self.specs, arrays, regions, view)
        return BatchReady(cursor, rows, regions, size_bytes)

    async def close(self) -> None:
        """Give the arena back; the rules of the seam are checked here."""
        assert self.producing_count == 0, "closed while producing"
        assert self.arena.taken_count == 0, f"closed with {self.arena.taken_count} slots taken"
        self.close_count += 1
        self.arena.close()


_BLANK_REGIONS = (Region(0, 2048), Region(2048, 1024), Region(3072, 512, 3584))


class FakeBackend:
    """Opens ``FakeSession``s as ``script`` says; ``budget`` counts their arenas."""

    def __init__(self, script: FakeScript | None = None, recorder: Recorder | None = None) -> None:
        self.script = script or FakeScript()
        self.budget = ArenaBudget(1 << 40, recorder)
        self.specs: list[OpenSpec] = []
        self.sessions: list[FakeSession] = []

    @property
    def open_count(self) -> int:
        """Sessions not closed."""
        return sum(session.close_count == 0 for session in self.sessions)

    async def open(self, spec: OpenSpec) -> FakeSession:
        """Open a session, or raise what the script says."""
        self.specs.append(spec)
        if self.script.open_gate is not None:
            await self.script.open_gate.wait()
        if self.script.open_error is not None:
            raise self.script.open_error
        slot_count = max(1, min(spec.session.prefetch_batches or 4, self.script.slot_count_max))
        arena = await Arena.create(slot_count, self.script.slot_bytes, self.budget)
        session = FakeSession(spec, self.script, arena)
        self.sessions.append(session)
        return session
