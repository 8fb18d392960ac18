"""Megatron's index files beside files of tokens (``formats.megatron``).

If documents are the samples (``megatron+s3://...``), the index locates each document. Each index is looked up when the
data is listed, and its start is read, which gives the number of documents. The whole index is read when its file is
needed. The indexes' versions are part of the formats' names, and so of a run's fingerprint. If a recipe splits tokens
into windows, the index's type of tokens is compared with the recipe's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from feedd.access import EVERYTHING
from feedd.catalog.object_heads import first_bytes
from feedd.errors import BadRecipe, BadRequest, FeeddError, NotFound
from feedd.flow.pools import CPU
from feedd.flow.tasks import run_all
from feedd.formats.megatron import (
    HEAD_BYTES,
    MEGATRON,
    MegatronIndex,
    dtype_of,
    index_file_of,
    parse_head,
    with_index_file,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feedd.catalog.sources import Sources
    from feedd.catalog.url_listing import Resolved
    from feedd.values import ObjectRef

_TOKENS, _INDEX = ".bin", ".idx"
_INDEX_BYTES_MAX: Final = 64 << 20  # larger indexes are not read for their type
_READ_MAX: Final = 4  # indexes to compare, because all files of a dataset have one type
_AT_ONCE: Final = 32
_log = structlog.get_logger("feedd.sessions")


@dataclass(frozen=True, slots=True)
class Documents:
    """Files of tokens whose samples are documents, by dataset index.

    Attributes:
        readers: their formats, with the parameters of their indexes.
        counts: documents of each file.
    """

    readers: dict[int, str]
    counts: dict[int, int]


async def read_documents(sources: Sources, resolved: Resolved) -> Documents:
    """Find the index of each file of tokens whose documents are samples, and read the index's header.

    Raises:
        BadRequest: an object is not a file of tokens, or has no index beside it.
        BadShard: an index is invalid.
        FeeddError: the store's answer, such as PermissionDenied or StoreUnavailable.
    """
    found = Documents({}, {})
    numbers = await CPU.run(_named, resolved) if resolved.named else []
    if not numbers:
        return found
    beside = {(ref.root, ref.key): ref for ref in resolved.sidecar_refs if ref.key.endswith(_INDEX)}

    async def one(number: int) -> None:
        ref = resolved.refs[number]
        index = await _index_file(sources, ref, beside)
        data = await first_bytes(sources, index, HEAD_BYTES)
        found.counts[number] = parse_head(data, index.size_bytes, index.url).documents
        found.readers[number] = with_index_file(MegatronIndex(index.etag, index.size_bytes, ref.size_bytes))

    for at in range(0, len(numbers), _AT_ONCE):
        await run_all(map(one, numbers[at : at + _AT_ONCE]))
    return found


def counted_by(ref: ObjectRef, format_name: str) -> ObjectRef:
    """Return the object that holds a shard's index: the shard itself, or the file that its format names."""
    told = index_file_of(format_name)
    if told is None:
        return ref
    return replace(ref, key=_index_key(ref.key), size_bytes=told.size_bytes, etag=told.etag)


def _named(resolved: Resolved) -> list[int]:
    return [number for number, name in resolved.named.items() if name == MEGATRON]


async def _index_file(sources: Sources, ref: ObjectRef, beside: Mapping[tuple[str, str], ObjectRef]) -> ObjectRef:
    if not ref.key.endswith(_TOKENS) or ref.conversion is not None:
        raise BadRequest(
            f"expected files of tokens, {_TOKENS} with an {_INDEX} beside each, got another object",
            object=ref.url,
            hint="specify their common prefix (megatron+s3://bucket/corpus/part-), or list them",
            stage="source",
        )
    key = _index_key(ref.key)
    index = beside.get((ref.root, key))
    if index is None:  # the URL names a single file, or a manifest names only files of tokens
        try:
            index = await sources.head(replace(ref, key=key).url, EVERYTHING)  # beside an object that may be read
        except NotFound as error:
            hint = "put it there, or let a recipe split the tokens into windows: tokens:uint16:2049, without megatron+"
            message = f"expected Megatron's index beside the file, {key.rpartition('/')[2]}, got none"
            raise BadRequest(message, object=ref.url, hint=hint, stage="source") from error
    return index


def _index_key(key: str) -> str:
    return key.removesuffix(_TOKENS) + _INDEX


async def check_types(sources: Sources, resolved: Resolved, dtypes: Mapping[int, str]) -> None:
    """Compare the types of tokens in indexes beside the data with those of recipes.

    Args:
        sources: reads the indexes.
        resolved: the data, and the files beside it.
        dtypes: dtype of the tokens by the recipe, by the index of the file.

    Raises:
        BadRecipe: the types differ.
    """
    stems = {(ref.root, ref.key.removesuffix(_INDEX)): ref for ref in resolved.sidecar_refs if ref.key.endswith(_INDEX)}
    left = _READ_MAX
    for number, dtype in dtypes.items() if stems else ():
        ref = resolved.refs[number]
        index = stems.get((ref.root, ref.key.removesuffix(_TOKENS)))
        if index is None or index.size_bytes > _INDEX_BYTES_MAX:
            continue
        said = await _dtype(sources, index)
        if said and said != dtype:
            raise BadRecipe(
                f"expected a recipe for {said} tokens, as the index beside them says, got {dtype}",
                object=ref.url,
                hint=f"write tokens:{said}:COUNT",
                stage="decode",
            )
        left -= 1
        if not left:
            return


async def _dtype(sources: Sources, ref: ObjectRef) -> str:
    """Return the dtype in an index; empty: the file is not Megatron's or cannot be read, which is no error."""
    try:
        return dtype_of(await first_bytes(sources, ref, HEAD_BYTES))
    except FeeddError as error:
        _log.warning("an index beside the data is skipped", object=ref.url, reason=str(error))
        return ""
