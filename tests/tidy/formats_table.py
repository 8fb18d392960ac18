"""The table of formats in docs/guides/formats.md, made of the registries of formats and forms.

To renew it there: ``python -m tests.tidy.formats_table``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from feedd.conversion import Conversion
from feedd.dataset import sidecars as beside
from feedd.errors import FeeddError
from feedd.formats import format_registry as formats
from feedd.formats.refused import REFUSED
from feedd.formats.suffixes import endings
from feedd.tables import registry as forms
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from feedd.values import ByteRange

PAGE: Final = ROOT / "docs" / "guides" / "formats.md"
BEGIN: Final = "<!-- formats: made by python -m tests.tidy.formats_table -->"
END: Final = "<!-- end of formats -->"
_HEAD: Final = ("format", "names", "fields", "read", "fetched", "also compressed", "counts known by", "needs")

# What no registry says: the fields, in a user's words. Without a word here, a module's first line stands in.
_FIELDS: Final = {
    "arrow": "columns",
    "csv": "columns; semicolons, tabs and pipes between values are found",
    "csv-pipe": "columns, whatever the first rows look like",
    "csv-semicolon": "columns, whatever the first rows look like",
    "files": "what a sample's objects are called: `jpg`, `txt`, ...",
    "hdf5": "arrays of as many rows",
    "join": "as in RecordIO, where records lie in several parts",
    "jsonl": "`json`; its members by `key`",
    "litdata": "paths of leaves, as `index.json` has them",
    "litdata-arrow": "columns, where items are dicts of plain values",
    "lmdb": "key and value",
    "mds": "columns",
    "megatron": "`tokens`: a document to a sample",
    "npy": "rows of the array",
    "npz": "arrays of as many rows",
    "parquet": "columns",
    "recordio": "`label`, `id`, `image` of im2rec's images, else `data`; `recordio-image+`, `recordio-raw+` say which",
    "recordio-protobuf": "features, `label_` and a label's key; sparse ones have `.keys` and `.shape`",
    "safetensors": "tensors of as many rows",
    "tar": "extensions of members",
    "text": "`text`",
    "tfrecord": "features; feature lists with `.lengths`; `data` where records are no Examples",
    "tokens": "`tokens`, in windows that the recipe cuts",
    "torch": "tensors of as many rows, by their names in a dict; nothing is unpickled",
    "tsv": "columns",
}
_NAMES: Final = {
    "files": "objects that are samples",
    "megatron": "`megatron+`, `.bin` with its `.idx`",
    "tokens": "`.bin` `.npy` `tokens-llmc+`",
}  # where extensions do not choose
_SAME_AS: Final = frozenset({"recordio-image", "recordio-raw", "tokens-llmc", "tokens-npy"})  # in the row of another
_INNER: Final = frozenset({"table"})  # what feedd makes itself
_OF_MANY: Final = frozenset({"sizes.json", "shardindex.json", "_info.json"})  # index any shards
_LISTED: Final = {"files": "the listing itself", "megatron": "its `.idx`", "tokens": "the listing itself"}
_OF_ONE: Final = {"index.json": ("mds", "litdata")}


@dataclass(frozen=True)
class _Nothing:
    """An object of which nothing is here yet."""

    size_bytes: int = 1 << 30
    spans: tuple[ByteRange, ...] = ()

    @property
    def data(self) -> memoryview:
        return memoryview(b"")


def rows() -> list[tuple[str, ...]]:
    """Return the table, without its head."""
    packing = frozenset(endings())
    found = []
    for name, names in formats.extensions().items():
        if name not in _SAME_AS | _INNER:
            compressed = "yes" if _is_read_packed(name, names) else "no"
            found.append(_row(name, names, "in place", "whole", compressed, _count_files(name)))
    for name, names in forms.names().items():
        if name not in packing:
            compressed = "yes" if _is_made_packed(name, names) else "no"
            found.append(_row(name, names, "converted once per node", _fetched(name), compressed, "", _extra(name)))
    return found


def _row(name: str, names: tuple[str, ...], *others: str) -> tuple[str, ...]:
    read, fetched, compressed, *rest = others
    counts, extra = (*rest, "")[:2]
    shown = " ".join(f"`{one}`" for one in names) or _NAMES.get(name, "")
    counts = f"{counts}, `feedd index`" if counts else _LISTED.get(name, "`feedd index`")
    return (name, shown, _fields(name), read, fetched, compressed, counts, extra)


def _fields(name: str) -> str:
    if name in _FIELDS:
        return _FIELDS[name]
    kind = forms._CONVERTERS[name].module if name in forms.names() else type(formats.get(name)).__module__
    return (ast.get_docstring(ast.parse(inspect.getsource(importlib.import_module(kind)))) or "").partition("\n")[0]


def _is_read_packed(name: str, names: tuple[str, ...]) -> bool:
    """Whether a name with an ending of compression leads to the same format, made by some form."""
    shard = "s3://b/chunk-0-0.zstd.bin" if name == "litdata" else f"s3://b/a{names[0] if names else ''}.gz"
    try:
        return bool(names) and forms.conversion_for(shard) is not None and formats.format_for(shard) == name
    except FeeddError:
        return False


def _is_made_packed(name: str, names: tuple[str, ...]) -> bool:
    """Whether a name with an ending of compression, or a URL that says so, leads to the same form behind one."""
    ways = {forms.conversion_for(f"s3://b/a{one}.gz") for one in names if one.startswith(".")}
    return Conversion(f"gunzip{forms.THEN}{name}") in ways | {forms.conversion_named(f"{name}.gz")}


def _count_files(name: str) -> str:
    """Return which files beside the data tell a format's counts; empty: only feedd's own."""
    unknown = set(beside._READERS) - _OF_MANY - set(_OF_ONE)
    assert not unknown, f"say here of which formats {unknown} tells the counts"
    names = [file for file, of in _OF_ONE.items() if name in of]
    return ", ".join(f"`{file}`" for file in (names or (sorted(_OF_MANY) if name == "tar" else [])))


def _fetched(form: str) -> str:
    """Return how much of an object is fetched, as the form asks for it."""
    held = _Nothing()
    wanted = forms.first_ranges(Conversion(form), held)
    return "wanted columns" if sum(span.size_bytes for span in wanted) < held.size_bytes else "whole"


def _extra(form: str) -> str:
    """Return what is to be installed."""
    extra = forms._CONVERTERS[form].extra
    return f"`feedd[{extra}]`" if extra else ""


def table() -> str:
    """Return the table with what stands around it on the page."""
    lines = [_HEAD, tuple("---" for _ in _HEAD), *rows()]
    packed = ", ".join(f"`{ending}`" for found in endings().values() for ending in found)
    refused = ", ".join(refusal.what for refusal in REFUSED if refusal.extensions)
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"{BEGIN}\n{text}\n\nCompressed: {packed}.\n\n"
        f"Recognised and refused, with what to do instead: {refused}.\n{END}"
    )


def shown() -> str:
    """Return what the page has."""
    text = PAGE.read_text(encoding="utf-8")
    return BEGIN + text.partition(BEGIN)[2].partition(END)[0] + END


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text(encoding="utf-8").replace(shown(), table()), encoding="utf-8")
