"""How many slots a session gets, and what lies in each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.batching.batch_recipes import resolved_by
from feedd.batching.plain_batches import slots_for_groups, slots_for_runs
from feedd.batching.slot_layout import aligned, lay_out
from feedd.recipe.packed_rows import packing_of
from feedd.values import FieldKind

if TYPE_CHECKING:
    from feedd.catalog.open_request import Request
    from feedd.open_spec import SessionSpec

_LEAST_SLOTS: Final = 2
_AUTO_BYTES, _AUTO_LEAST, _AUTO_MOST = 64 << 20, 4, 64
_AUTO_RUNS_BYTES, _AUTO_RUNS_MOST = 128 << 20, 128  # of batches in runs: longer runs cost less for each batch


def slots_for(size_bytes: int, consumer_count: int = 1) -> int:
    """Return the slot count for batches of this size: small batches get more, so one message carries several leases.

    A rank's consumers (DataLoader workers) divide the slots, because allocating them is most of the work of an open.
    """
    return min(max(_AUTO_BYTES // size_bytes // consumer_count, _AUTO_LEAST), _AUTO_MOST)


def within(slots: int, slots_max: int) -> int:
    """Return a number of slots within the bounds of the daemon."""
    return min(max(slots, _LEAST_SLOTS), slots_max)


def takes_runs(asked: SessionSpec) -> bool:
    """Whether a session may have runs of batches in its slots: consumers of one rank take every other step."""
    return asked.runs and asked.consumer_count == 1 and not asked.share


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
    count = within(asked.prefetch_batches or slots_for(size_bytes, asked.consumer_count), slots_max)
    return 1, min(slots_for_groups(count, size_bytes), slots_max)


def _batches_in_runs(asked: SessionSpec, size_bytes: int, slots_max: int = _AUTO_MOST) -> int:
    """Return how many batches a session has memory for, if its slots hold runs."""
    if asked.prefetch_batches:
        return within(asked.prefetch_batches, slots_max)
    return within(min(max(_AUTO_RUNS_BYTES // size_bytes, _AUTO_LEAST), _AUTO_RUNS_MOST), 2 * slots_max)


def may_differ(asked: SessionSpec, size_bytes: int) -> bool:
    """Whether the slots may differ from those that the request names, so that several batches can be made at once."""
    if asked.share:
        return False
    if takes_runs(asked) and slots_for_runs(_batches_in_runs(asked, size_bytes), aligned(size_bytes))[0] > 1:
        return True
    return 0 < asked.prefetch_batches < slots_for_groups(asked.prefetch_batches, size_bytes)


def fixed_bytes(request: Request) -> int | None:
    """Return a batch's bytes if the recipe alone determines them (named fields, all DENSE), or None."""
    specs = resolved_by(request)
    if any(packing_of(recipe) for recipe in request.wanted):
        return None  # the number of rows depends on the samples
    if specs is None or request.spec.data.keys or any(one.kind is not FieldKind.DENSE for one in specs):
        return None
    return lay_out(specs, request.spec.order.batch_size, {}).size_bytes
