"""Which objects are samples, or files of samples, by their extension. Pure."""

from __future__ import annotations

import re
from typing import Final

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

_EXTENSIONS: Final = {
    PRIMARY: "jpg jpeg png webp bmp gif tif tiff ppm pgm jp2 avif heic wav flac mp3 ogg opus m4a aac mp4 webm mkv avi "
    "mov npy",
    LINES: "txt",
    COMPANION: "text transcript caption json jsn cls cls2 id index inx int xml",
    SHARD: "tar tgz tzst tbz tbz2 txz lz4 tfrecord tfrecords mds rec recordio pbr protobuf arrow arrows feather "
    "parquet npz h5 hdf5 lmdb mdb bin idx safetensors",
}
_KINDS: Final = {extension: kind for kind, names in _EXTENSIONS.items() for extension in names.split()}
_ALONE: Final = frozenset(
    {"jsonl", "ndjson", "csv", "tsv", "svm", "libsvm", "pt", "pth", "zip"}
)  # not data among samples
_ONLY_LAST: Final = frozenset({"br", "snappy"})  # elsewhere in a name, br is Breton or Brazil
_ANYWHERE: Final = frozenset({"gz", "bz2", "xz", "zst", "zstd", "zlib"})
_COMPRESSED: Final = _ANYWHERE | _ONLY_LAST
_NUMBERED: Final = re.compile(r"(.+)-\d+-of-\d+")  # ``x.tfrecord-00000-of-00128``
_MANY: Final = frozenset({SHARD, LINES})


def split_name(key: str) -> tuple[str, str]:
    """Return a key without its extension, and the extension in lower case; empty if there is none.

    A name that begins with a dot has no extension.
    """
    stem, dot, extension = key.rpartition(".")
    if not dot or "/" in extension or not stem or stem[-1] == "/":
        return key, ""
    return stem, extension.lower()


def kind_of(stem: str, extension: str) -> int:
    """Return the kind of an object whose key ``split_name`` has split."""
    if stem[stem.rfind("/") + 1 :].startswith("."):  # left by file managers
        return OTHER
    kind = _KINDS.get(extension)
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
    return kind_of(stem, extension) in {PRIMARY, SHARD} or extension in _ALONE


def is_table(key: str) -> bool:
    """Whether an object's name is that of lines or rows of text."""
    return split_name(key)[1] in {"jsonl", "ndjson", "csv", "tsv"}


def is_known(name: str) -> bool:
    """Whether a lower-case file name has a known extension, also numbered or compressed."""
    parts = re.split(r"[.-]", name)[1:]
    if any(part in _KINDS or part in _ALONE or part in _ANYWHERE for part in parts):
        return True
    extension = split_name(name)[1]
    numbered = _NUMBERED.fullmatch(extension)
    return (numbered[1] if numbered else extension) in _ONLY_LAST
