"""Shards without a known extension: the first bytes decide the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.errors import Unsupported
from feedd.formats.refused import refuse_bytes
from feedd.formats.tokens import SAY_HOW, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import ShardFormat
    from feedd.shard_index import ShardIndex

_BLOCK: Final = 512
_HINT: Final = "specify a prefix that holds shards, or their format before the URL: tfrecord+s3://bucket/prefix/"


class SniffedFormat:
    """``protocols.ShardFormat`` of any format that the first bytes indicate; stateless.

    Args:
        sniff: returns the name of the format that a shard begins like; empty: it begins like none.
        get: returns the reader of a format.
        known: formats that are read, for messages.
    """

    def __init__(self, sniff: Callable[[memoryview], str], get: Callable[[str], ShardFormat], known: str) -> None:
        self._sniff, self._get, self._known = sniff, get, known

    @property
    def name(self) -> str:
        """Name of the format: ``auto``."""
        return "auto"

    def index(self, data: memoryview, url: str) -> ShardIndex:
        """Return the index by the detected format.

        Raises:
            Unsupported: no known format is detected.
            BadShard: raised by the detected format.
        """
        name = self._sniff(data)
        if name:
            return self._get(name).index(data, url)
        head = bytes(data[:_BLOCK])
        refuse_bytes(head, url, self._known)
        raise Unsupported(
            f"expected a shard ending in {self._known}, got {url.rsplit('/', 1)[-1]!r} that begins with {head[:12]!r}",
            object=url,
            hint=f"if it is a file of tokens, {SAY_HOW}" if kind_of("", url) else _HINT,
            stage="decode",
        )
