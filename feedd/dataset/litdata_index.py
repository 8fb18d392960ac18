"""Reads LitData's ``index.json`` about its chunks. Its content is not trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from feedd.dataset.json_pieces import elements, find, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from feedd.dataset.json_pieces import Octets

_DEPTH_MAX: Final = 16
_LEAVES_MAX: Final = 4096
_PLAIN_LOADERS: Final = {"", "PyTreeLoader"}
_WHOLE: Final = ".zstd.bin"  # each chunk is compressed as a whole, not item by item
_TOKENS_LOADER: Final = "TokensLoader"


class _Chunk(msgspec.Struct):
    filename: str
    chunk_size: int
    chunk_bytes: int | None = None


class _Config(msgspec.Struct):
    data_format: list[str] | None = None
    data_spec: str | None = None
    compression: str | None = None
    encryption: Any = None
    item_loader: str | None = None


def chunks(data: Octets) -> Iterator[tuple[str, int | None, int, str]]:
    """Yield name, bytes and samples of each chunk, and the format that reads them: ``litdata:`` and JSON.

    Some versions count a chunk's header among its bytes and some do not, so each chunk is yielded with both sizes.

    Raises:
        ValueError: the data is no such file.
    """
    places = find(data, ("chunks", "config"))
    whole = all(chunk.filename.endswith(_WHOLE) for chunk in elements(data, places["chunks"], _Chunk))
    params = _params(value(data, places["config"], _Config), whole=whole)
    reader = f"litdata:{msgspec.json.encode(params).decode()}"
    for chunk in elements(data, places["chunks"], _Chunk):
        if chunk.chunk_bytes is not None:
            head_bytes = 4 * (chunk.chunk_size + 2)
            yield chunk.filename, chunk.chunk_bytes, chunk.chunk_size, reader
            yield chunk.filename, chunk.chunk_bytes + head_bytes, chunk.chunk_size, reader


def _params(config: _Config, *, whole: bool) -> dict[str, object]:
    formats = config.data_format
    loader = config.item_loader or ""
    problem = ""
    if config.encryption:
        problem = "encrypted ones"
    elif config.compression and not whole:
        problem = f"ones compressed with {config.compression[:20]}"
    elif loader not in {*_PLAIN_LOADERS, _TOKENS_LOADER}:
        problem = f"those of its {loader[:40]}"
    elif not formats:
        problem = "ones without a data_format"
    if problem or not formats:
        return {"problem": problem}
    names = leaves(config.data_spec) if config.data_spec else []
    if len(names) != len(formats):
        raise ValueError(f"expected a data_spec of {len(formats)} leaves, got {len(names)}")
    return {"names": names, "formats": formats, "bare": loader == _TOKENS_LOADER}


def leaves(spec: str) -> list[str]:
    """Return the leaves of a tree in LitData's notation, by their paths.

    Raises:
        ValueError: the text is no such tree, or has too many leaves.
    """
    try:
        tree = msgspec.json.decode(spec.encode())
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"expected a data_spec, got {spec[:60]!r}") from error
    root = tree[1] if isinstance(tree, list) and len(tree) == 2 else tree
    found: list[str] = []
    for path in _paths(root, (), _DEPTH_MAX):
        if len(found) == _LEAVES_MAX:
            raise ValueError(f"expected at most {_LEAVES_MAX} leaves, got more")
        found.append(".".join(path) or "data")
    return found


def _paths(node: object, path: tuple[str, ...], depth: int) -> Iterator[tuple[str, ...]]:
    if not isinstance(node, dict) or depth == 0:
        raise ValueError("expected a data_spec of a few levels, got another")
    if node.get("type") is None:
        yield path
        return
    children = node.get("children_spec")
    if not isinstance(children, list):
        raise ValueError("expected children in the data_spec, got none")  # noqa: TRY004 - of the file, not of a caller
    keys = _keys(node.get("context"), len(children))
    for key, child in zip(keys, children, strict=True):
        yield from _paths(child, (*path, key), depth - 1)


def _keys(context: object, count: int) -> list[str]:
    """Return names for the children: a dict's keys, else numbers."""
    numbers = [str(number) for number in range(count)]
    if not isinstance(context, str):
        return numbers
    try:
        keys = msgspec.json.decode(context.encode(), type=list[str | int])
    except (msgspec.DecodeError, RecursionError):
        return numbers
    return [str(key) for key in keys] if len(keys) == count else numbers
