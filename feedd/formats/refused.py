"""Kinds of files that are recognised by name or first bytes but not read, with advice for each."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from feedd.errors import BadShard, Unsupported
from feedd.formats.suffixes import BUNZIP2, GUNZIP, INFLATE, UNXZ, UNZSTD, ending_of, head_says


class Refusal(NamedTuple):
    """A kind of file that is not read.

    Attributes:
        what: name of the kind.
        extensions: file name endings, in lower case.
        magic: regular expression for the first bytes; empty: they are not distinctive.
        hint: what the user can do.
    """

    what: str
    extensions: tuple[str, ...]
    magic: bytes
    hint: str


_NAME: Final = (
    "name the format before the URL, parquet+s3://bucket/ or tar.gz+s3://bucket/, or in the file's ending, such as "
    ".tar.gz, .jsonl.zst or .parquet: feedd then reads it"
)
_TORCH: Final = "name it .pt if it holds plain tensors: feedd then reads it, without unpickling"
_PICKLE: Final = "feedd never unpickles: save tensors as safetensors, as .npy members of tar shards, or with torch.save"
_LIBSVM: Final = (
    "write it as Parquet with columns label, indices and values, or read each line as a sample: "
    'text+s3://bucket/prefix/ with fields={"text": "str"}'
)
REFUSED: Final = (
    Refusal(
        "an FFCV file",
        (".beton",),
        rb"\x02\x00[\x01-\x40]\x00\x00\x00[\x00-\xff]{2}",
        "write the samples as tar, MDS or TFRecord shards: only FFCV can read FFCV's pages",
    ),
    Refusal("a PyTorch checkpoint", (".ckpt",), rb"PK\x03\x04[\x00-\xff]{26}[^/\x00]{1,200}/data\.pkl", _TORCH),
    Refusal("libsvm's text", (".libsvm", ".svm"), b"", _LIBSVM),
    Refusal("a pickle", (".pkl", ".pickle"), rb"\x80[\x02-\x05][\x95cK\]}()\x8c]", _PICKLE),
    Refusal("gzip", (), rb"\x1f\x8b\x08", _NAME),
    Refusal("zstd", (), rb"\x28\xb5\x2f\xfd", _NAME),
    Refusal("bzip2", (), rb"BZh[1-9]1AY", _NAME),
    Refusal("xz", (), rb"\xfd7zXZ\x00", _NAME),
    Refusal("lz4", (), rb"\x04\x22\x4d\x18", "unpack it, or compress it with gzip, zstd, bzip2 or xz instead"),
    Refusal("Parquet", (), rb"PAR[1E]", _NAME),
    Refusal("Arrow", (), rb"ARROW1|\xff{4}[\x00-\xff]{4}", _NAME),
    Refusal("HDF5", (), rb"\x89HDF\r\n\x1a\n", _NAME),
    Refusal(
        "a zip", (), rb"PK\x03\x04", "name it .npz if it is one; else unpack it, and pack its members as tar shards"
    ),
    Refusal("a .npy array", (), rb"\x93NUMPY", _NAME),
)
"""The first entry that matches decides."""

WHAT: Final = {GUNZIP: "gzip", UNZSTD: "zstd", BUNZIP2: "bzip2", UNXZ: "xz", INFLATE: "a zlib stream"}
_PACKED: Final = "it begins like"
_HEAD_BYTES: Final = 512
_MAGIC_BYTES: Final = 8


def refuse_name(file_name: str, url: str, known: str) -> None:
    """Refuse a file by its name.

    Args:
        file_name: name in lower case.
        url: URL of the file, for errors.
        known: formats that are read, for the message.

    Raises:
        Unsupported: the name is of a refused kind.
    """
    for refusal in REFUSED:
        if file_name.endswith(refusal.extensions):
            raise _unsupported(refusal, url, known)


def refuse_bytes(head: bytes, url: str, known: str) -> None:
    """Refuse a file by its first bytes, with the arguments of ``refuse_name``.

    Raises:
        Unsupported: the bytes are of a refused kind.
    """
    for refusal in REFUSED:
        if refusal.magic and re.match(refusal.magic, head[:_HEAD_BYTES]):
            raise _unsupported(refusal, url, known)


def say_packed(error: BadShard, head: bytes, format_name: str) -> None:
    """Add a hint to an error about a shard if the shard begins like a compressed file.

    Args:
        error: the error that the shard is not of its format.
        head: the shard's first bytes.
        format_name: format as which the shard was read.
    """
    converter = head_says(head)
    if converter and not error.hint.startswith(_PACKED):
        ending = ending_of(converter)
        name = format_name.partition(":")[0]
        error.hint = (
            f"{_PACKED} {WHAT[converter]}: if so, write the format before the URL, {name}.{ending}+s3://bucket/prefix/,"
            f" or end the file's name in .{ending}"
        )


def refuse_packed(data: memoryview, url: str, format_name: str) -> None:
    """Refuse a shard that begins like a compressed file, for formats whose files never begin like that.

    Raises:
        BadShard: the shard is compressed.
    """
    head = bytes(data[:_MAGIC_BYTES])
    converter = head_says(head)
    if converter and converter != INFLATE:  # the two bytes of zlib may be text
        error = BadShard(f"expected {format_name}, got {WHAT[converter]}", object=url, stage="decode")
        say_packed(error, head, format_name)
        raise error


def _unsupported(refusal: Refusal, url: str, known: str) -> Unsupported:
    message = f"expected a shard ending in {known}, got {refusal.what}"
    return Unsupported(message, object=url, hint=refusal.hint, stage="decode")
