"""Texts of strangers that are read as a whole: manifests, indexes, tables of labels. All are fetched and parsed here.

They are parsed in threads, by parsers that take a piece at a time (``plan.json_pieces``) and keep no more of a text
than what it says of the objects that are there. What is under way together is bounded, whoever asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from feedd.flow.budget import ByteBudget
from feedd.flow.pools import CPU

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import SpanFetcher
    from feedd.values import ObjectRef

_T = TypeVar("_T")

BYTES_MAX: Final = 512 << 20
"""Of all texts that are being read at one time; a larger one is read alone."""


class Texts:
    """Reads texts, so many bytes of them at a time.

    Args:
        fetcher: fetches them.
        bytes_max: of those in memory at one time; one that is larger is read when there is no other.
    """

    def __init__(self, fetcher: SpanFetcher, bytes_max: int = BYTES_MAX) -> None:
        self._fetcher = fetcher
        self._budget = ByteBudget(bytes_max)

    async def parse(self, ref: ObjectRef, parser: Callable[[memoryview], _T]) -> _T:
        """Return what ``parser`` returns of an object's bytes, which are gone thereafter; it runs in a thread.

        Whoever asks has seen to it that the object is no larger than it may be.

        Raises:
            Whatever the parser raises. NotFound, PermissionDenied, StoreUnavailable, ObjectChanged: as the store
            answered.
        """
        async with self._budget.reserve(ref.size_bytes):
            data = np.empty(ref.size_bytes, np.uint8)  # memory of the system's, which comes as it is written to
            await self._fetcher.fetch(ref, data.data)
            return await CPU.run(parser, data.data)
