"""What becomes of samples that cannot be decoded. Pure.

``error``: the first one is an error. ``skip``: it is left out, and its batch is so much shorter. ``replace``: another
sample of the batch takes its row, so that every batch is full. ``quarantine``: as skip, and a file names it. None of
them moves the plan: a row has its place in a step whatever becomes of it. A shard whose framing is broken is an error
under all of them: without an index nobody knows how many samples it stands for. Of plain objects, which are packed
into shards, single ones that are gone are bad samples (see ``catalog.lost_objects``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from feedd.errors import BadRequest, BadSample


class BadSamples(enum.Enum):
    """The policies, by their names in a request."""

    ERROR = "error"
    SKIP = "skip"
    REPLACE = "replace"
    QUARANTINE = "quarantine"


def parse_policy(name: str) -> BadSamples:
    """Return the policy of that name; empty: what clients mean that name none, skip.

    Raises:
        BadRequest: there is none.
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
        url: its shard.
        key: its key.
        field: the first field that failed.
        reason: why.
        row: its place in the batch.
        ordinal: its number in the shard.
        offset: first byte of that field in the shard, or of the sample where it lacks the field.
    """

    url: str
    key: str
    field: str
    reason: str
    row: int = -1
    ordinal: int = -1
    offset: int = -1

    def error(self, hint: str) -> BadSample:
        """Return it as an error."""
        said = f"sample {self.key!r}, field {self.field!r}: {self.reason}"
        return BadSample(said, object=self.url, hint=hint, stage="decode")
