"""Recognises compressed and converted files by the ending of their name. Pure."""

from __future__ import annotations

from typing import Final

GUNZIP: Final = "gunzip"
UNZSTD: Final = "unzstd"
BUNZIP2: Final = "bunzip2"
UNXZ: Final = "unxz"
INFLATE: Final = "inflate"
UNBROTLI: Final = "unbrotli"
UNSNAPPY: Final = "unsnappy"

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
    ".zlib": ("", INFLATE),
    ".br": ("", UNBROTLI),
    ".snappy": ("", UNSNAPPY),
}
EXTENSION_CONVERTERS: Final[dict[str, str]] = {
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".csv": "csv",
    ".feather": "arrow",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".npz": "npz",
    ".parquet": "parquet",
    ".tsv": "tsv",
}
"""Conversion by the ending of a lower-case file name, for uncompressed files."""

_MAGIC: Final = {
    b"\x1f\x8b\x08": GUNZIP,
    b"\x28\xb5\x2f\xfd": UNZSTD,
    b"BZh": BUNZIP2,
    b"\xfd7zXZ\x00": UNXZ,
}
_REFUSED: Final = (".lz4", ".sz", ".z", ".lzma", ".7z", ".zip", ".rar", ".lzo")
_ENDINGS: Final = tuple(_COMPRESSED)


def uncompressed(name: str) -> tuple[str, str]:
    """Return a lower-case file name without the ending of its compression, and the conversion (empty: none)."""
    if name.endswith(_ENDINGS):
        for ending, (instead, converter) in _COMPRESSED.items():
            if name.endswith(ending):
                return name[: -len(ending)] + instead, converter
    return name, ""


def shortened() -> dict[str, str]:
    """Return the endings that stand for two, with what they are unpacked: ``.tgz`` is a ``.tar``."""
    return {
        ending: inside for ending, (inside, _) in _COMPRESSED.items() if inside and not ending.startswith(f"{inside}.")
    }


def is_refused(name: str) -> bool:
    """Whether a lower-case file name is of an archive, or of a compression that feedd does not read."""
    return name.endswith(_REFUSED)


def endings() -> dict[str, tuple[str, ...]]:
    """Return the file name endings of each compression, by its conversion."""
    found: dict[str, tuple[str, ...]] = {}
    for ending, (_, converter) in _COMPRESSED.items():
        found[converter] = (*found.get(converter, ()), ending)
    return found


def head_says(head: bytes) -> str:
    """Return the conversion that decompresses a file with these first bytes; empty: the file is not compressed.

    zlib's streams have only two distinctive bytes, which may also be the start of text.
    """
    for magic, converter in _MAGIC.items():
        if head.startswith(magic):
            return converter
    if len(head) > 1 and head[0] & 15 == 8 and head[0] >> 4 <= 7 and not int.from_bytes(head[:2]) % 31:
        return INFLATE
    return ""


def ending_of(converter: str) -> str:
    """Return the usual file name ending for a decompression, without its dot."""
    return next(ending for ending, (_, its) in _COMPRESSED.items() if its == converter)[1:].replace("zstd.bin", "zst")
