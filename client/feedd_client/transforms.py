"""Transforms that DeviceLoader calls on each batch, and their context: epoch, step, rank, a seeded generator."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from feedd_client.casts import pixels_last
from feedd_client.containers import map_tensors
from feedd_client.errors import BadOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

Transform: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class TransformContext:
    """What a transform may need to know about its batch.

    Attributes:
        epoch: epoch of the batch.
        step: step of the batch within its epoch and rank.
        rank: rank of this process.
        generator: random generator on the batch's device, seeded by the dataset's seed, epoch, step and rank. A resumed
            run therefore draws the same numbers as an uninterrupted one, however fast the trainer is.
        channels_last: whether the loader will store images in channels-last order.
    """

    epoch: int
    step: int
    rank: int
    generator: torch.Generator
    channels_last: bool = False
    _draws: Iterator[int] = field(default_factory=count, repr=False, compare=False)

    def host_numbers(self) -> np.random.Generator:
        """Return a NumPy generator with the same seed as ``generator``, another one at each call.

        Its numbers are on the host at once, and are the same on every device.
        """
        return np.random.default_rng([self.generator.initial_seed(), next(self._draws)])


@dataclass(frozen=True, slots=True)
class BatchNumber:
    """The number of a batch in a run; ``row`` distinguishes the single samples of one step."""

    epoch: int
    step: int
    row: int = 0


class Pipeline:
    """The transforms of one loader, in order."""

    def __init__(self, transforms: Transform | Iterable[Transform], *, channels_last: bool) -> None:
        """Check the transforms, and whether each takes a context.

        Raises:
            BadOptionError: a transform is not callable.
        """
        given = (transforms,) if callable(transforms) else tuple(transforms)
        for transform in given:
            if not callable(transform):
                raise BadOptionError(f"expected callables, got {transform!r}", object="transforms")
        self.channels_last = channels_last
        self._steps = tuple((transform, _takes_context(transform)) for transform in given)

    def __bool__(self) -> bool:
        return bool(self._steps) or self.channels_last

    def __repr__(self) -> str:
        return repr([transform for transform, _ in self._steps])

    def __call__(self, batch: Any, context: TransformContext) -> Any:  # noqa: ANN401 - the source's batch type
        """Return the batch after all transforms.

        Raises:
            RuntimeError: a transform raised StopIteration, which would otherwise end the epoch silently.
        """
        for transform, with_context in self._steps:
            try:
                batch = transform(batch, context) if with_context else transform(batch)
            except StopIteration as error:
                raise RuntimeError(f"expected a batch from {transform!r}, got StopIteration") from error
        return map_tensors(batch, pixels_last) if self.channels_last else batch


class Generators:
    """One random generator, seeded again for each batch."""

    def __init__(self, device: torch.device, seed: int, rank: int) -> None:
        self._device = device
        self._generator: torch.Generator | None = None  # created on first use, in the thread that draws
        self._seed = seed
        self._rank = rank

    def context(self, at: BatchNumber, *, channels_last: bool) -> TransformContext:
        """Return the context of one batch; its generator is valid until the next call."""
        if self._generator is None:
            self._generator = torch.Generator(self._device)
        words = f"{self._seed}/{at.epoch}/{at.step}/{at.row}/{self._rank}".encode()
        self._generator.manual_seed(int.from_bytes(hashlib.sha256(words).digest()[:8], "big") >> 1)
        return TransformContext(at.epoch, at.step, self._rank, self._generator, channels_last)


def _takes_context(transform: Transform) -> bool:
    """Whether to call a transform with a context: its second argument is required, or is named ``context``."""
    if isinstance(transform, torch.nn.Module):
        transform = transform.forward
    try:
        parameters = list(inspect.signature(transform).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [one for one in parameters if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}]
    if len(positional) < 2:
        return False
    return positional[1].name == "context" or positional[1].default is inspect.Parameter.empty
