"""A fingerprint of 16 bytes on which all nodes and all restarts must agree."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import TYPE_CHECKING

from feedd.dataset.ref_columns import RefColumns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from feedd.values import FieldRecipe, ObjectRef

Runs = tuple[tuple[str, int], ...]
"""Texts in sequence, each with its number of repetitions."""

_BLOCK = 4096
_BLOCK_BYTES = 1 << 16


def listing_digest(refs: Iterable[ObjectRef]) -> bytes:
    """Return 32 bytes over ordered URLs, sizes and ETags. Length prefixes keep adjacent texts apart."""
    digest = hashlib.blake2b(digest_size=32)
    blocks = refs.blocks() if isinstance(refs, RefColumns) else map(_facts, _batched(refs))
    for urls, sizes, etags in blocks:
        rows = [f"{len(url)} {size} {tag} {url}\n" for url, size, tag in zip(urls, sizes, etags, strict=True)]
        text = "".join(rows)
        if text.isascii():
            digest.update(text.encode("ascii"))
            continue
        for url, size, tag in zip(urls, sizes, etags, strict=True):
            name = url.encode("utf-8", "surrogateescape")
            digest.update(b"%d %d %s %s\n" % (len(name), size, tag.encode(), name))
    return digest.digest()


def _facts(refs: Sequence[ObjectRef]) -> tuple[list[str], list[int], list[str]]:
    return [ref.url for ref in refs], [ref.size_bytes for ref in refs], [ref.etag for ref in refs]


def _batched(refs: Iterable[ObjectRef]) -> Iterator[list[ObjectRef]]:
    """Yield some thousand objects at a time."""
    left = iter(refs)
    while some := list(itertools.islice(left, _BLOCK)):
        yield some


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
