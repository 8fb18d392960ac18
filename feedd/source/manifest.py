"""SageMaker's ManifestFile: a JSON array of a prefix and the names that go with it."""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from feedd.errors import BadRequest, FeeddError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

_T = TypeVar("_T")

MANIFEST_BYTES_MAX = 1 << 30
_SHAPE = 'a manifest is [{"prefix": "s3://bucket/some/prefix/"}, "name-1", "name-2", ...]'


def parse_manifest(data: bytes, url: str) -> list[str]:
    """Return the URLs a manifest names, in its order; duplicates stay, names are appended verbatim.

    Raises:
        BadRequest: not JSON, or not of the manifest's shape, or no names in it.
    """
    try:
        lines = json.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise _bad(f"expected a json array, got {error}", url) from error
    if not isinstance(lines, list) or not lines:
        raise _bad("expected a non-empty json array", url)
    head, *names = lines
    prefix = head.get("prefix") if isinstance(head, dict) else None
    if not isinstance(prefix, str) or "://" not in prefix:
        raise _bad(f"expected a prefix like s3://bucket/ as first element, got {head!r:.80}", url)
    if not names:
        raise _bad("expected at least one name after the prefix, got none", url)
    for index, name in enumerate(names, 1):
        if not isinstance(name, str):
            raise _bad(f"expected a name as element {index}, got {name!r:.80}", url)
    return [prefix + name for name in names]


def _bad(message: str, url: str) -> BadRequest:
    return BadRequest(message, object=url, hint=_SHAPE, stage="source")


async def head_all(
    names: Sequence[tuple[str, str]], head: Callable[[str, str], Awaitable[_T]], in_flight: int
) -> list[_T]:
    """Return the current version of each (root, key), in order, ``in_flight`` requests at a time.

    Raises:
        FeeddError: what ``head`` raised first; the others are cancelled.
    """
    found: dict[int, _T] = {}
    todo = iter(enumerate(names))  # shared: each worker takes the next
    failures: list[FeeddError] = []

    async def work(mine: Iterator[tuple[int, tuple[str, str]]]) -> None:
        for index, (root, key) in mine:
            found[index] = await head(root, key)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in islice(names, in_flight):
                workers.create_task(work(todo))
    except* FeeddError as group:
        failures = [error for error in group.exceptions if isinstance(error, FeeddError)]
    if failures:
        raise failures[0]
    return [found[index] for index in range(len(names))]
