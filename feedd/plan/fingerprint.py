"""What all nodes and all restarts must agree on, in 16 bytes."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.values import ObjectRef

_BLOCK = 4096


def listing_digest(refs: Iterable[ObjectRef]) -> bytes:
    """Return 32 bytes over ordered URLs, sizes and ETags. Length prefixes keep neighbours apart."""
    digest = hashlib.blake2b(digest_size=32)
    rows: list[bytes] = []
    for ref in refs:
        url = ref.url.encode("utf-8", "surrogateescape")
        rows.append(b"%d %d %s %s\n" % (len(url), ref.size_bytes, ref.etag.encode(), url))
        if len(rows) == _BLOCK:
            digest.update(b"".join(rows))
            rows.clear()
    digest.update(b"".join(rows))
    return digest.digest()


def fingerprint(listing: bytes, facts: dict[str, object]) -> bytes:
    """Return 16 bytes over the listing's digest and the facts (recipe, sharding, topology, ...) as canonical JSON."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(listing + text.encode(), digest_size=16).digest()
