"""How many slots a session gets, and what lies in each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.batching.batch_recipes import resolved_by
from feedd.batching.plain_batches import PLAIN_BYTES_MAX
from feedd.batching.slot_layout import aligned, lay_out
from feedd.recipe.packed_rows import packing_of
from feedd.values import FieldKind

if TYPE_CHECKING:
    from feedd.catalog.open_request import Request
    from feedd.open_spec import SessionSpec

_LEAST_SLOTS: Final = 2
_AUTO_BYTES, _AUTO_LEAST, _AUTO_MOST = 64 << 20, 4, 64
_AUTO_RUNS_BYTES, _AUTO_RUNS_MOST = 128 << 20, 128  # of batches in runs: longer runs cost less for each batch
_RUN_SLOTS_LEAST, _RUN_SLOTS_MOST = 3, 8  # one or two are read, others are full or being filled
_RUN_SLOTS_LEAST_JOIN = 4  # the client also looks ahead, to see which ranks have another step
_RUN_BATCHES_LEAST, _RUN_BATCHES_MAX = 4, 256
_RUN_SLOTS_BYTES = 8 << 20  # of all slots, even if fewer batches were requested


def slots_for(size_bytes: int, consumer_count: int = 1) -> int:
    """Return the slot count for batches of this size: small batches get more, so one message carries several leases.

    A rank's consumers (DataLoader workers) divide the slots, because allocating them is most of the work of an open.
    """
    return min(max(_AUTO_BYTES // size_bytes // consumer_count, _AUTO_LEAST), _AUTO_MOST)


def within(slots: int, slots_max: int) -> int:
    """Return a number of slots within the bounds of the daemon."""
    return min(max(slots, _LEAST_SLOTS), slots_max)


def takes_runs(asked: SessionSpec) -> bool:
    """Whether a session may have runs of several batches in its slots."""
    return asked.runs and not asked.share


def slots_for_runs(slot_count: int, batch_bytes: int, *, join: bool = False) -> tuple[int, int]:
    """Return how many batches each slot holds, and how many slots there are, in the memory of ``slot_count`` batches.

    Args:
        slot_count: slots of one batch that the session would have.
        batch_bytes: bytes of a batch. Small batches get more memory than that, which is negligible.
        join: the ranks agree on every step while they run.

    Returns:
        (1, ``slot_count``) if a run would have too few batches to be worth it.
    """
    batches = max(slot_count, _RUN_SLOTS_BYTES // batch_bytes)
    run_batches = min(batches // (_RUN_SLOTS_LEAST_JOIN if join else _RUN_SLOTS_LEAST), _RUN_BATCHES_MAX)
    if run_batches < _RUN_BATCHES_LEAST or batch_bytes > PLAIN_BYTES_MAX:
        return 1, slot_count
    return run_batches, min(batches // run_batches, _RUN_SLOTS_MOST)


def run_and_slots(asked: SessionSpec, size_bytes: int, slots_max: int, *, join: bool) -> tuple[int, int]:
    """Return the batches of each slot, and the slots, of a session whose batches are plain copies.

    Args:
        asked: the client's request.
        size_bytes: bytes of a batch.
        slots_max: most slots of a session; of batches, where slots hold runs. A session may have twice as many batches
            in runs if the client names no number.
        join: the ranks agree on every step while they run.
    """
    if takes_runs(asked):
        batches = _batches_in_runs(asked, size_bytes, slots_max)
        run_batches, run_count = slots_for_runs(batches, aligned(size_bytes), join=join)
        if run_batches > 1:
            return run_batches, run_count
    return 1, within(asked.prefetch_batches or slots_for(size_bytes, asked.consumer_count), slots_max)


def _batches_in_runs(asked: SessionSpec, size_bytes: int, slots_max: int = _AUTO_MOST) -> int:
    """Return how many batches a session has memory for, if its slots hold runs."""
    if asked.prefetch_batches:
        return within(asked.prefetch_batches, slots_max)
    count = _AUTO_RUNS_BYTES // size_bytes // asked.consumer_count
    return within(min(max(count, _AUTO_LEAST), _AUTO_RUNS_MOST), 2 * slots_max)


def may_differ(asked: SessionSpec, size_bytes: int) -> bool:
    """Whether the slots may hold runs, so that they differ from those that the request names."""
    return takes_runs(asked) and slots_for_runs(_batches_in_runs(asked, size_bytes), aligned(size_bytes))[0] > 1


def fixed_bytes(request: Request) -> int | None:
    """Return a batch's bytes if the recipe alone determines them (named fields, all DENSE), or None."""
    specs = resolved_by(request)
    if any(packing_of(recipe) for recipe in request.wanted):
        return None  # the number of rows depends on the samples
    if specs is None or request.spec.data.keys or any(one.kind is not FieldKind.DENSE for one in specs):
        return None
    return lay_out(specs, request.spec.order.batch_size, {}).size_bytes
