"""Policies for samples that cannot be decoded. Pure.

``error``: the first bad sample raises an error. ``skip``: bad samples are left out, and their batch is shorter.
``replace``: another sample of the batch takes the row, so that every batch is full. ``quarantine``: as skip, and a file
lists the bad samples. No policy moves the plan: a row keeps its place in a step in any case. A shard with broken
framing is an error under all policies, because without an index its number of samples is unknown. Plain objects are
packed into shards; a missing one is a bad sample (see ``catalog.lost_objects``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from feedd.errors import BadRequest, BadSample

if TYPE_CHECKING:
    from feedd.values import ObjectRef


class BadSamples(enum.Enum):
    """The policies, by their name in a request."""

    ERROR = "error"
    SKIP = "skip"
    REPLACE = "replace"
    QUARANTINE = "quarantine"


def parse_policy(name: str) -> BadSamples:
    """Return the policy with that name; an empty name, from clients that name none, means skip.

    Raises:
        BadRequest: no policy has that name.
    """
    try:
        return BadSamples(name or BadSamples.SKIP.value)
    except ValueError:
        known = ", ".join(one.value for one in BadSamples)
        raise BadRequest(f"expected one of {known}, got {name!r}", object="bad_samples", stage="plan") from None


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample that could not be decoded.

    Attributes:
        url: URL of its shard.
        key: key of the sample.
        field: the first field that failed.
        reason: why the field failed.
        row: its row in the batch.
        ordinal: its number in the shard.
        offset: offset of the field's first byte in the shard; of the sample's first byte if it lacks the field.
        size_bytes: length of the field; -1: the sample lacks it, or its bytes are part of a table.
        ref: its shard; None: not known.
    """

    url: str
    key: str
    field: str
    reason: str
    row: int = -1
    ordinal: int = -1
    offset: int = -1
    size_bytes: int = -1
    ref: ObjectRef | None = None

    def error(self, hint: str) -> BadSample:
        """Return the failure as an error."""
        said = f"sample {self.key!r}, field {self.field!r}: {self.reason}"
        return BadSample(said, object=self.url, hint=hint, stage="decode")
