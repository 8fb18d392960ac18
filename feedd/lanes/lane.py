"""One lane of a node, and the configuration it has of the node's."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from feedd.cache.lock import DirectoryLock
from feedd.config.machine_cores import cores_by_memory_node, split_cores
from feedd.config.types import lane_address
from feedd.errors import CacheUnavailable
from feedd.units import KIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

    from feedd.config import Config

_log = structlog.get_logger(__name__)
_FOLDER = "lanes"  # in the cache's directory: the directories of the lanes above the first


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane by its number.

    Attributes:
        index: its number, from 0.
        count: lanes of the node.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"expected a lane below {self.count}, got {self.index}")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Lane:
        """Parse ``2/4``: the third of four lanes.

        Raises:
            ValueError: the text is not of that form.
        """
        index, slash, count = text.partition("/")
        if not slash or not index.isdecimal() or not count.isdecimal():
            raise ValueError(f"expected a lane like 2/4, got {text!r}")
        return cls(int(index), int(count))

    def part(self, whole: int, least: int = 1) -> int:
        """Return this lane's part of what the node may use, at least ``least``, the option's minimum; 0 stays 0."""
        return max(least, whole // self.count) if whole else 0

    def cache_dir(self, directory: Path) -> Path:
        """Return this lane's directory. The first lane has the node's own, so that what is cached there stays."""
        return directory / _FOLDER / str(self.index) if self.index else directory


def lane_config(config: Config, lane: Lane) -> Config:
    """Return the configuration of a lane: its own addresses and directory, and its part of each amount."""
    cache, fetch, decode, limits = config.cache, config.fetch, config.decode, config.limits
    worker_cores = lane_cores(frozenset(decode.cpus), lane) if decode.cpus else ()
    workers = decode.workers if decode.workers == "auto" else lane.part(decode.workers)
    quarantine = _with(config.quarantine, size=lane.part(config.quarantine.size, 64 * KIB))
    if lane.index and quarantine.path.is_absolute():  # a relative path lies in the lane's own directory
        quarantine = _with(quarantine, path=quarantine.path.with_name(f"{quarantine.path.name}.lane{lane.index}"))
    admin = config.security.admin_socket
    if lane.index and admin is not None:
        admin = admin.with_name(f"{admin.name}.lane{lane.index}")
    changed: Config = _with(
        config,
        listen=[lane_address(address, lane.index) for address in config.listen],
        status=None,
        cache=_with(
            cache,
            dir=lane.cache_dir(cache.dir),
            size=lane.part(cache.size, MIB),
            bypass=lane.part(cache.bypass),
            quotas={url: lane.part(size) for url, size in cache.quotas.items()},
        ),
        fetch=_with(
            fetch,
            parts_in_flight=lane.part(fetch.parts_in_flight),
            bytes_in_flight=lane.part(fetch.bytes_in_flight, MIB),
            transfer_threads=lane.part(fetch.transfer_threads),
        ),
        decode=_with(
            decode,
            cpus=tuple(sorted(worker_cores)),
            workers=workers,
            workers_max=lane.part(decode.workers_max),
        ),
        arena=_with(config.arena, size=lane.part(config.arena.size, MIB)),
        limits=_with(limits, arena_per_owner=lane.part(limits.arena_per_owner)),
        quarantine=quarantine,
        security=_with(config.security, admin_socket=admin),
        peers=_with(
            config.peers, listen=None if config.peers.listen is None else lane_address(config.peers.listen, lane.index)
        ),
    )
    return changed


def lane_cores(cores: frozenset[int], lane: Lane) -> frozenset[int]:
    """Return the lane's part of ``cores``: neighbours, on one memory node where that is possible."""
    return split_cores(cores_by_memory_node(cores), lane.count)[lane.index]


def cache_dirs(directory: Path) -> list[Path]:
    """Return the node's cache directory and those of its further lanes, in use or not."""
    return [directory, *(path for path in sorted((directory / _FOLDER).glob("*")) if path.name.isdecimal())]


def remove_other_lanes(directory: Path, lane_count: int) -> None:
    """Remove the cache directories of lanes that this node had and has no more. Those in use stay."""
    for path in cache_dirs(directory)[1:]:
        if int(path.name) < lane_count or path.is_symlink():
            continue
        with contextlib.suppress(CacheUnavailable), DirectoryLock(path):
            _log.warning("deleting the cache of a lane that this node no longer has", directory=str(path))
            shutil.rmtree(path, ignore_errors=True)


def _with(section: Any, **changes: object) -> Any:  # noqa: ANN401 - of the section's own type
    model: BaseModel = section
    return model.model_copy(update=changes)
