"""Which framing a shard has, and the reader of each framing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.decode.formats.tar import TarFormat
from feedd.errors import Unsupported

if TYPE_CHECKING:
    from feedd.protocols import ShardFormat

_FORMATS: Final[dict[str, ShardFormat]] = {"tar": TarFormat()}
_BY_EXTENSION: Final = {".tar": "tar"}


def format_for(url: str) -> str:
    """Return the name of the format of a shard, by its extension.

    Raises:
        Unsupported: none that this version reads; the message lists those it does.
    """
    file_name = url.rsplit("/", 1)[-1].lower()
    for extension, name in _BY_EXTENSION.items():
        if file_name.endswith(extension):
            return name
    compressed = file_name.endswith((".gz", ".tgz", ".zst", ".bz2", ".xz", ".lz4"))
    hint = "unpack it: a compressed tar cannot be read at random" if compressed else "name a prefix that holds shards"
    raise Unsupported(
        f"expected a shard ending in {' or '.join(_BY_EXTENSION)}, got {file_name!r}",
        object=url,
        hint=hint,
        stage="decode",
    )


def get(name: str) -> ShardFormat:
    """Return the reader of a format.

    Raises:
        Unsupported: no such format; the message lists those there are.
    """
    try:
        return _FORMATS[name]
    except KeyError:
        known = ", ".join(_FORMATS)
        raise Unsupported(f"expected one of the formats {known}, got {name!r}", object=name, stage="decode") from None
