"""What stores of the web have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.fetch.web.web_client import WebClient
from feedd.fetch.web.web_ranges import WebRanges

if TYPE_CHECKING:
    from feedd.fetch.fetch_options import SourceOptions


class WebStore:
    """The root and the connections of a store; see ``ObjectStore``.

    Args:
        root: the root URL, as the user named it.
        limits: bounds of its requests.
    """

    def __init__(self, root: str, limits: SourceOptions) -> None:
        self._root = root
        self._client = WebClient(limits)
        self._ranges = WebRanges(self._client, limits)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root})"

    @property
    def root(self) -> str:
        """The root URL."""
        return self._root

    @property
    def transfer_busy_s(self) -> float:
        """Seconds that its transfer threads have spent on bodies."""
        return self._client.transfer_busy_s

    async def close(self) -> None:
        """Close all connections; idempotent."""
        await self._client.close()
