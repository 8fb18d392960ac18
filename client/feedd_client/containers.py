"""One walk over every supported batch type: finds or changes its tensors and keeps every container's type."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import numbers
import pathlib
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeGuard

import numpy as np
import torch

from feedd_client.errors import BadOptionError
from feedd_client.values import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HINT: Final = (
    "use a dict, list, tuple, namedtuple or dataclass, or give the type to(device, non_blocking=...), pin_memory() and"
    " record_stream(stream)"
)
# Values without tensors are passed on unchanged.
_VALUES: Final = (
    str,
    bytes,
    bytearray,
    numbers.Number,
    np.generic,
    np.ndarray,
    enum.Enum,
    pathlib.PurePath,
    dt.date,
    dt.time,
    dt.timedelta,
    decimal.Decimal,
    uuid.UUID,
    slice,
    range,
    torch.Size,
    torch.dtype,
    torch.device,
)
# Lists and dicts of only these types are passed on without a walk.
_PLAIN: Final = frozenset({str, bytes, int, float, bool, complex, type(None)})
_Rebuild: TypeAlias = Callable[[list[Any]], Any]
_Place: TypeAlias = "tuple[_Place | None, str]"  # path of a value: its container's path, and its label there
_BATCH: Final[_Place] = (None, "batch")


class Movable(Protocol):
    """A type with its own ``to``, such as ``TensorDict``, ``PackedSequence`` or PyTorch Geometric's ``Data``."""

    def to(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - each type has its own arguments
        """Return the object on another device."""

    def pin_memory(self) -> Any:  # noqa: ANN401 - see above
        """Return a copy in pinned memory."""


def leaves(batch: object) -> Iterator[torch.Tensor | Movable]:
    """Yield the tensors and the movable objects of a batch, at any depth.

    Raises:
        BadOptionError: the batch holds an unsupported type; the message gives its path and type.
    """
    return _leaves(batch, _BATCH)


def tensors_of(batch: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch at any depth, but no movable objects.

    Raises:
        BadOptionError: the batch holds an unsupported type; the message gives its path and type.
    """
    return (leaf for leaf in leaves(batch) if isinstance(leaf, torch.Tensor))


def map_leaves(
    batch: object,
    tensor: Callable[[torch.Tensor], Any],
    movable: Callable[[Movable], Any] = lambda value: value,
    fields: Mapping[str, Callable[[Any], Any]] | None = None,
) -> Any:  # noqa: ANN401 - a batch of the same type
    """Return a batch of the same types with every tensor and every movable object changed.

    Args:
        batch: the batch; a mapping, if there are ``fields``.
        tensor: returns a changed tensor.
        movable: returns a changed object.
        fields: functions that return whole fields, by name. Their results are not walked.

    Raises:
        BadOptionError: the batch holds an unsupported type; the message gives its path and type.
    """
    if not fields:
        return _map(batch, _BATCH, tensor, movable)
    assert isinstance(batch, Mapping)
    made = {
        name: fields[name](value) if name in fields else _map(value, (_BATCH, f"[{name!r}]"), tensor, movable)
        for name, value in batch.items()
    }
    return with_values(batch, made)


def private_copy(value: object) -> Any:  # noqa: ANN401 - a value of the same type
    """Return a value whose tensors are copies, on the same device.

    Raises:
        BadOptionError: the value holds an unsupported type.
    """
    return map_tensors(value, torch.clone)


def map_tensors(batch: object, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401 - see above
    """Return a batch of the same types with every tensor changed.

    Raises:
        BadOptionError: the batch holds an unsupported type; the message gives its path and type.
    """
    return map_leaves(batch, change)


def record_stream(batch: object, stream: Any) -> None:  # noqa: ANN401 - a stream of any accelerator
    """Make the allocator keep the batch's device memory until ``stream`` has done its currently queued work.

    Raises:
        BadOptionError: the batch holds an unsupported type.
    """
    for leaf in leaves(batch):
        if not isinstance(leaf, torch.Tensor):
            _record_movable(leaf, stream)
        elif not leaf.is_cpu:
            leaf.record_stream(stream)


def check(batch: object) -> None:
    """Check that ``record_stream`` can walk the whole batch.

    Raises:
        BadOptionError: the batch holds an unsupported type.
    """
    for leaf in leaves(batch):
        if not isinstance(leaf, torch.Tensor) and not hasattr(leaf, "record_stream"):
            for child in _parts(leaf, _BATCH)[1]:
                check(child)


def with_values(batch: Mapping[Any, Any], values: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - a mapping of that type
    """Return a mapping of the same type and keys with other values.

    Raises:
        BadOptionError: mappings of that type cannot be copied and changed.
    """
    if type(batch) is dict:
        return dict(values)
    try:
        made: Any = copy.copy(batch)
        for key, value in values.items():
            made[key] = value
    except TypeError as error:
        raise _unsupported(_BATCH, batch) from error
    return made


def _leaves(value: object, place: _Place) -> Iterator[torch.Tensor | Movable]:
    if type(value) in _PLAIN:
        return
    if isinstance(value, torch.Tensor):
        yield _checked(value, place)
    elif _moves_itself(value):
        yield value
    else:
        labels, children, _ = _parts(value, place)
        for label, child in zip(labels, children, strict=True):
            yield from _leaves(child, (place, label))


def _map(value: object, place: _Place, tensor: Callable[[torch.Tensor], Any], movable: Callable[[Movable], Any]) -> Any:  # noqa: ANN401 - see above
    if isinstance(value, torch.Tensor):
        return tensor(_checked(value, place))
    if _moves_itself(value):
        return movable(value)
    labels, children, rebuild = _parts(value, place)
    if not children:
        return value
    changed = [_map(child, (place, label), tensor, movable) for label, child in zip(labels, children, strict=True)]
    return rebuild(changed)


def _parts(value: object, place: _Place) -> tuple[Sequence[str], Sequence[Any], _Rebuild]:  # noqa: PLR0911 - one per kind
    """Return a container's labels, its children, and a function that rebuilds the container from new children."""
    if type(value) in _PLAIN or isinstance(value, _VALUES):
        return (), (), lambda _: value
    if isinstance(value, Ragged):
        fields = [value.values, value.offsets, *(() if value.shapes is None else (value.shapes,))]
        return [".values", ".offsets", ".shapes"][: len(fields)], fields, lambda made: Ragged(*made)
    if isinstance(value, list | tuple | deque) and _PLAIN.issuperset(map(type, value)):
        return (), (), lambda _: value
    if isinstance(value, Mapping):
        keys = list(value)
        return (
            [f"[{key!r}]" for key in keys],
            [value[key] for key in keys],
            lambda made: with_values(value, dict(zip(keys, made, strict=True))),
        )
    if isinstance(value, list | tuple | deque):
        return [f"[{index}]" for index in range(len(value))], list(value), lambda made: _sequence(value, made, place)
    if isinstance(value, set | frozenset) and all(isinstance(child, _VALUES) for child in value):
        return (), (), lambda _: value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = list(
            dict.fromkeys([*(field.name for field in dataclasses.fields(value)), *getattr(value, "__dict__", ())])
        )
        names = [name for name in names if hasattr(value, name)]
        return (
            [f".{name}" for name in names],
            [getattr(value, name) for name in names],
            lambda made: _dataclass(value, dict(zip(names, made, strict=True))),
        )
    raise _unsupported(place, value)


def _sequence(was: list[Any] | tuple[Any, ...] | deque[Any], made: list[Any], place: _Place) -> Any:  # noqa: ANN401 - see above
    kind: Any = type(was)
    try:
        if isinstance(was, tuple):
            return kind._make(made) if hasattr(kind, "_make") else kind(made)
        copied: Any = copy.copy(was)
        for index, value in enumerate(made):
            copied[index] = value
    except TypeError as error:
        raise _unsupported(place, was) from error
    return copied


def _dataclass(was: object, fields: Mapping[str, Any]) -> object:
    made = copy.copy(was)
    for name, value in fields.items():
        object.__setattr__(made, name, value)  # works for frozen dataclasses too
    return made


def _moves_itself(value: object) -> TypeGuard[Movable]:
    """Whether an object has its own ``to`` and ``pin_memory``; ``Ragged`` and plain mappings are walked instead."""
    if type(value) in _PLAIN or isinstance(value, Ragged | type) or not hasattr(value, "pin_memory"):
        return False
    return hasattr(value, "to") and (not isinstance(value, Mapping) or hasattr(value, "record_stream"))


def _record_movable(value: Movable, stream: Any) -> None:  # noqa: ANN401 - a stream of any accelerator
    own = getattr(value, "record_stream", None)
    if own is not None:
        own(stream)
        return
    _, children, _ = _parts(value, _BATCH)
    for child in children:
        record_stream(child, stream)


def _text(place: _Place) -> str:
    above, label = place
    return label if above is None else _text(above) + label


def _checked(tensor: torch.Tensor, place: _Place) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "a nested tensor" if tensor.is_nested else f"a tensor of layout {tensor.layout}"
        raise BadOptionError(
            f"expected dense tensors for a device, got {kind}",
            object=_text(place),
            hint="convert it to a dense tensor, or send its parts",
        )
    return tensor


def _unsupported(place: _Place, value: object) -> BadOptionError:
    kind = type(value)
    return BadOptionError(
        f"expected tensors and supported containers of tensors, got {kind.__module__}.{kind.__qualname__}",
        object=_text(place),
        hint=_HINT,
    )
