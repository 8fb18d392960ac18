"""Finds the format of a shard, and the reader of a format."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from feedd.errors import Unsupported
from feedd.formats.lines import LinesFormat
from feedd.formats.litdata import LitDataFormat
from feedd.formats.lmdb import LmdbFormat
from feedd.formats.mds import MdsFormat
from feedd.formats.megatron import MEGATRON, MegatronFormat
from feedd.formats.packed_objects import FilesFormat
from feedd.formats.recordio import RecordIoFormat
from feedd.formats.recordio_protobuf import RecordIoProtobufFormat
from feedd.formats.refused import refuse_name
from feedd.formats.sniffed import SniffedFormat
from feedd.formats.strided import NpyFormat, SafetensorsFormat
from feedd.formats.suffixes import MADE, is_refused, uncompressed
from feedd.formats.table import TableFormat
from feedd.formats.tar import TarFormat
from feedd.formats.tfrecord import TfRecordFormat
from feedd.formats.tokens import LLMC, NPY, RAW, TokensFormat
from feedd.formats.torch_file import TorchFormat

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import ShardFormat

_ALL: Final[tuple[ShardFormat, ...]] = (
    TarFormat(),
    TfRecordFormat(),
    MdsFormat(),
    LitDataFormat(),
    RecordIoFormat("recordio"),
    RecordIoFormat("recordio-image", images=True),
    RecordIoFormat("recordio-raw", images=False),
    RecordIoProtobufFormat(),
    LinesFormat("text", "text", "text"),
    LinesFormat("jsonl", "json", "json"),
    *(TokensFormat(kind) for kind in (RAW, LLMC, NPY)),
    MegatronFormat(),
    TableFormat(),
    FilesFormat(),
    LmdbFormat(),
    NpyFormat(),
    SafetensorsFormat(),
    TorchFormat(),
)
AUTO: Final = "auto"
"""In place of a format's name: the first bytes of the shard decide."""

_FORMATS: Final[dict[str, ShardFormat]] = {one.name: one for one in _ALL}
_BY_EXTENSION: Final = {
    ".tar": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".mds": "mds",
    ".rec": "recordio",
    ".recordio": "recordio",
    ".pbr": "recordio-protobuf",
    ".protobuf": "recordio-protobuf",
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".lmdb": "lmdb",
    ".mdb": "lmdb",
    ".npy": "npy",
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
}
_WITH_PARAMS: Final[dict[str, Callable[[str], ShardFormat]]] = {
    "mds": MdsFormat,
    "litdata": LitDataFormat,
    MEGATRON: MegatronFormat,
    **{kind: functools.partial(TokensFormat, kind) for kind in (RAW, LLMC, NPY)},
}
"""Formats that accept parameters from files beside a shard: ``NAME:JSON``."""
_CHUNK: Final = re.compile(r"chunk-\d+-\d+\.bin")  # LitData's names of shards
_PART_OF: Final = re.compile(r"-\d+-of-\d+$")  # TensorFlow's numbering of the files of a dataset


def format_for(url: str) -> str:
    """Return the name of a shard's format by its extension; for a compressed shard, by the extension of its content.

    Return ``auto`` if the extension is unknown: the first bytes then decide.

    Raises:
        Unsupported: this version does not read the format; the message lists the known extensions.
    """
    given_name = url.rsplit("/", 1)[-1].lower()
    file_name = _PART_OF.sub("", uncompressed(_PART_OF.sub("", given_name))[0])
    if _CHUNK.fullmatch(file_name):
        return "litdata"
    for extension, name in _BY_EXTENSION.items():
        if file_name.endswith(extension):
            return name
    refuse_name(file_name, url, _known())
    if is_refused(file_name):
        raise Unsupported(
            f"expected a shard ending in {_known()}, got {given_name!r}",
            object=url,
            hint="unpack it, or compress it with gzip, zstd, bzip2 or xz instead",
            stage="decode",
        )
    return AUTO


def get(name: str) -> ShardFormat:
    """Return the reader of a format.

    Args:
        name: name of the format; parameters may follow a colon.

    Raises:
        Unsupported: no format has that name; the message lists all names.
    """
    kind, _, params = name.partition(":")
    if params and kind in _WITH_PARAMS:
        return _with_params(kind, params)
    if name == AUTO:
        return SniffedFormat(get, _known())
    try:
        return _FORMATS[name]
    except KeyError:
        known = ", ".join(_FORMATS)
        raise Unsupported(f"expected one of the formats {known}, got {name!r}", object=name, stage="decode") from None


def extensions() -> dict[str, tuple[str, ...]]:
    """Return the file name endings of each format."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(_FORMATS, ())
    for extension, name in _BY_EXTENSION.items():
        found[name] = (*found.get(name, ()), extension)
    found["litdata"] = (*found["litdata"], "chunk-*.bin")
    return found


@functools.lru_cache(maxsize=64)
def _with_params(kind: str, params: str) -> ShardFormat:
    return _WITH_PARAMS[kind](params)


def _known() -> str:
    return " or ".join((*_BY_EXTENSION, *MADE))
