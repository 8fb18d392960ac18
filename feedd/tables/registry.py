"""Finds the conversion that an object needs, by its name or its first bytes, and the converter for it."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import msgspec

from feedd.conversion import PARAMS_BYTES_MAX, Conversion
from feedd.errors import Unsupported
from feedd.formats import format_registry as formats
from feedd.formats.format_registry import format_for
from feedd.formats.outline import REQUESTS_MAX, is_outlined
from feedd.formats.suffixes import (
    BUNZIP2,
    EXTENSION_CONVERTERS,
    GUNZIP,
    INFLATE,
    UNBROTLI,
    UNSNAPPY,
    UNXZ,
    UNZSTD,
    endings,
    head_says,
    uncompressed,
)
from feedd.recipe.predecoded import RowsParams, rows_text
from feedd.tables import columns
from feedd.tables.columns import ROWS_ONLY, head_params, loaded
from feedd.tables.ranges import first_of_any, first_of_arrow, first_of_npz, first_of_parquet, first_of_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from feedd.protocols import PartialObject, ShardConverter
    from feedd.tables.compression import CompressedConverter
    from feedd.values import ByteRange


COUNT: Final = "count"
"""The conversion of a shard's headers to the number of its samples; it is requested, and never derived from a name."""

PARQUET: Final = "parquet"
_REQUESTS_MAX: Final = 16

_COMPRESSION: Final = "feedd.tables.compression"


@dataclass(frozen=True, slots=True)
class ConversionSpec:
    """One conversion. The extensions that select it are in ``formats.suffixes``.

    Attributes:
        name: of the converter, as in ``Conversion``.
        module: where the converter is; imported at first use.
        attribute: its name there.
        extra: the extra to install if a library of the module is missing; empty: the module needs none to be imported.
        first: returns the ranges to fetch of an object of a size, with parameters, before the converter is asked;
            None: the converter itself tells them.
        unpacks: it only decompresses, and another conversion may follow.
        columnar: it makes a table, and its parameters may name columns (``tables.columns.params_of``).
        typed: its parameters may also state column types, because text does not (``columns.typed_params``).
        outlined: the beginning or the footer of an object tells its columns.
        counts_apart: the arrays of one object may differ in their numbers of rows.
        magic: what the bytes of its objects begin with; empty: that tells nothing.
        url_names: what a URL may have in place of a format, and the parameters that this means.
    """

    name: str
    module: str
    attribute: str
    extra: str = ""
    first: Callable[[int, str], tuple[ByteRange, ...]] | None = first_of_any
    unpacks: bool = False
    columnar: bool = False
    typed: bool = False
    outlined: bool = False
    counts_apart: bool = False
    magic: tuple[bytes, ...] = ()
    url_names: tuple[tuple[str, str], ...] = ()


_JOINS: Final = (("recordio-join", ""), ("recordio-join-dmlc", "dmlc"), ("recordio-join-concat", "concat"))
_table: Final = partial(ConversionSpec, columnar=True)
_arrow: Final = partial(_table, module="feedd.tables.arrow", extra="parquet")
_text: Final = partial(
    _table, module="feedd.tables.delimited", extra="parquet", first=first_of_text, typed=True, outlined=True
)
_unpack: Final = partial(ConversionSpec, module=_COMPRESSION, unpacks=True)
_SPECS: Final = (
    _unpack(GUNZIP, attribute="GUNZIP_CONVERTER"),
    _unpack(BUNZIP2, attribute="BUNZIP2_CONVERTER"),
    _unpack(UNXZ, attribute="UNXZ_CONVERTER"),
    _unpack(INFLATE, attribute="INFLATE_CONVERTER"),
    _unpack(UNZSTD, attribute="UNZSTD_CONVERTER"),
    _unpack(UNBROTLI, attribute="UNBROTLI_CONVERTER"),
    _unpack(UNSNAPPY, attribute="UNSNAPPY_CONVERTER"),
    ConversionSpec("join", "feedd.tables.recordio_join", "JOIN_CONVERTER", url_names=_JOINS),
    _arrow("litdata-arrow", attribute="LITDATA_ARROW_CONVERTER", url_names=(("litdata-arrow", ""),)),
    _arrow("arrow", attribute="ARROW_CONVERTER", first=first_of_arrow, outlined=True, magic=(b"ARROW1",)),
    _text("csv", attribute="CSV_CONVERTER"),
    _text("csv-pipe", attribute="PIPE_CONVERTER"),
    _text("csv-semicolon", attribute="SEMICOLON_CONVERTER"),
    _table(
        "hdf5",
        module="feedd.tables.hdf5",
        attribute="HDF5_CONVERTER",
        extra="hdf5",
        counts_apart=True,
        magic=(b"\x89HDF\r\n\x1a\n",),
    ),
    _table("npz", module="feedd.tables.npz", attribute="NPZ_CONVERTER", first=first_of_npz, counts_apart=True),
    _table(
        PARQUET,
        module="feedd.tables.parquet",
        attribute="PARQUET_CONVERTER",
        extra="parquet",
        first=first_of_parquet,
        outlined=True,
        magic=(b"PAR1", b"PARE"),
    ),
    _text("tsv", attribute="TSV_CONVERTER"),
)
_CONVERTERS: Final = {spec.name: spec for spec in _SPECS}

