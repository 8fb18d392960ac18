"""Fields that the first shard lacks, of a session whose user names none: they are in no batch, and that is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.notices import EXAMPLES_MAX, Amount

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from feedd.dataset.listing import Listing
    from feedd.values import ShardIndex


class LateFields:
    """What a listing has come to know of such fields. Nothing is read for that: shards tell it when they are indexed.

    Args:
        listing: as the session reads it.
        known: of each source, the fields that its first shard has; None: its user named the fields.
        tell: takes an amount that has grown, and by how much.

    Attributes:
        amount: of the last ``refresh``.
    """

    def __init__(
        self, listing: Listing, known: Sequence[frozenset[str] | None], tell: Callable[[Amount, int], None]
    ) -> None:
        self.amount = Amount()
        self._listing, self._known, self._tell = listing, known, tell
        self._name_count = 0
        self._look()

    def refresh(self) -> bool:
        """Look whether there are more, and tell them; False: there are none."""
        before = self.amount.count
        self._look()
        if self.amount.count == before:
            return False
        self._tell(self.amount, self.amount.count - before)
        return True

    def _look(self) -> None:
        name_count = len(self._listing.field_names)
        if name_count != self._name_count:
            self._name_count = name_count
            self.amount = late_fields(self._listing, self._known)


def fields_told(index: ShardIndex) -> frozenset[str]:
    """Return the fields that a shard tells, those that nobody can read among them."""
    return frozenset((*index.fields, *(name.lower() for name, _ in index.unread)))


def late_fields(listing: Listing, known: Sequence[frozenset[str] | None], *, unread: bool = True) -> Amount:
    """Return the fields of a listing's shards, as far as they are indexed, that are not among those known.

    Args:
        listing: it.
        known: of each source; None: they do not matter.
        unread: those that nobody can read count, too.
    """
    names = listing.field_names
    found = [
        late
        for source, fields in enumerate(known)
        if fields is not None
        for late in names.beyond(source, fields)
        if unread or not late[1]
    ]
    examples = [
        f"{name}{f': {kind}' if kind else ''}, first in {listing.refs[shard].key}"
        for name, kind, shard in found[:EXAMPLES_MAX]
    ]
    return Amount(len(found), 0, tuple(examples))
