"""Opens the status page of a node: of a daemon, or of the supervisor of its lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from feedd.config.loading import PROCESS_TREE
from feedd.config.types import is_unix
from feedd.daemon.standby import status_if_free, status_when_free
from feedd.errors import BadConfig
from feedd.observe.page_access import PageAccess, noted_page

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from feedd.config import Effective
    from feedd.daemon.standby import OpenPage
    from feedd.protocols import Clock

_log = structlog.get_logger(__name__)


def page_access(effective: Effective) -> PageAccess:
    """Return who may see the status pages of a configuration.

    Pages that nobody configured, as those of automatically started daemons, are for requests with the token only.
    """
    if effective.config.status is not None and is_unix(effective.config.status):
        return PageAccess("")
    return PageAccess.fresh(public=effective.origins.get("status") != PROCESS_TREE)


class NodePage:
    """The status page while it is opened.

    Attributes:
        bound: the address of the page; None: it is not open.
    """

    def __init__(self, open_page: OpenPage | None, access: PageAccess, *, standby: bool) -> None:
        """Keep how to open the page.

        Args:
            open_page: opens it; None: the operator turned it off.
            access: who may see it.
            standby: another daemon may still have the port.
        """
        self._open_page = open_page
        self._access = access
        self._standby = standby
        self.bound: str | None = None

    @property
    def url(self) -> str | None:
        """The address of the page with its token; None: there is no page for people."""
        return self._access.url(self.bound) if self.bound is not None and self._access.token else None

    async def open_early(self, stack: AsyncExitStack, addresses: Sequence[str]) -> None:
        """Open the page into ``stack``, unless another daemon has the port.

        The trainer that starts a daemon reads the page's address once the daemon listens at ``addresses``.

        Raises:
            BadConfig: the address cannot be listened on. A page that nobody configured is then left out.
        """
        if self._open_page is None:
            return
        if self._standby and self._access.public:
            self.bound = await status_if_free(stack, self._open_page)
            return
        try:
            self.bound = await stack.enter_async_context(self._open_page())
        except BadConfig as error:
            if self._access.public:
                raise
            _log.warning("no web page: its address cannot be listened on", error=error.message)
            self._open_page = None
            return
        if not self._access.public:
            await self._note(stack, addresses)

    async def open_late(self, stack: AsyncExitStack, clock: Clock, addresses: Sequence[str]) -> None:
        """Open the page once the former daemon has ended, and keep its address next to the daemon's socket.

        Raises:
            BadConfig: the port stays taken.
        """
        if self._open_page is None:
            return
        if self.bound is None:
            self.bound = await status_when_free(stack, self._open_page, clock)
        if self._access.public:
            await self._note(stack, addresses)

    async def _note(self, stack: AsyncExitStack, addresses: Sequence[str]) -> None:
        if self.url is not None:
            await stack.enter_async_context(noted_page(addresses, self.url))
