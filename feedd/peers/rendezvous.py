"""Which member of the cluster holds an entry: rendezvous hashing (highest random weight). Pure.

All members compute the same holder without talking to each other. If a member leaves, only the entries that it held
move. If one joins, it takes an equal share of the entries of each of the others.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.values import ObjectRef


def holder_of(members: Iterable[str], ref: ObjectRef) -> str | None:
    """Return the member that holds an entry, or None without members. The order of ``members`` does not matter."""
    identity = f"{ref.root}\0{ref.key}\0{ref.etag}\0{ref.size_bytes}".encode(errors="surrogatepass")
    start = hashlib.blake2b(identity, digest_size=16).digest()
    return max(members, key=lambda member: (_weight(start, member), member), default=None)


def _weight(start: bytes, member: str) -> bytes:
    return hashlib.blake2b(member.encode(), digest_size=8, key=start).digest()
