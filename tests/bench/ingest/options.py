"""What a run of ``python -m tests.bench.ingest`` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from feedd.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """One run.

    Attributes:
        url: objects of the user's; empty: a server on loopback and made-up objects.
        server: that server. ``fake``: our own. ``radosgw``: Ceph's gateway.
        round_count: counted rounds.
        peers: other clients too.
        peers_python: interpreter that has them; None: of ``.venv-bench`` in a checkout, else our own.
        arms: names of the contenders that take part; empty: all.
        receivers: bare receivers too, which tell what sockets and pages cost without a client around them.
        recycled: over files that are there already too, which tells what a fresh page costs.
        tls: over TLS too.
        size_bytes: of all objects.
        shard_bytes: of one object.
        part_bytes: of one range.
        parts_in_flight: ranges asked for at one time.
        delayed_share: of GETs that wait ``delay_factor`` times longer for their first byte; 0: no such section.
        delay_factor: how much longer.
        error_share: of GETs answered 503; 0: no such section.
        latency_s: before every first byte, in the sections with delays or errors and the clean one beside them.
        connection_bytes_s: most that one connection is sent, in those sections: what one gets of a store far away.
        seed: of what is delayed or refused.
        folder: on tmpfs; everything lies in a new folder in it, which goes at the end.
    """

    folder: Path
    url: str = ""
    server: Literal["fake", "radosgw"] = "fake"
    round_count: int = 5
    peers: bool = False
    peers_python: Path | None = None
    arms: tuple[str, ...] = ()
    receivers: bool = False
    recycled: bool = False
    tls: bool = False
    size_bytes: int = 2 * GIB
    shard_bytes: int = 256 * MIB
    part_bytes: int = 8 * MIB
    parts_in_flight: int = 16
    delayed_share: float = 0.0
    delay_factor: float = 50.0
    error_share: float = 0.0
    latency_s: float = 0.02
    connection_bytes_s: int = 40_000_000
    seed: int = 0

    @property
    def faulty(self) -> bool:
        """Whether delays or errors are asked for: then all sections have the latency, and none is over TLS."""
        return bool(self.delayed_share or self.error_share)
