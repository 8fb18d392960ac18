"""Megatron's index files beside files of tokens: the type of tokens they say is held against the recipe's.

An index is ``MMIDIDX`` and two zero bytes, u64 version 1, u8 type, and then where documents lie, which windows do not
ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from feedd.errors import BadRecipe, FeeddError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from feedd.source.sources import Resolved, Sources
    from feedd.values import ObjectRef

_MAGIC: Final = b"MMIDIDX\0\0"
_TYPE_AT: Final = len(_MAGIC) + 8
_DTYPES: Final = ("", "uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
_INDEX_BYTES_MAX: Final = 64 << 20  # what is larger is not read for one byte of it
_READ_MAX: Final = 4  # files of one data set are all of one type
_log = structlog.get_logger("feedd.pipeline")


async def check_types(sources: Sources, resolved: Resolved, dtypes: Mapping[int, str]) -> None:
    """Hold what indexes beside the data say against what recipes do.

    Args:
        sources: where they are read from.
        resolved: the data, and what lies beside it.
        dtypes: of the tokens, by the index of the file.

    Raises:
        BadRecipe: they differ.
    """
    stems = {(ref.root, ref.key.removesuffix(".idx")): ref for ref in resolved.beside if ref.key.endswith(".idx")}
    left = _READ_MAX
    for number, dtype in dtypes.items() if stems else ():
        ref = resolved.refs[number]
        index = stems.get((ref.root, ref.key.removesuffix(".bin")))
        if index is None or index.size_bytes > _INDEX_BYTES_MAX:
            continue
        said = await _dtype(sources, index)
        if said and said != dtype:
            raise BadRecipe(
                f"expected a recipe of {said} tokens, as the index beside them says, got {dtype}",
                object=ref.url,
                hint=f"write tokens:{said}:COUNT",
                stage="decode",
            )
        left -= 1
        if not left:
            return


async def _dtype(sources: Sources, ref: ObjectRef) -> str:
    """Return what an index says; empty: it is none of Megatron's, or cannot be read, which is nobody's error."""
    data = bytearray(ref.size_bytes)
    try:
        with memoryview(data) as target:
            await sources.fetcher.fetch(ref, target)
    except FeeddError as error:
        _log.warning("an index beside the data is passed over", object=ref.url, reason=str(error))
        return ""
    return dtype_of(data)


def dtype_of(data: Sequence[int] | bytes | bytearray) -> str:
    """Return the type of the tokens that an index is of; empty: it is no such index."""
    if len(data) <= _TYPE_AT or bytes(data[: len(_MAGIC)]) != _MAGIC or data[_TYPE_AT] >= len(_DTYPES):
        return ""
    return _DTYPES[data[_TYPE_AT]]
