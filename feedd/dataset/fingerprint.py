"""A fingerprint of 16 bytes on which all nodes and all restarts must agree."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from feedd.values import FieldRecipe, ObjectRef

Runs = tuple[tuple[str, int], ...]
"""Texts in sequence, each with its number of repetitions."""

_BLOCK = 4096
_BLOCK_BYTES = 1 << 16


def listing_digest(refs: Iterable[ObjectRef]) -> bytes:
    """Return 32 bytes over ordered URLs, sizes and ETags. Length prefixes keep adjacent texts apart."""
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


def runs_of(names: Iterable[str]) -> Runs:
    """Return texts as runs of equal texts."""
    return tuple((name, sum(1 for _ in run)) for name, run in itertools.groupby(names))


def fingerprint(listing: bytes, facts: Mapping[str, object], columns: Mapping[str, Runs] | None = None) -> bytes:
    """Return 16 bytes over the listing's digest and the facts (recipe, sharding, topology, ...) as canonical JSON.

    Args:
        listing: digest of the listing.
        facts: facts by name.
        columns: facts that are lists of one text per shard, by name; hashed as if they were among the others.
    """
    digest = hashlib.blake2b(listing, digest_size=16)
    mark = b"{"
    for name, fact in sorted({**facts, **(columns or {})}.items()):
        digest.update(mark + _json(name) + b":")
        mark = b","
        if columns is not None and name in columns:
            _update(digest, columns[name])
        else:
            digest.update(_json(fact))
    digest.update(b"}" if mark == b"," else b"{}")
    return digest.digest()


def recipe_facts(recipes: Sequence[FieldRecipe]) -> list[object]:
    """Return the facts of a recipe that decide the content of a batch."""
    return [
        [recipe.name, list(recipe.sources), recipe.codec, recipe.params, *([recipe.pad] if recipe.pad else [])]
        for recipe in recipes
    ]


def _update(digest: hashlib.blake2b, runs: Runs) -> None:
    """Hash a list of texts block by block: one run may have a million texts, or each run only one."""
    waiting, mark = [b"["], b""
    size_bytes = 0
    for name, count in runs:
        text = b"," + _json(name)
        for low in range(0, count, _BLOCK):
            piece = text * min(_BLOCK, count - low)
            waiting.append(piece if mark else piece[1:])
            mark = b","
            size_bytes += len(piece)
            if size_bytes > _BLOCK_BYTES:
                digest.update(b"".join(waiting))
                waiting.clear()
                size_bytes = 0
    digest.update(b"".join((*waiting, b"]")))


def _json(fact: object) -> bytes:
    return json.dumps(fact, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
