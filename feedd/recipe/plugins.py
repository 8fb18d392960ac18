"""Codecs and transforms that the operator installed, as entry points. Clients can only name them.

``feedd.codecs``: a callable that takes the recipe's options as keywords and returns a ``protocols.SampleCodec``.
``feedd.transforms``: a callable that returns an ``ImagePlugin``. A plug-in is loaded when the first recipe names it: in
the daemon, which asks for its result, and in each worker that uses it. Import large libraries where they are used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from feedd.errors import BadRecipe

if TYPE_CHECKING:
    from importlib import metadata

    from numpy.typing import NDArray

    from feedd.protocols import SampleCodec

CODECS: Final = "feedd.codecs"
TRANSFORMS: Final = "feedd.transforms"


class ImagePlugin(Protocol):
    """An installed transform of images."""

    def outcome(self, shape: tuple[int | None, ...], dtype: str) -> tuple[tuple[int | None, ...], str]:
        """Return the result's (rows, columns, channels) and dtype for an image of ``shape`` and ``dtype``.

        ``None`` stands for a size that differs between samples. The result may depend on nothing else, because the
        layout of batches follows from it.

        Raises:
            ValueError: the plug-in does not accept such an image.
        """

    def __call__(self, image: NDArray[Any], seed: int) -> NDArray[Any]:
        """Return the changed image; ``image`` must stay unchanged. All randomness comes from the 64-bit ``seed``."""


def _points(**which: str) -> metadata.EntryPoints:
    from importlib import metadata  # noqa: PLC0415 - takes 20 ms, and most processes never need it

    found: metadata.EntryPoints = metadata.entry_points(**which)  # type: ignore[assignment]  # on older Pythons
    return found


@functools.cache
def names(group: str) -> tuple[str, ...]:
    """Return the installed names of a group; searched once per process, without loading anything."""
    return tuple(sorted({point.name for point in _points(group=group)}))


@functools.cache
def _load(group: str, name: str) -> Any | str:  # noqa: ANN401 - whatever the operator installed; text: the error
    point = next(iter(_points(group=group, name=name)))
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code may fail in any way
        import structlog  # noqa: PLC0415 - workers start without it and use it only here

        why = f"{type(error).__name__}: {error}"
        log = structlog.get_logger("feedd.workers")
        about = {"group": group, "name": name, "target": point.value, "error": why}
        log.error("installed plug-in cannot be loaded", **about)  # noqa: TRY400 - a traceback is easy to get outside
        return why


@functools.lru_cache(maxsize=256)
def _made(group: str, name: str, options: str) -> Any:  # noqa: ANN401 - what the operator's factory returns
    factory = _load(group, name)
    if isinstance(factory, str):
        raise BadRecipe(
            f"expected {name!r} of {group} to load, got {factory}",
            object=name,
            hint="the operator's installation is broken; see the daemon's log",
            stage="decode",
        )
    try:
        return factory(**msgspec.json.decode(options.encode(), type=dict[str, Any]))
    except Exception as error:
        raise BadRecipe(
            f"expected options that {name!r} accepts, got {options}: {type(error).__name__}: {error}",
            object=name,
            stage="decode",
        ) from error


def codec(name: str, options: str) -> SampleCodec:
    """Return an installed codec, created with options (a JSON object).

    Raises:
        BadRecipe: the codec does not load, or does not accept the options.
    """
    return cast("SampleCodec", _made(CODECS, name, options))


def transform(name: str, options: str) -> ImagePlugin:
    """Return an installed transform, created with options (a JSON object).

    Raises:
        BadRecipe: the transform does not load, or does not accept the options.
    """
    return cast("ImagePlugin", _made(TRANSFORMS, name, options))
