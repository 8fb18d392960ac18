"""Fetches and parses foreign texts that are read as a whole: manifests, indexes and tables of labels.

Parsing runs in a thread. A parser takes a piece of the text per call (``dataset.json_pieces``), so that the event loop
gets its turn, and keeps only facts about listed objects. The bytes of all texts in memory are bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np

from feedd.flow.budget import ByteBudget
from feedd.flow.pools import CPU
from feedd.flow.range_sinks import MemorySink
from feedd.values import ByteRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import ObjectStore, SpanFetcher
    from feedd.values import ObjectRef

_T = TypeVar("_T")

BYTES_MAX: Final = 512 << 20
"""Bound on all texts in memory together. A larger text is read alone."""


class Texts:
    """Reads texts, with a bound on their bytes in memory.

    Args:
        fetcher: fetches them.
        bytes_max: bound on all texts in memory together. A larger text is read alone.
    """

    def __init__(self, fetcher: SpanFetcher, bytes_max: int = BYTES_MAX) -> None:
        self._fetcher = fetcher
        self._budget = ByteBudget(bytes_max)

    async def parse(self, ref: ObjectRef, parser: Callable[[memoryview], _T], store: ObjectStore | None = None) -> _T:
        """Fetch an object and return the result of ``parser`` for its bytes. The parser runs in a thread.

        With ``store``, one request of that store fetches the object, and no checksum of the store is compared.

        The caller checks the size of the object first. The bytes are freed when the parser returns.

        Raises:
            Exception: any error of the parser.
            NotFound, PermissionDenied, StoreUnavailable, ObjectChanged: the store's answer.
        """
        async with self._budget.reserve(ref.size_bytes):
            data = np.empty(ref.size_bytes, np.uint8)  # the system provides each page when it is written to
            sink = MemorySink(data.data)
            if store is None:
                await self._fetcher.fetch(ref, sink)
            else:
                await store.read_into(ref, ByteRange(0, ref.size_bytes), sink)
            return await CPU.run(parser, data.data)
