"""Objects that owners want in the cache in advance. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.values import ObjectRef


class WishLists:
    """Each owner's unserved wishes, in order; owners are served in turn."""

    def __init__(self) -> None:
        self._lists: dict[str, deque[ObjectRef]] = {}

    def __bool__(self) -> bool:
        """Whether any wish is unserved."""
        return bool(self._lists)

    def replace(self, owner: str, refs: Iterable[ObjectRef]) -> None:
        """Make ``refs`` the owner's whole list."""
        wanted = deque(dict.fromkeys(refs))
        if wanted:
            self._lists[owner] = wanted
        else:
            self._lists.pop(owner, None)

    def owners(self) -> tuple[str, ...]:
        """Owners with unserved wishes, the least recently served first."""
        return tuple(self._lists)

    def head(self, owner: str) -> ObjectRef | None:
        """Return the owner's next wish, or None if none is left."""
        wishes = self._lists.get(owner)
        return wishes[0] if wishes else None

    def drop_head(self, owner: str) -> None:
        """Drop the owner's next wish: it was served, or it is needless or hopeless."""
        wishes = self._lists[owner]
        wishes.popleft()
        if not wishes:
            del self._lists[owner]

    def served(self, owner: str) -> None:
        """Move the owner to the end of the queue of owners."""
        wishes = self._lists.pop(owner, None)
        if wishes:
            self._lists[owner] = wishes

    def wanted(self, ref: ObjectRef) -> bool:
        """Whether any owner has this unserved wish."""
        return any(ref in wishes for wishes in self._lists.values())

    def clear(self) -> None:
        """Forget all wishes."""
        self._lists.clear()
