"""Fields that the first shard lacks, if the user names no fields: they are in no batch, and a notice says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.notices import EXAMPLES_MAX, Amount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.dataset.listing import DatasetView


class LateFields:
    """Late fields of a listing as far as known. No shard is read for this; indexing shards finds them.

    Args:
        view: the session's listing.
        known: fields of each source's first shard; None: the user named the fields.
        tell: called with the new amount and its growth.

    Attributes:
        amount: amount at the last ``refresh``.
    """

    def __init__(
        self, view: DatasetView, known: Sequence[frozenset[str] | None], tell: Callable[[Amount, int], None]
    ) -> None:
        self.amount = Amount()
        self._view, self._known, self._report = view, known, tell
        self._name_count = 0
        self._look()

    def refresh(self) -> bool:
        """Look for new late fields and report them; return whether there were any."""
        before = self.amount.count
        self._look()
        if self.amount.count == before:
            return False
        self._report(self.amount, self.amount.count - before)
        return True

    def _look(self) -> None:
        name_count = len(self._view.field_names)
        if name_count != self._name_count:
            self._name_count = name_count
            self.amount = late_fields(self._view, self._known)


def known_fields(fields: Sequence[str], unread: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Return all fields of a shard, including unreadable ones."""
    return frozenset((*fields, *(name.lower() for name, _ in unread)))


def late_fields(view: DatasetView, known: Sequence[frozenset[str] | None], *, unread: bool = True) -> Amount:
    """Return the fields of indexed shards that are not among the known fields.

    Args:
        view: the listing.
        known: known fields of each source; None: skip the source.
        unread: whether unreadable fields count.
    """
    names = view.field_names
    found = [
        late
        for source, fields in enumerate(known)
        if fields is not None
        for late in names.beyond(source, fields)
        if unread or not late[1]
    ]
    examples = [
        f"{name}{f': {kind}' if kind else ''}, first in {view.refs[shard].key}"
        for name, kind, shard in found[:EXAMPLES_MAX]
    ]
    return Amount(len(found), 0, tuple(examples))
