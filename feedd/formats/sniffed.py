"""Shards without a known extension: the first bytes decide the format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.errors import Unsupported
from feedd.formats.recordio import MAGIC
from feedd.formats.refused import refuse_bytes
from feedd.formats.tfrecord import masked_crc
from feedd.formats.tokens import SAY_HOW, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import ShardFormat
    from feedd.values import ShardIndex

_BLOCK: Final = 512
_HINT: Final = "specify a prefix that holds shards, or their format before the URL: tfrecord+s3://bucket/prefix/"
_MDS_HEADER: Final = b'"column_encodings"'
_MDS_LOOK_BYTES: Final = 64 << 10


def sniff(data: memoryview) -> str:
    """Return the format that a shard's first bytes indicate; empty: none.

    Text and LitData's chunks have no magic bytes, so they are never detected.
    """
    head = bytes(data[:_BLOCK])
    if head[257:262] == b"ustar":
        return "tar"
    if int.from_bytes(head[:4], "little") == MAGIC:
        return "recordio"
    if len(head) >= 12 and int.from_bytes(head[8:12], "little") == masked_crc(head[:8]):
        return "tfrecord"
    header_at = 8 + 4 * int.from_bytes(head[:4], "little")
    if bytes(data[header_at : header_at + _MDS_LOOK_BYTES]).find(_MDS_HEADER) >= 0:
        return "mds"
    return "jsonl" if head.lstrip()[:2] in {b'{"', b"[{", b"{}"} else ""


class SniffedFormat:
    """``protocols.ShardFormat`` of any format that the first bytes indicate; stateless.

    Args:
        get: returns the reader of a format.
        known: formats that are read, for messages.
    """

    def __init__(self, get: Callable[[str], ShardFormat], known: str) -> None:
        self._get, self._known = get, known

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
        name = sniff(data)
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
