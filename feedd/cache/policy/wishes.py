"""What owners would like to find in the cache before they ask for it. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.values import ObjectRef


class WishLists:
    """Unserved wishes of each owner, in order; owners are served in turn."""

    def __init__(self) -> None:
        self._lists: dict[str, deque[ObjectRef]] = {}

    def __bool__(self) -> bool:
        """Whether anything is left to serve."""
        return bool(self._lists)

    def replace(self, owner: str, refs: Iterable[ObjectRef]) -> None:
        """Make ``refs`` the owner's whole list."""
        wanted = deque(dict.fromkeys(refs))
        if wanted:
            self._lists[owner] = wanted
        else:
            self._lists.pop(owner, None)

    def owners(self) -> tuple[str, ...]:
        """Those with wishes left, the one served longest ago first."""
        return tuple(self._lists)

    def head(self, owner: str) -> ObjectRef | None:
        """Return the owner's next wish; None where none is left."""
        wishes = self._lists.get(owner)
        return wishes[0] if wishes else None

    def drop_head(self, owner: str) -> None:
        """Take the owner's next wish off its list: it is served, needless or hopeless."""
        wishes = self._lists[owner]
        wishes.popleft()
        if not wishes:
            del self._lists[owner]

    def served(self, owner: str) -> None:
        """Send the owner to the end of the queue of owners."""
        wishes = self._lists.pop(owner, None)
        if wishes:
            self._lists[owner] = wishes

    def wanted(self, ref: ObjectRef) -> bool:
        """Whether anybody still waits for its turn with this wish."""
        return any(ref in wishes for wishes in self._lists.values())

    def clear(self) -> None:
        """Forget everything."""
        self._lists.clear()
