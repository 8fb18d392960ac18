"""Rules for samples: what to do with bad samples, and which samples to leave out on purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from feedd_client.errors import BadOptionError, BadRecipeError
from feedd_client.recipe import encode_recipe

if TYPE_CHECKING:
    from collections.abc import Sequence

BadSamples = Literal["error", "skip", "replace", "quarantine"]

BAD_SAMPLES: Final = ("error", "skip", "replace", "quarantine")
_UNLIMITED: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class SamplePolicy:
    """The frozen form of ``bad_samples``, ``max_bad_samples`` and ``filter``, with the meaning of ``FeedDataset``.

    Attributes:
        filters: conditions as canonical JSON texts.
    """

    bad_samples: BadSamples | None = None
    max_bad_samples: int | None = None
    filters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        policy, most = self.bad_samples, self.max_bad_samples
        if policy is not None and policy not in BAD_SAMPLES:
            known = ", ".join(BAD_SAMPLES)
            raise BadOptionError(f"expected None or one of {known}, got {policy!r}", object="bad_samples")
        counts = isinstance(most, int) and not isinstance(most, bool) and 0 <= most <= _UNLIMITED
        if most is not None and not counts:
            raise BadOptionError(f"expected None or an int >= 0, got {most!r}", object="max_bad_samples")
        if policy == "error" and most:
            raise BadOptionError(
                f"expected no limit together with bad_samples='error', got {most}", object="max_bad_samples"
            )

    @property
    def budget(self) -> int:
        """Number of bad samples allowed in an epoch."""
        if self.max_bad_samples is not None:
            return self.max_bad_samples
        return 0 if self.bad_samples in {None, "error"} else _UNLIMITED

    @property
    def replaces(self) -> bool:
        """Whether good samples may take the place of bad ones."""
        return self.bad_samples == "replace"


def parse_policy(
    bad_samples: BadSamples | None,
    max_bad_samples: int | None,
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None,
) -> SamplePolicy:
    """Return the frozen form. The daemon, not the client, checks the meaning of filters.

    Raises:
        BadOptionError: the policy or the number is invalid.
        BadRecipeError: a filter is no mapping, or JSON cannot express it.
    """
    filters = [] if given is None else [given] if isinstance(given, Mapping) else list(given)
    for one in filters:
        if not isinstance(one, Mapping):
            raise BadRecipeError(
                f"expected a mapping or a list of mappings, got {one!r}",
                object="filter",
                hint='like {"field": "txt", "min_bytes": 1}',
            )
    return SamplePolicy(bad_samples, max_bad_samples, tuple(encode_recipe("filter", one) for one in filters))