READY: Final = "rows"
"""The conversion to predecoded images; it is requested, and never derived from an object's name or bytes."""

HEAD: Final = "head"
"""The conversion to a shard's first samples; it is requested too."""

HEAD_BYTES: Final = (4 << 20, 32 << 20)
"""Bytes at an object's start in which first samples are searched; the second size is used if the first has none. An
object up to the first size does not need this conversion."""

_OWN: Final = {
    READY: ConversionSpec(READY, "feedd.tables.predecode", "ROWS_CONVERTER"),
    HEAD: ConversionSpec(HEAD, "feedd.tables.outlines", "HEAD_CONVERTER", first=None),
    COUNT: ConversionSpec(COUNT, "feedd.tables.outlines", "COUNT_CONVERTER", first=None),
}

_BY_FORMAT: Final = {name: Conversion(spec.name, params) for spec in _SPECS for name, params in spec.url_names}
"""Conversion by the name that a URL has in place of a format; its output states its own format."""

THEN: Final = "+"
"""Separates the conversion that decompresses an object from the conversion of its content."""

DETECT_BYTES: Final = 512
"""Bytes at an object's start that determine its conversion if its name does not."""

_MAGIC: Final = {magic: spec.name for spec in _SPECS for magic in spec.magic}
_ZIP, _ZIP_NAME_AT, _ZIP_HEAD_BYTES = b"PK\x03\x04", 26, 30
_STREAM: Final = b"\xff\xff\xff\xff"
_ARROW_ALIGN: Final = 8

_PART_OF: Final = re.compile(r"-\d+-of-\d+$")  # as in formats.registry
_EXTENSIONS: Final = tuple(EXTENSION_CONVERTERS)
_NAMED: Final = frozenset((*EXTENSION_CONVERTERS.values(), *(spec.name for spec in _SPECS if spec.typed)))


def conversion_for(url: str) -> Conversion | None:
    """Return the conversion that a shard needs, by its extension; None: it needs none.

    Files of a dataset may have their number after the extension: ``x.parquet-00000-of-00010``.
    """
    name = _converter_for(url)
    return Conversion(name) if name else None


def _converter_for(url: str) -> str:
    name = _PART_OF.sub("", url.rsplit("/", 1)[-1].lower())
    if name.endswith(_EXTENSIONS):
        return next(converter for extension, converter in EXTENSION_CONVERTERS.items() if name.endswith(extension))
    inside, packed = uncompressed(name)
    if not packed:
        return ""
    inside = _PART_OF.sub("", inside)
    if inside.endswith(_EXTENSIONS):
        return f"{packed}{THEN}{_converter_for(inside)}"
    try:
        format_for(inside)
    except Unsupported:
        return ""  # the name is refused before the object is fetched
    return packed


def conversion_named(name: str, url: str = "") -> Conversion | None:
    """Return the conversion that a URL names in place of a format; None: the name is no conversion.

    Args:
        name: the name in the URL: ``csv``, ``tfrecord.gz``, or only ``gz``.
        url: URL of the object: its ending may state that it is compressed.
    """
    if name in _BY_FORMAT:
        return _BY_FORMAT[name]
    inside, said = uncompressed(f".{name}")
    inner = inside[1:]
    packed = said or (packing_of(url) if url else "")
    if inner in _NAMED:
        return Conversion(f"{packed}{THEN}{inner}" if packed else inner)
    if said and not inner:
        own = _converter_for(url) if url else ""
        return Conversion(f"{said}{THEN}{own}" if own in _NAMED else said)
    return Conversion(said, inner) if said and inner in formats.extensions() else None


def packing_of(url: str) -> str:
    """Return the converter that decompresses an object, by its ending, or an empty string if it is not compressed."""
    return uncompressed(_PART_OF.sub("", url.rsplit("/", 1)[-1].lower()))[1]


def conversion_of(name: str, url: str) -> Conversion | None:
    """Return the conversion that a shard needs; None: it needs none.

    Args:
        name: the format that the user named; empty: none.
        url: URL of the object.
    """
    if not name:
        return conversion_for(url)
    named = conversion_named(name, url)
    if named is not None:
        return named
    packed = packing_of(url)
    in_breton = name == "text" and packed == UNBROTLI and says_no_format(url)
    return Conversion(packed) if packed and not in_breton else None


