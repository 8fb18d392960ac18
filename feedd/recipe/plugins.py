"""What the operator installed as entry points. Clients only name it.

| group | an entry point names |
|---|---|
| ``feedd.codecs`` | a callable that takes the recipe's options as keywords and returns a ``protocols.SampleCodec`` |
| ``feedd.transforms`` | a callable that takes the recipe's options as keywords and returns an ``ImagePlugin`` |
| ``feedd.formats`` | a ``formats.format_spec.FormatSpec`` with the entry point's name |
| ``feedd.stores`` | a callable that takes ``SCHEME://NAME`` and returns a ``protocols.ObjectStore`` of that root |

The name of a store's entry point is the scheme. Each is loaded when it is first needed: in the daemon, and in each
decode worker that uses it. Import what is heavy where it is used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec

from feedd.errors import BadRecipe, BadRequest

if TYPE_CHECKING:
    from importlib import metadata

    from numpy.typing import NDArray

    from feedd.protocols import ObjectStore, SampleCodec

CODECS: Final = "feedd.codecs"
TRANSFORMS: Final = "feedd.transforms"
FORMATS: Final = "feedd.formats"
STORES: Final = "feedd.stores"
_UNLOADED_HINT: Final = "the operator's installation is broken; see the daemon's log"


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
def load(group: str, name: str) -> Any | str:  # noqa: ANN401 - whatever the operator installed
    """Return what an entry point names, or the text of why that cannot be loaded, which is logged once."""
    point = next(iter(_points(group=group, name=name)))
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - code that is not ours may fail in any way
        why = f"{type(error).__name__}: {error}"
        log_unusable(group, name, why, target=point.value)
        return why


def _unloaded(group: str, name: str, why: str) -> str:
    return f"expected {name!r} of {group} to load, got {why}"


def log_unusable(group: str, name: str, why: str, **more: str) -> None:
    """Log that an installed plug-in cannot be used."""
    import structlog  # noqa: PLC0415 - workers have no other use for it, and start without

    structlog.get_logger("feedd.workers").error(
        "installed plug-in cannot be loaded", group=group, name=name, error=why, **more
    )


@functools.lru_cache(maxsize=256)
def _created(group: str, name: str, options: str) -> Any:  # noqa: ANN401 - what the operator's factory returns
    factory = load(group, name)
    if isinstance(factory, str):
        raise BadRecipe(_unloaded(group, name, factory), object=name, hint=_UNLOADED_HINT, stage="decode")
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
    return cast("SampleCodec", _created(CODECS, name, options))


def transform(name: str, options: str) -> ImagePlugin:
    """Return an installed transform, created with options (a JSON object).

    Raises:
        BadRecipe: the transform does not load, or does not accept the options.
    """
    return cast("ImagePlugin", _created(TRANSFORMS, name, options))


def store(root: str) -> ObjectStore:
    """Return an installed store.

    Args:
        root: ``SCHEME://NAME``.

    Raises:
        BadRequest: no store has that scheme, the store does not load, or it refuses the root.
    """
    scheme = root.partition("://")[0]
    if scheme not in names(STORES):
        raise BadRequest(f"expected s3://, file:// or an installed store, got {root}", object=root, stage="source")
    factory = load(STORES, scheme)
    if isinstance(factory, str):
        raise BadRequest(_unloaded(STORES, scheme, factory), object=root, hint=_UNLOADED_HINT, stage="source")
    try:
        return cast("ObjectStore", factory(root))
    except Exception as error:
        raise BadRequest(
            f"expected a root that the store {scheme!r} takes, got {root}: {type(error).__name__}: {error}",
            object=root,
            stage="source",
        ) from error
