"""The command line's client of a node: asks each of its daemons, and adds up what they answer."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from feedd.config.types import lane_address
from feedd.daemon.failures import single
from feedd.errors import NotFound
from feedd.lanes.lane_choice import serving_daemons
from feedd.serve.admin_client import daemon_at
from feedd.warming import Amount

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from feedd.errors import FeeddError
    from feedd.serve.admin_client import AdminClient
    from feedd.serve.server_options import CacheRow, CacheState
    from feedd.warming import WarmProgress, WarmSpec
    from feedd.wire import feedd_pb2 as pb

    Report = Callable[[WarmProgress, FeeddError | None], None]
    Warm = Callable[[WarmSpec, Report], Awaitable[object]]


@asynccontextmanager
async def node_at(address: str) -> AsyncIterator[NodeClient]:
    """Yield a client of all daemons of the node whose first daemon listens at ``address``.

    Raises:
        BadConfig: the text is not an address.
        NotFound: no daemon answers there.
    """
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(daemon_at(address))
        count = (await first.stats()).lanes
        others = [await stack.enter_async_context(daemon_at(lane_address(address, lane))) for lane in range(1, count)]
        yield NodeClient([first, *others])


class NodeClient:
    """Sends requests to all daemons of a node. Every method raises the daemons' own errors, as ``AdminClient`` does.

    Attributes:
        daemons: clients of the daemons, by lane.
    """

    def __init__(self, daemons: list[AdminClient]) -> None:
        """Keep the clients, which the caller closes."""
        self.daemons = daemons

    async def cache_state(self) -> CacheState | None:
        """Return the state of all caches together, in the first one's directory; None: the daemons have no cache."""
        states = [state for daemon in self.daemons if (state := await daemon.cache_state()) is not None]
        if not states:
            return None
        return replace(
            states[0],
            limit_bytes=sum(state.limit_bytes for state in states),
            committed_bytes=sum(state.committed_bytes for state in states),
            reserved_bytes=sum(state.reserved_bytes for state in states),
            entry_count=sum(state.entry_count for state in states),
            pin_count=sum(state.pin_count for state in states),
        )

    async def entries(self) -> list[CacheRow]:
        """Return the whole objects in all caches."""
        return [row for daemon in self.daemons for row in await daemon.entries()]

    async def remove(self, pattern: str) -> tuple[Amount, Amount]:
        """Remove matching objects; return the removed amount and the amount still in use."""
        removed, in_use = Amount(), Amount()
        for daemon in self.daemons:
            gone, kept = await daemon.remove(pattern)
            removed, in_use = removed + gone, in_use + kept
        return removed, in_use

    async def sessions(self) -> list[pb.SessionEntry]:
        """Return who holds what: this user's sessions, or all for an administrator."""
        return [one for daemon in self.daemons for one in await daemon.sessions()]

    async def end_session(self, start: str) -> None:
        """End the session whose id starts with ``start``, at least 8 digits.

        Raises:
            NotFound: no daemon has such a session.
        """
        for daemon in self.daemons[:-1]:
            try:
                await daemon.end_session(start)
            except NotFound:
                continue
            return
        await self.daemons[-1].end_session(start)

    async def warm(self, spec: WarmSpec, rank_count: int | None, report: Report) -> None:
        """Let each daemon warm its part while this call lasts; ``report`` gets the progress of all together.

        Args:
            spec: what the node needs.
            rank_count: ranks of the job on this node; None: at least one for each daemon.
            report: called as by ``Warmer.warm``.
        """
        count = len(self.daemons)
        serving = serving_daemons(rank_count or count, count, spec.urls)
        await warm_lanes(spec, [self.daemons[number].warm for number in serving], report)


async def warm_lanes(spec: WarmSpec, warms: Sequence[Warm], report: Report) -> None:
    """Warm all lanes of a node at one time, each with its part.

    Args:
        spec: what the node needs.
        warms: warms one lane, for each.
        report: gets the progress of all lanes together, of those that have finished listing.
    """
    latest: dict[int, WarmProgress] = {}

    async def warm_lane(lane: int) -> None:
        def tell(progress: WarmProgress, failure: FeeddError | None) -> None:
            latest[lane] = progress
            first, *others = latest.values()
            report(sum(others, first), failure)

        await warms[lane](spec.in_lane(lane, len(warms)), tell)

    try:
        async with asyncio.TaskGroup() as group:
            for lane in range(len(warms)):
                group.create_task(warm_lane(lane))
    except BaseExceptionGroup as group_error:
        raise single(group_error) from group_error
