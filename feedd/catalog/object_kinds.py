"""The kinds of objects by extension: samples, or files of samples. Pure, except that it reads installed formats."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from feedd.dataset.object_names import split_name
from feedd.formats.format_registry import specs
from feedd.formats.format_spec import AmongSamples
from feedd.formats.suffixes import EXTENSION_CONVERTERS, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIMARY: Final = 1
"""A sample by itself: an image, a sound, a video, an array."""
COMPANION: Final = 2
"""Describes a sample; with a primary object of the same name it is part of that sample."""
SHARD: Final = 3
"""Holds many samples."""
LINES: Final = 4
"""A companion too; without an object that it could belong to, a shard of lines."""
OTHER: Final = 0
"""A table about samples, a note, or an unknown object; among samples it is not data."""

_SAMPLES: Final = (
    "jpg jpeg png webp bmp gif tif tiff ppm pgm jp2 avif heic wav flac mp3 ogg opus m4a aac mp4 webm mkv avi mov"
)
_COMPANIONS: Final = "text transcript caption json jsn cls cls2 id index inx int xml"
_OTHER_SHARDS: Final = "bin idx lz4"  # tokens and their index; names that are refused
_TABLES: Final = frozenset({"csv", "tsv"})
_OTHERS_ALONE: Final = frozenset({"zip", "libsvm", "svm"})
_ONLY_LAST: Final = frozenset({"br", "snappy"})  # elsewhere in a name, br is Breton or Brazil
_ANYWHERE: Final = frozenset({"gz", "bz2", "xz", "zst", "zstd", "zlib"})
_COMPRESSED: Final = _ANYWHERE | _ONLY_LAST
_WITH_HEADS: Final = (
    "tar tgz parquet arrow ipc feather npy npz h5 hdf5 mds safetensors pt pth mdb tokens-llmc tokens-npy"
)
_NEVER_EMPTY: Final = frozenset(_WITH_HEADS.split()) | _ANYWHERE
"""Formats, and extensions, of which no file without bytes can be read. Others may have no lines or records."""

_NUMBERED: Final = re.compile(r"(.+)-\d+-of-\d+")  # ``x.tfrecord-00000-of-00128``
_AMONG_SAMPLES: Final = {
    AmongSamples.SHARD: SHARD,
    AmongSamples.SAMPLE: PRIMARY,
    AmongSamples.COMPANION: LINES,
}
_MANY: Final = frozenset({SHARD, LINES})


@functools.cache
def _kinds() -> Mapping[str, int]:
    """Return the kind of each known extension."""
    found = dict.fromkeys(_SAMPLES.split(), PRIMARY) | dict.fromkeys(_COMPANIONS.split(), COMPANION)
    found |= dict.fromkeys(_OTHER_SHARDS.split(), SHARD)
    for spec in specs():
        kind = _AMONG_SAMPLES.get(spec.among_samples)
        found |= {_last(extension): kind for extension in spec.extensions if kind is not None}
    found |= {_last(extension): SHARD for extension in EXTENSION_CONVERTERS if _last(extension) not in _TABLES}
    inner_kinds = {short: found.get(_last(inner)) for short, inner in shortened().items()}
    return found | {_last(short): SHARD for short, kind in inner_kinds.items() if kind == SHARD}


@functools.cache
def _alone() -> frozenset[str]:
    """Return the extensions of formats that hold no data if they lie among samples."""
    ignored = {_last(one) for spec in specs() for one in spec.extensions if spec.among_samples is AmongSamples.IGNORED}
    return _OTHERS_ALONE | _TABLES | ignored


def _last(extension: str) -> str:
    return extension.rpartition(".")[2]


def kind_of(stem: str, extension: str) -> int:
    """Return the kind of an object whose key ``split_name`` has split."""
    if stem[stem.rfind("/") + 1 :].startswith("."):  # left by file managers
        return OTHER
    kind = _kinds().get(extension)
    if kind is not None:
        return kind
    numbered = _NUMBERED.fullmatch(extension)
    if numbered is not None:  # one of several files of many samples, if the extension is known
        return SHARD if kind_of(stem, numbered[1]) in _MANY else OTHER
    if extension in _COMPRESSED:  # a compressed table about samples is no more data than a plain one
        return SHARD if kind_of(*split_name(stem)) == SHARD else OTHER
    return OTHER


def looks_like_data(key: str) -> bool:
    """Whether an object's name is that of a sample, a shard or a table."""
    stem, extension = split_name(key)
    if stem[stem.rfind("/") + 1 :].startswith("."):
        return False
    return kind_of(stem, extension) in {PRIMARY, SHARD} or extension in _alone()


def is_table(key: str) -> bool:
    """Whether an object's name is that of lines or rows of text."""
    return split_name(key)[1] in {"jsonl", "ndjson", "csv", "tsv"}


def is_known(name: str) -> bool:
    """Whether a lower-case file name has a known extension, also numbered or compressed."""
    parts = re.split(r"[.-]", name)[1:]
    if any(part in _kinds() or part in _alone() or part in _ANYWHERE for part in parts):
        return True
    extension = split_name(name)[1]
    numbered = _NUMBERED.fullmatch(extension)
    return (numbered[1] if numbered else extension) in _ONLY_LAST


def needs_bytes(key: str, named: str = "") -> bool:
    """Whether a shard without bytes cannot be read.

    Args:
        key: its key.
        named: its format, if the URL names one.
    """
    extension = key[key.rfind("/") + 1 :].lower().rpartition(".")[2].partition("-")[0]  # x.mds-00000-of-00128
    return (_last(named) or extension) in _NEVER_EMPTY
