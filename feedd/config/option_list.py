"""The options as a list, for ``feedd check``, the example file, and tests that compare documents with code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from feedd.config.models import Config, OwnerConfig, S3Config
from feedd.config.types import OFF, CpuSet, DurationUnit, SizeUnit, format_cpus
from feedd.observe.logs import redact_text
from feedd.units import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic.fields import FieldInfo

ANY_BUCKET: Final = "*"
NAMED_SECTIONS: Final[Mapping[str, tuple[type[BaseModel], str]]] = {
    "s3": (S3Config, ANY_BUCKET),
    "owners": (OwnerConfig, "1000"),
}
"""Tables of sections, one per bucket or owner: the model, and the name that stands for any of them in lists."""

UNSET = "-"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Attributes:
        path: names from the top: ``("cache", "size")``; bucket settings have ``"*"`` in the middle.
        description: what the option does.
        default: rendered default; empty if the default is unset or depends on the machine.
    """

    path: tuple[str, ...]
    description: str
    default: str

    @property
    def name(self) -> str:
        """Dotted name, as in TOML: ``cache.size``, ``s3."*".region``."""
        return dotted(self.path)

    @property
    def env(self) -> str:
        """Environment variable; empty in a named section: ``FEEDD_S3`` and ``FEEDD_OWNERS`` hold those as JSON."""
        return "" if self.path[0] in NAMED_SECTIONS else "FEEDD_" + "__".join(self.path).upper()


def dotted(path: tuple[str, ...]) -> str:
    """Join names as TOML does: names with characters other than letters, digits, dash and underscore are quoted."""
    return ".".join(
        part if part.replace("-", "").replace("_", "").isalnum() and part.isascii() else f'"{part}"' for part in path
    )


def section_of(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a section, else None."""
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _exact_size(value: int) -> str:
    for unit, name in ((1024 * GIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)


def render_value(info: FieldInfo | None, value: Any) -> str:  # noqa: ANN401 - a value of any option
    """Return a value as a user would write it, without secrets."""
    metadata = info.metadata if info is not None else []
    if value is None:
        return OFF
    if isinstance(value, bool):
        return "true" if value else "false"
    if SizeUnit in metadata and isinstance(value, int):
        return _exact_size(value)
    if DurationUnit in metadata and isinstance(value, int | float):
        return f"{value:g}s"
    if CpuSet in metadata:
        value = [format_cpus(value)] if value else []
    if isinstance(value, dict):
        value = [f"{name}={_exact_size(size)}" for name, size in value.items()]
    if isinstance(value, list | tuple):
        return ", ".join(render_value(None, each) for each in value) or UNSET
    return redact_text(str(value))


def _unset(info: FieldInfo) -> bool:
    allowed = get_args(info.annotation) if get_origin(info.annotation) in {Union, UnionType} else ()
    return info.default is None and type(None) in allowed


def _default(info: FieldInfo) -> str:
    if info.default_factory is not None or _unset(info):
        return ""
    return render_value(info, info.default)


def options(model: type[BaseModel] = Config, above: tuple[str, ...] = ()) -> Iterator[Option]:
    """Yield every option in the order of the models."""
    for name, info in model.model_fields.items():
        path = (*above, name)
        section = section_of(info)
        if section is not None:
            yield from options(section, path)
        elif not above and name in NAMED_SECTIONS:
            model_of_each, anyone = NAMED_SECTIONS[name]
            yield from options(model_of_each, (*path, anyone))
        else:
            yield Option(path, info.description or "", _default(info))


def render(config: BaseModel, above: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the effective value of every option by dotted name, without secrets."""
    shown: dict[str, str] = {}
    for name, info in type(config).model_fields.items():
        path = (*above, name)
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            shown |= render(value, path)
        elif isinstance(value, dict) and not above and name in NAMED_SECTIONS:
            for its_name, settings in value.items():
                shown |= render(settings, (*path, its_name))
        elif value is None and _unset(info) and path != ("status",):
            shown[dotted(path)] = UNSET
        else:
            shown[dotted(path)] = render_value(info, str(value) if isinstance(value, Path) else value)
    return shown
