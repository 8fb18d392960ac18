"""What the end of a file's name says of how it is compressed. Pure."""

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

_MAGIC: Final = {
    b"\x1f\x8b\x08": GUNZIP,
    b"\x28\xb5\x2f\xfd": UNZSTD,
    b"BZh": BUNZIP2,
    b"\xfd7zXZ\x00": UNXZ,
}
_REFUSED: Final = (".lz4", ".sz", ".z", ".lzma", ".7z", ".zip", ".rar", ".lzo")
_ENDINGS: Final = tuple(_COMPRESSED)


def uncompressed(name: str) -> tuple[str, str]:
    """Return the name a lower-case file name has when it is unpacked, and by which form; empty: it is not packed."""
    if name.endswith(_ENDINGS):
        for ending, (instead, form) in _COMPRESSED.items():
            if name.endswith(ending):
                return name[: -len(ending)] + instead, form
    return name, ""


def shortened() -> dict[str, str]:
    """Return the endings that stand for two, with what they are unpacked: ``.tgz`` is a ``.tar``."""
    return {
        ending: inside for ending, (inside, _) in _COMPRESSED.items() if inside and not ending.startswith(f"{inside}.")
    }


def is_refused(name: str) -> bool:
    """Whether a lower-case file name is that of an archive, or compressed in a way that is not read."""
    return name.endswith(_REFUSED)


def endings() -> dict[str, tuple[str, ...]]:
    """Return the endings of names by which each way of compressing is known, by its form."""
    found: dict[str, tuple[str, ...]] = {}
    for ending, (_, form) in _COMPRESSED.items():
        found[form] = (*found.get(form, ()), ending)
    return found


def head_says(head: bytes) -> str:
    """Return the form that unpacks what begins so; empty: it does not begin like anything compressed.

    Two bytes are all that zlib's streams begin with: of what may be text they say little.
    """
    for magic, form in _MAGIC.items():
        if head.startswith(magic):
            return form
    if len(head) > 1 and head[0] & 15 == 8 and head[0] >> 4 <= 7 and not int.from_bytes(head[:2]) % 31:
        return INFLATE
    return ""


def ending_of(form: str) -> str:
    """Return the usual ending of what a form unpacks, without its dot."""
    return next(ending for ending, (_, its) in _COMPRESSED.items() if its == form)[1:].replace("zstd.bin", "zst")
