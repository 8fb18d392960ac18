"""What the end of a file's name says of how it is compressed. Pure."""

from __future__ import annotations

from typing import Final

GUNZIP: Final = "gunzip"
UNZSTD: Final = "unzstd"
BUNZIP2: Final = "bunzip2"
UNXZ: Final = "unxz"

_COMPRESSED: Final = {
    ".gz": ("", GUNZIP),
    ".tgz": (".tar", GUNZIP),
    ".zstd.bin": (".bin", UNZSTD),  # LitData's
    ".zst": ("", UNZSTD),
    ".zstd": ("", UNZSTD),
    ".tzst": (".tar", UNZSTD),
    ".bz2": ("", BUNZIP2),
    ".tbz2": (".tar", BUNZIP2),
    ".tbz": (".tar", BUNZIP2),
    ".xz": ("", UNXZ),
    ".txz": (".tar", UNXZ),
}
MADE: Final[dict[str, str]] = {
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".csv": "csv",
    ".feather": "arrow",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".libsvm": "libsvm",
    ".npz": "npz",
    ".parquet": "parquet",
    ".svm": "libsvm",
    ".tsv": "tsv",
}
"""Form by the end of a lower-case file name, for what is not compressed."""

_REFUSED: Final = (".lz4", ".br", ".snappy", ".sz", ".z", ".lzma", ".7z", ".zip", ".rar", ".lzo")
_ENDINGS: Final = tuple(_COMPRESSED)


def uncompressed(name: str) -> tuple[str, str]:
    """Return the name a lower-case file name has when it is unpacked, and by which form; empty: it is not packed."""
    if name.endswith(_ENDINGS):
        for ending, (instead, form) in _COMPRESSED.items():
            if name.endswith(ending):
                return name[: -len(ending)] + instead, form
    return name, ""


def is_refused(name: str) -> bool:
    """Whether a lower-case file name is that of an archive, or compressed in a way that is not read."""
    return name.endswith(_REFUSED)


def endings() -> dict[str, tuple[str, ...]]:
    """Return the endings of names by which each way of compressing is known, by its form."""
    found: dict[str, tuple[str, ...]] = {}
    for ending, (_, form) in _COMPRESSED.items():
        found[form] = (*found.get(form, ()), ending)
    return found
