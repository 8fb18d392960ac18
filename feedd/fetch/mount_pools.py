"""Threads for local files: a pool for each mount, so that a mount that hangs stops no reads of another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from feedd.flow.mounts import mount_of, read_mounts
from feedd.flow.pools import Pool

if TYPE_CHECKING:
    from feedd.flow.mounts import Mount

_RENEW_S: Final = 30.0


class MountPools:
    """The pools of one kind of work, by mount point. Used on one thread.

    A path through a link counts as one of the mount that the link lies on, because following the link may hang.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        """Start without pools.

        Args:
            name: of the threads.
            threads_max: upper bound of the threads of each mount.
        """
        self._name = name
        self._threads_max = threads_max
        self._mounts: list[Mount] = []
        self._pools: dict[str, Pool] = {}
        self._renew_at_s = 0.0

    def of(self, path: str) -> Pool:
        """Return the pool for an absolute path."""
        if (now_s := time.monotonic()) >= self._renew_at_s:
            self._renew_at_s = now_s + _RENEW_S
            self._renew()
        mount = mount_of(path, self._mounts)
        point = "/" if mount is None else mount.point
        if (pool := self._pools.get(point)) is None:
            pool = self._pools[point] = Pool(self._name, self._threads_max)
        return pool

    def _renew(self) -> None:
        """Read the table of mounts again, and forget the pools of mounts that are gone; their threads end when idle."""
        try:
            self._mounts = read_mounts()
        except OSError:
            return  # no procfs: one pool for all
        kept = {"/", *(mount.point for mount in self._mounts)}
        self._pools = {point: pool for point, pool in self._pools.items() if point in kept}