def says_no_format(url: str) -> bool:
    """Whether an object's name, without its compression ending, names no format and is not refused either."""
    try:
        return format_for(url) == formats.AUTO
    except Unsupported:
        return False


def is_unsaid(url: str) -> bool:
    """Whether an object's name gives neither format nor conversion, so that its first bytes must."""
    return not _converter_for(url) and says_no_format(url)


def conversion_by_head(head: bytes, size_bytes: int) -> Conversion | None:
    """Return the conversion that an object needs; None: it needs none, or its bytes do not determine one.

    Args:
        head: its first bytes: ``DETECT_BYTES``, or all if the object is shorter.
        size_bytes: size of the object.
    """
    name = _converter_by_head(head, size_bytes)
    return Conversion(name) if name else None


def _converter_by_head(head: bytes, size_bytes: int) -> str:
    for magic, converter in _MAGIC.items():
        if head.startswith(magic):
            return converter
    if head.startswith(_ZIP) and len(head) > _ZIP_HEAD_BYTES:
        name_bytes = int.from_bytes(head[_ZIP_NAME_AT : _ZIP_NAME_AT + 2], "little")
        name = head[_ZIP_HEAD_BYTES : _ZIP_HEAD_BYTES + name_bytes]
        return "npz" if name.endswith(b".npy") else ""  # NumPy's zips contain only .npy, and other zips do not begin so
    if head.startswith(_STREAM):
        message_bytes = int.from_bytes(head[4:8], "little")
        told = 0 < message_bytes < size_bytes and not message_bytes % _ARROW_ALIGN
        return "arrow" if told else ""
    packed = head_says(head)
    return packed if packed != INFLATE else ""  # zlib's two bytes of magic are too weak


def check_named(name: str) -> None:
    """Check the name that a URL has in place of a format.

    Raises:
        Unsupported: no format and no conversion has that name; the message lists the existing names.
    """
    if conversion_named(name) is not None:
        return
    try:
        formats.get(name)
    except Unsupported as error:
        known = ", ".join(sorted({*formats.extensions(), *_NAMED, *_BY_FORMAT} - {"table"}))
        raise Unsupported(
            f"expected one of the formats {known}, got {name!r}",
            object=name,
            hint="for compressed objects: tfrecord.gz, csv.zst",
            stage="decode",
        ) from error


def _spec_of(conversion: Conversion | None) -> ConversionSpec | None:
    """Return the conversion of an object's content, after it was decompressed; None: there is none."""
    return None if conversion is None else _CONVERTERS.get(conversion.name.rpartition(THEN)[2])


def is_columnar(conversion: Conversion | None) -> bool:
    """Whether a conversion makes tables, of which only some columns may be wanted."""
    spec = _spec_of(conversion)
    return spec is not None and spec.columnar


def is_delimited(conversion: Conversion | None) -> bool:
    """Whether a conversion reads text whose column types may be stated."""
    spec = _spec_of(conversion)
    return spec is not None and spec.typed


def counts_apart(conversion: Conversion | None) -> bool:
    """Whether a conversion reads only some arrays of an object; the other arrays may have other numbers of rows."""
    spec = _spec_of(conversion)
    return conversion is not None and bool(conversion.params) and spec is not None and spec.counts_apart


def is_unpacked(name: str) -> bool:
    """Whether a converter does not begin by decompressing."""
    spec = _CONVERTERS.get(name.partition(THEN)[0])
    return spec is None or not spec.unpacks


def grows(conversion: Conversion | None) -> bool:
    """Whether a conversion may make its table some rows at a time (``TableReader.make_groups``)."""
    return conversion is not None and conversion.name == PARQUET


def is_ready(conversion: Conversion | None) -> bool:
    """Whether a conversion predecodes images."""
    return conversion is not None and conversion.name.rpartition(THEN)[2] == READY


def is_head(conversion: Conversion | None) -> bool:
    """Whether a conversion makes a shard of an object's first samples."""
    return conversion is not None and conversion.name == HEAD


def predecode_conversion(conversion: Conversion | None, params: str) -> Conversion | None:
    """Return a shard's conversion with predecoded images; None: there is none.

    Args:
        conversion: the shard's conversion without that; None if it has none.
        params: see ``recipe.predecoded.rows_params``.
    """
    if conversion is None:
        return Conversion(READY, params)
    if not only_unpacks(conversion) or conversion.params:
        return None
    return Conversion(f"{conversion.name}{THEN}{READY}", params)


def is_outline(conversion: Conversion | None) -> bool:
    """Whether ``head_conversion`` returned a conversion."""
    return is_head(conversion) or (
        conversion is not None and is_columnar(conversion) and columns.is_head(conversion.params)
    )


