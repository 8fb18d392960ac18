"""Finds the format of a shard and the reader of a format, among the formats of this folder and installed ones."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from typing import TYPE_CHECKING, Final

from feedd import formats
from feedd.errors import Unsupported
from feedd.formats.format_spec import FormatSpec
from feedd.formats.refused import refuse_name
from feedd.formats.sniffed import SniffedFormat
from feedd.formats.suffixes import EXTENSION_CONVERTERS, is_refused, uncompressed
from feedd.recipe import plugins

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd.protocols import ShardFormat

AUTO: Final = "auto"
"""In place of a format's name: the first bytes of the shard decide."""

_PART_OF: Final = re.compile(r"-\d+-of-\d+$")  # TensorFlow's numbering of the files of a dataset
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]+")  # what a URL may name before its ``+``
_EXTENSION: Final = re.compile(r"\.[a-z0-9_]+(\.[a-z0-9_]+)*")


@functools.cache
def built_in() -> dict[str, FormatSpec]:
    """Return the formats that the modules of this folder list as ``FORMATS``, by name."""
    found: dict[str, FormatSpec] = {}
    for module in pkgutil.iter_modules(formats.__path__, f"{formats.__name__}."):
        for spec in getattr(importlib.import_module(module.name), "FORMATS", ()):
            assert spec.name not in found, f"two formats are called {spec.name}"
            found[spec.name] = spec
    return found


@functools.cache
def installed() -> dict[str, FormatSpec]:
    """Return the formats that the operator installed, by name; unusable ones are logged and left out.

    A format of this folder keeps its name and its extensions.
    """
    found: dict[str, FormatSpec] = {}
    taken = {extension for spec in built_in().values() for extension in spec.extensions} | set(EXTENSION_CONVERTERS)
    for point in plugins.names(plugins.FORMATS):
        spec = plugins.load(plugins.FORMATS, point)
        if isinstance(spec, str):  # the reason is in the log
            continue
        if why := _unusable(point, spec, taken):
            plugins.log_unusable(plugins.FORMATS, point, why)
            continue
        found[spec.name] = spec
        taken.update(spec.extensions)
    return found


def _unusable(point: str, spec: object, taken: set[str]) -> str:
    """Return why an installed format is unusable, or an empty string."""
    if not isinstance(spec, FormatSpec):
        return f"expected a FormatSpec, got {type(spec).__name__}"
    if spec.name != point or not _NAME.fullmatch(point):
        return f"expected the entry point's name, lower-case letters, digits, dots and dashes, got {spec.name!r}"
    if point in built_in() or point in EXTENSION_CONVERTERS.values() or point == AUTO:
        return f"the name {point!r} belongs to a format of feedd"
    wrong = [one for one in spec.extensions if not _EXTENSION.fullmatch(one) or one in taken]
    return f"expected unused lower-case extensions with a dot, got {wrong}" if wrong else ""


def specs() -> Iterable[FormatSpec]:
    """Return all formats, those of this folder first."""
    return (*built_in().values(), *installed().values())


def find(name: str) -> FormatSpec | None:
    """Return the format of a name, or None if there is none."""
    return built_in().get(name) or installed().get(name)


def format_for(url: str) -> str:
    """Return the name of a shard's format by its extension; for a compressed shard, by the extension of its content.

    Return ``auto`` if the extension is unknown: the first bytes then decide.

    Raises:
        Unsupported: this version does not read the format; the message lists the known extensions.
    """
    given_name = url.rsplit("/", 1)[-1].lower()
    file_name = _PART_OF.sub("", uncompressed(_PART_OF.sub("", given_name))[0])
    found = _named_so(file_name, built_in().values()) or _named_so(file_name, installed().values())
    if found:
        return found
    refuse_name(file_name, url, _known())
    if is_refused(file_name):
        raise Unsupported(
            f"expected a shard ending in {_known()}, got {given_name!r}",
            object=url,
            hint="unpack it, or compress it with gzip, zstd, bzip2 or xz instead",
            stage="decode",
        )
    return AUTO


def _named_so(file_name: str, of: Iterable[FormatSpec]) -> str:
    for spec in of:
        if file_name.endswith(spec.extensions) or (spec.file_names and re.fullmatch(spec.file_names, file_name)):
            return spec.name
    return ""


def get(name: str) -> ShardFormat:
    """Return the reader of a format.

    Args:
        name: name of the format; parameters may follow a colon.

    Raises:
        Unsupported: no format has that name; the message lists all names.
    """
    kind, _, params = name.partition(":")
    spec = find(kind)
    if spec is not None and params and spec.with_params is not None:
        return _with_params(kind, params)
    if name == AUTO:
        return SniffedFormat(sniff, get, _known())
    if spec is None or params:
        known = ", ".join(sorted(spec.name for spec in specs()))
        raise Unsupported(f"expected one of the formats {known}, got {name!r}", object=name, stage="decode")
    return spec.reader


def sniff(data: memoryview) -> str:
    """Return the name of the format that a shard begins like, or an empty string."""
    asked = [spec for spec in specs() if spec.begins is not None]
    for spec in sorted(asked, key=lambda spec: spec.sniff_rank):
        if spec.begins is not None and spec.begins(data):
            return spec.name
    return ""


def extensions() -> dict[str, tuple[str, ...]]:
    """Return the file names that identify each format."""
    return {spec.name: spec.shown_names for spec in specs()}


@functools.lru_cache(maxsize=64)
def _with_params(kind: str, params: str) -> ShardFormat:
    spec = find(kind)
    assert spec is not None
    assert spec.with_params is not None
    return spec.with_params(params)


@functools.cache
def _known() -> str:
    return " or ".join(
        sorted((*(extension for spec in specs() for extension in spec.extensions), *EXTENSION_CONVERTERS))
    )
