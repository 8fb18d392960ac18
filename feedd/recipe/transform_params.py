"""Parameters of each transform, checked, and each transform's result. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import msgspec

from feedd.recipe.transform_outcomes import (
    CV_DTYPES,
    SIDE_MAX,
    Picture,
    Size,
    check_size,
    check_span,
    sides,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_BYTES: Final = frozenset({"uint8"})
_COUNTED: Final = frozenset({"uint8", "uint16", "float32", "float64"})
_CLASSES_MAX: Final = 1 << 20
_LEVEL_MAX: Final = 100.0

Number: TypeAlias = Literal[
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"
]
Interpolation: TypeAlias = Literal["auto", "nearest", "linear", "cubic", "area"]
Span: TypeAlias = tuple[float, float]


class Transform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="op"):
    """One entry of ``transforms``; the base class of all transforms."""

    def outcome(self, picture: Picture) -> Picture:
        """Return the properties of the result for an input ``picture``; the same for every seed.

        Raises:
            ValueError: the transform does not accept such an input.
        """
        picture.require(channels_last=True)
        return picture


class Resize(Transform, frozen=True, tag="resize"):
    """``size`` 256: the shorter side; [h, w]: exactly that, or with ``fit`` "inside" the largest size within it."""

    size: Size
    fit: Literal["exact", "inside"] = "exact"
    interpolation: Interpolation = "auto"

    def __post_init__(self) -> None:
        check_size(self.size)
        if self.fit == "inside" and isinstance(self.size, int):
            raise ValueError("expected a size of height and width to fit inside, got one number")

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with its new sides."""
        picture.require(dtypes=CV_DTYPES)
        height, width = picture.height, picture.width
        if self.fit == "exact" and not isinstance(self.size, int):
            return picture.sized(*self.size)
        if height is None or width is None:
            return picture.sized(None, None)
        if isinstance(self.size, int):
            shorter = min(height, width)
            return picture.sized(self.size * height // shorter, self.size * width // shorter)
        scale = min(self.size[0] / height, self.size[1] / width)
        return picture.sized(max(1, round(height * scale)), max(1, round(width * scale)))


class CenterCrop(Transform, frozen=True, tag="center_crop"):
    """Cut out the centre; missing pixels are ``fill``."""

    size: Size
    fill: float = 0

    def __post_init__(self) -> None:
        check_size(self.size)

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with the sides of the crop."""
        picture.require(dtypes=CV_DTYPES)
        return picture.sized(*sides(self.size))


class RandomCrop(Transform, frozen=True, tag="random_crop"):
    """Cut out a random part of the image with ``padding`` around it; pixels still missing are ``fill``."""

    size: Size
    padding: int | tuple[int, ...] = 0
    fill: float = 0

    def __post_init__(self) -> None:
        check_size(self.size)
        edges(self.padding)

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with the sides of the crop."""
        picture.require(dtypes=CV_DTYPES)
        return picture.sized(*sides(self.size))


class RandomResizedCrop(Transform, frozen=True, tag="random_resized_crop"):
    """Cut out a random part, by share of the area (``scale``) and width over height (``ratio``), and resize it."""

    size: Size
    scale: Span = (0.08, 1.0)
    ratio: Span = (3 / 4, 4 / 3)
    interpolation: Interpolation = "auto"

    def __post_init__(self) -> None:
        check_size(self.size)
        check_span("scale", *self.scale, 1e-6, 1.0)
        check_span("ratio", *self.ratio, 1e-3, 1e3)

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with the sides of ``size``."""
        picture.require(dtypes=CV_DTYPES)
        return picture.sized(*sides(self.size))


class Pad(Transform, frozen=True, tag="pad"):
    """Add a border: ``padding`` is one number for all sides, [sides, ends] or [left, top, right, bottom]."""

    padding: int | tuple[int, ...]
    fill: float = 0
    mode: Literal["constant", "edge", "reflect"] = "constant"

    def __post_init__(self) -> None:
        edges(self.padding)

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with the border added."""
        picture.require(dtypes=CV_DTYPES)
        left, top, right, bottom = edges(self.padding)
        height, width = picture.height, picture.width
        return picture.sized(
            None if height is None else height + top + bottom, None if width is None else width + left + right
        )


class _Chance(Transform, frozen=True):
    p: float = 0.5

    def __post_init__(self) -> None:
        check_span("p", self.p, self.p, 0.0, 1.0)


class HorizontalFlip(_Chance, frozen=True, tag="horizontal_flip"):
    """Mirror the image horizontally with probability ``p``."""


class VerticalFlip(_Chance, frozen=True, tag="vertical_flip"):
    """Turn the image upside down with probability ``p``."""


class Grayscale(Transform, frozen=True, tag="grayscale"):
    """Convert to luma with 1 or 3 ``channels``; a probability ``p`` below 1 needs 3 channels."""

    channels: Literal[1, 3] = 1
    p: float = 1.0

    def __post_init__(self) -> None:
        check_span("p", self.p, self.p, 0.0, 1.0)
        if self.p < 1 and self.channels == 1:
            raise ValueError("expected 3 channels if p is below 1, got 1")

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with the new number of channels."""
        coloured(picture, CV_DTYPES)
        return picture._replace(channels=self.channels)


class ColorJitter(Transform, frozen=True, tag="color_jitter"):
    """Draw each factor from 1 - x to 1 + x, or from a given range; hue from -x to x (at most 0.5). In random order."""

    brightness: float | Span = 0.0
    contrast: float | Span = 0.0
    saturation: float | Span = 0.0
    hue: float | Span = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            check_span(name, *self.span(name), 0.0, _LEVEL_MAX)
        check_span("hue", *self.span("hue"), -0.5, 0.5)

    def span(self, name: str) -> Span:
        """Return the range from which a factor is drawn."""
        value: float | Span = getattr(self, name)
        if not isinstance(value, (int, float)):
            return value
        return (-value, value) if name == "hue" else (max(0.0, 1 - value), 1 + value)

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture unchanged."""
        return coloured(picture, _BYTES)


class RandAugment(Transform, frozen=True, tag="rand_augment"):
    """Apply ``count`` of fourteen changes, drawn with replacement, at step ``magnitude`` of ``bins``."""

    count: int = 2
    magnitude: int = 9
    bins: int = 31

    def __post_init__(self) -> None:
        if not (1 <= self.count <= 16 and 2 <= self.bins <= 1000 and 0 <= self.magnitude < self.bins):
            raise ValueError(
                f"expected a count of 1 to 16 and a magnitude below bins (2 to 1000), got {self.count}, "
                f"{self.magnitude} and {self.bins}"
            )

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture unchanged."""
        return coloured(picture, _BYTES)


class Normalize(Transform, frozen=True, tag="normalize"):
    """(x / full scale - mean) / std: integers over 255 or 65535, floats unscaled; per channel, or one for all."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        fits = len(self.mean) == len(self.std) and 1 <= len(self.mean) <= 4
        if not fits or not all(map(math.isfinite, (*self.mean, *self.std))) or 0 in self.std:
            raise ValueError(
                f"expected mean and std of one length, std without 0, got {list(self.mean)} and {list(self.std)}"
            )

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with a floating-point dtype."""
        picture.require(dtypes=_COUNTED, channels_last=True)
        if len(self.mean) not in {1, picture.channels}:
            raise ValueError(f"expected a mean of 1 or {picture.channels or 'unknown'} channels, got {len(self.mean)}")
        return picture._replace(dtype=self.dtype)


class Cast(Transform, frozen=True, tag="cast"):
    """Convert to another dtype; integers are rounded, and a number that does not fit makes a bad sample."""

    dtype: Number

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with this dtype."""
        return picture._replace(dtype=self.dtype)


class ChannelsFirst(Transform, frozen=True, tag="channels_first"):
    """Reorder to channels x rows x columns."""

    def outcome(self, picture: Picture) -> Picture:
        """Return the picture with channels first."""
        picture.require(channels_last=True)
        return picture._replace(first=True)


class OneHot(Transform, frozen=True, tag="one_hot"):
    """Turn a label into ``classes`` numbers, all 0 except a 1 at the label."""

    classes: int
    dtype: Number = "float32"

    def __post_init__(self) -> None:
        if not 1 <= self.classes <= _CLASSES_MAX:
            raise ValueError(f"expected 1 to {_CLASSES_MAX} classes, got {self.classes}")


class Installed(Transform, frozen=True, tag="installed"):
    """A transform that the operator installed: its name, and its options as JSON with sorted keys."""

    name: str
    options: str = "{}"


ImageTransform: TypeAlias = (
    Resize
    | CenterCrop
    | RandomCrop
    | RandomResizedCrop
    | Pad
    | HorizontalFlip
    | VerticalFlip
    | Grayscale
    | ColorJitter
    | RandAugment
    | Normalize
    | Cast
    | ChannelsFirst
    | Installed
)
NumberTransform: TypeAlias = OneHot | Cast

FOR_IMAGES: Final[dict[str, type[Transform]]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(ImageTransform) if kind is not Installed
}
FOR_NUMBERS: Final[dict[str, type[Transform]]] = {
    str(kind.__struct_config__.tag): kind for kind in get_args(NumberTransform)
}


def edges(padding: int | tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return left, top, right and bottom of a padding.

    Raises:
        ValueError: the number of values is not one, two or four, or a value is out of bounds.
    """
    given = (padding,) if isinstance(padding, int) else padding
    if len(given) not in {1, 2, 4} or not all(0 <= edge <= SIDE_MAX for edge in given):
        raise ValueError(f"expected 1, 2 or 4 paddings of 0 to {SIDE_MAX} pixels, got {list(given)}")
    left, top, right, bottom = given * (4 // len(given))
    return left, top, right, bottom


def coloured(picture: Picture, dtypes: frozenset[str]) -> Picture:
    """Return ``picture`` if its colours can be changed.

    Raises:
        ValueError: dtype, channels or their order do not allow it.
    """
    picture.require(dtypes=dtypes, channels_last=True)
    if picture.channels not in {1, 3}:
        raise ValueError(f"expected 1 or 3 channels for colours, got {picture.channels or 'any number'} of them")
    return picture


def of_number(dtype: str, transforms: Iterable[NumberTransform]) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of a number after its transforms.

    Raises:
        ValueError: a transform does not accept the result of the ones before.
    """
    shape: tuple[int, ...] = ()
    for one in transforms:
        if isinstance(one, OneHot):
            if shape or not dtype.startswith(("int", "uint")):
                raise ValueError(f"expected a label, an integer, for one_hot, got {dtype}{list(shape)}")
            shape = (one.classes,)
        dtype = one.dtype
    return dtype, shape


def spelled_out(
    given: object, known: dict[str, type[Transform]], installed: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Return entries of ``transforms`` as objects; a name alone becomes an object without options.

    Raises:
        ValueError: an entry is neither, or its transform or option is unknown; the message lists the known ones.
    """
    if not isinstance(given, list):
        raise ValueError(f"expected a list of transforms, got {given!r}")  # noqa: TRY004 - one error for any nonsense
    return [_spelled_out(one, known, tuple(installed)) for one in given]


def _spelled_out(given: object, known: dict[str, type[Transform]], installed: tuple[str, ...]) -> dict[str, Any]:
    form = {"op": given} if isinstance(given, str) else given
    if not isinstance(form, dict) or not isinstance(form.get("op"), str):
        example = '{"op": "cast", ...}'
        raise ValueError(f"expected a transform like {example}, got {given!r}")  # noqa: TRY004 - as above
    op = form["op"]
    kind = known.get(op)
    if kind is None and op in installed:
        options = {name: value for name, value in form.items() if name != "op"}
        return {"op": "installed", "name": op, "options": msgspec.json.encode(options, order="sorted").decode()}
    if kind is None:
        raise ValueError(f"expected one of the transforms {', '.join((*known, *installed))}, got {op!r}")
    fields = kind.__struct_fields__
    unknown = form.keys() - {"op", *fields}
    if unknown:
        takes = ", ".join(fields) or "no options"
        raise ValueError(f"expected options of {op} among {takes}, got {', '.join(sorted(unknown))}")
    # An option that is set to its default is the same recipe, and must give the same text.
    usual = dict(zip(reversed(fields), reversed(kind.__struct_defaults__), strict=False))
    return {name: value for name, value in form.items() if name not in usual or _plain(value) != usual[name]}


def _plain(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value