def lists_columns(conversion: Conversion | None) -> bool:
    """Whether ``head_conversion`` lists the same columns and encodings as the whole shard has."""
    spec = None if conversion is None else _CONVERTERS.get(conversion.name)
    return spec is not None and spec.outlined and not spec.typed


def head_conversion(conversion: Conversion | None, format_name: str) -> Conversion | None:
    """Return the conversion of an object's first bytes or footer; None: the whole object is needed.

    Args:
        conversion: the shard's conversion; None if it has none.
        format_name: format of the object, if it has no conversion.
    """
    if conversion is None:
        fits = len(format_name.encode()) <= PARAMS_BYTES_MAX
        return Conversion(HEAD, format_name) if fits and _has_first_samples(format_name) else None
    spec = _CONVERTERS.get(conversion.name)
    return Conversion(conversion.name, head_params(conversion.params)) if spec is not None and spec.outlined else None


def _has_first_samples(format_name: str) -> bool:
    kind = format_name.partition(":")[0]
    spec = formats.find(kind)
    return kind == formats.AUTO or (spec is not None and spec.first_samples is not None)


def only_unpacks(conversion: Conversion | None) -> bool:
    """Whether a conversion only decompresses; the object's name then determines the format."""
    spec = None if conversion is None else _CONVERTERS.get(conversion.name)
    return spec is not None and spec.unpacks


def count_conversion(conversion: Conversion | None, format_name: str) -> Conversion | None:
    """Return the conversion of an object's headers to the number of its samples; None: the whole object is needed.

    Args:
        conversion: the shard's conversion; None if it has none.
        format_name: format of the object, if it has no conversion.
    """
    spec = None if conversion is not None else formats.find(format_name.partition(":")[0])
    fits = len(format_name.encode()) <= PARAMS_BYTES_MAX
    return Conversion(COUNT, format_name) if spec is not None and fits and is_outlined(spec) else None


def only_counts(conversion: Conversion | None) -> bool:
    """Whether a conversion reads few bytes of an object, and never the whole."""
    if conversion is None:
        return False
    return conversion.name == COUNT or (conversion.name == PARQUET and conversion.params == ROWS_ONLY)


def requests_max(name: str) -> int:
    """Return how many times a converter may ask for further ranges of an object."""
    return REQUESTS_MAX if name == COUNT else _REQUESTS_MAX


def undecoded(conversion: Conversion) -> Conversion:
    """Return a conversion to predecoded images that keeps every sample encoded; return other conversions unchanged."""
    if not is_ready(conversion):
        return conversion
    asked = msgspec.json.decode(conversion.params.encode(), type=RowsParams)
    return Conversion(conversion.name, rows_text(msgspec.structs.replace(asked, limit_bytes=0)))


def get(name: str) -> ShardConverter:
    """Return the converter of a name.

    Raises:
        Unsupported: there is no such conversion, and the message lists the existing names; or its library is missing.
    """
    packed, then, inner = name.partition(THEN)
    if then and not is_unpacked(packed):
        from feedd.tables.compression import ChainedConverter  # noqa: PLC0415 - loaded when such data is found

        return ChainedConverter(cast("CompressedConverter", get(packed)), get(inner))
    spec = _spec_named(name)
    module = loaded(spec.module, spec.extra, "") if spec.extra else importlib.import_module(spec.module)
    return cast("ShardConverter", getattr(module, spec.attribute))


def first_ranges(conversion: Conversion, held: PartialObject) -> tuple[ByteRange, ...]:
    """Return the ranges that a conversion needs of an object of which nothing is there; only arithmetic.

    Raises:
        BadShard, Unsupported: see ``ShardConverter.wanted``.
    """
    if THEN in conversion.name:
        return first_of_any(held.size_bytes, "")
    first = _spec_named(conversion.name).first
    if first is None:
        return get(conversion.name).wanted(held, conversion.params)
    return first(held.size_bytes, conversion.params)


def _spec_named(name: str) -> ConversionSpec:
    spec = _CONVERTERS.get(name) or _OWN.get(name)
    if spec is None:
        known = ", ".join(_CONVERTERS)
        raise Unsupported(f"expected a converter of {known}, got {name!r}", object=name, stage="decode")
    return spec


def names() -> dict[str, tuple[str, ...]]:
    """Return each conversion with the endings of names that select it, or with its name in URLs."""
    found: dict[str, tuple[str, ...]] = dict.fromkeys(_CONVERTERS, ())
    for extension, name in EXTENSION_CONVERTERS.items():
        found[name] = (*found[name], extension)
    for name in _NAMED - set(EXTENSION_CONVERTERS.values()):
        found[name] = (f"{name}+",)
    for name, conversion in _BY_FORMAT.items():
        found[conversion.name] = (*found[conversion.name], f"{name}+")
    return found | endings()
