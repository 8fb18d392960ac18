"""Names of the objects that ``feedd pack`` writes, and which of its destinations are not complete. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAN_NAME: Final = "_feedd_pack.plan"
"""The frozen source, written first."""

MANIFEST_NAME: Final = "_feedd_pack.json"
"""The manifest, written last: it lists every shard with its digest."""

_BOTH: Final = (PLAN_NAME, MANIFEST_NAME)


def shard_name(number: int, extension: str) -> str:
    """Return the name of a shard, as WebDataset numbers them."""
    return f"shard-{number:06d}.{extension}"


def marks_in(keys: Iterable[str]) -> list[str]:
    """Return the keys of plans and manifests; a tenth of a microsecond per key."""
    return [key for key in keys if key.endswith(_BOTH)]


def unfinished(marks: Iterable[str]) -> str:
    """Return the plan of a pack without a manifest beside it, or an empty text; all keys are a listing's marks."""
    found = set(marks)
    plans = (key for key in sorted(found) if key.endswith(PLAN_NAME))
    return next((key for key in plans if key[: -len(PLAN_NAME)] + MANIFEST_NAME not in found), "")
