"""Which framing a shard has, and the reader of each framing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from feedd.decode.formats.files import FilesFormat
from feedd.decode.formats.lines import LinesFormat
from feedd.decode.formats.mds import MdsFormat
from feedd.decode.formats.table import TableFormat
from feedd.decode.formats.tar import TarFormat
from feedd.decode.formats.tfrecord import TfRecordFormat
from feedd.decode.forms.registry import EXTENSIONS as FORM_EXTENSIONS
from feedd.decode.forms.suffixes import is_refused, uncompressed
from feedd.errors import Unsupported

if TYPE_CHECKING:
    from feedd.protocols import ShardFormat

_ALL: Final[tuple[ShardFormat, ...]] = (
    TarFormat(),
    TfRecordFormat(),
    MdsFormat(),
    LinesFormat("text", "text", "text"),
    LinesFormat("jsonl", "json", "json"),
    TableFormat(),
    FilesFormat(),
)
_FORMATS: Final[dict[str, ShardFormat]] = {one.name: one for one in _ALL}
_BY_EXTENSION: Final = {
    ".tar": "tar",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".mds": "mds",
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_PART_OF: Final = re.compile(r"-\d+-of-\d+$")  # how TensorFlow's tools number the files of one data set


def format_for(url: str) -> str:
    """Return the name of the format of a shard, by its extension; of a compressed one, by that of what is in it.

    Raises:
        Unsupported: none that this version reads; the message lists those it does.
    """
    given_name = url.rsplit("/", 1)[-1].lower()
    file_name = _PART_OF.sub("", uncompressed(_PART_OF.sub("", given_name))[0])
    for extension, name in _BY_EXTENSION.items():
        if file_name.endswith(extension):
            return name
    hint = "name a prefix that holds shards"
    if is_refused(file_name):
        hint = "unpack it, or compress it with gzip, zstd, bzip2 or xz instead"
    raise Unsupported(
        f"expected a shard ending in {' or '.join((*_BY_EXTENSION, *FORM_EXTENSIONS))}, got {given_name!r}",
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
