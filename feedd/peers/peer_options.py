"""Options of the peer cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class PeerTls:
    """PEM files for connections between daemons, in both directions.

    Attributes:
        cert_path: this daemon's certificate chain.
        key_path: its private key.
        ca_path: the other side must show a certificate that one of these authorities signed.
    """

    cert_path: Path
    key_path: Path
    ca_path: Path


@dataclass(frozen=True, slots=True)
class PeerOptions:
    """Options of the peer cache.

    Attributes:
        listen: ``host:port`` for other daemons.
        members: ``host:port`` of all daemons; a name stands for each of its addresses.
        members_file: file with one member a line; it is read again when it changes.
        address: this daemon's own address among the members; empty: found by the addresses of this machine.
        timeout_s: longest silence of a peer before the store is used instead.
        tls: files for TLS; None: plain text.
        transfer_threads: threads that move bodies into files on disk, and as many for files in memory.
        lane_count: daemons on each node.
    """

    listen: str
    members: tuple[str, ...] = ()
    members_file: Path | None = None
    address: str = ""
    timeout_s: float = 0.05
    tls: PeerTls | None = None
    transfer_threads: int = 2
    lane_count: int = 1
