"""Names that formats have in common: of fields, and of samples that have none of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from feedd.errors import BadShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_DIGITS = 8


def field_names(names: Sequence[str], url: str) -> tuple[str, ...]:
    """Return names of fields as recipes look for them: in lower case, as extensions are.

    Raises:
        BadShard: two that differ by case only.
    """
    lower = tuple(name.lower() for name in names)
    if len(set(lower)) < len(lower):
        twice = next(name for place, name in enumerate(lower) if name in lower[:place])
        raise BadShard(f"expected names of fields that differ, got {twice!r} twice", object=url, stage="decode")
    return lower


def numbered(sample_count: int) -> tuple[bytes, NDArray[np.int64]]:
    """Return ``key_blob`` and ``key_ends`` of an index: ordinals of eight digits at least, which sort as they lie."""
    keys = b"".join(b"%08d" % ordinal for ordinal in range(sample_count))
    lengths = np.full(sample_count, _DIGITS, np.int64)
    for digits in range(_DIGITS, len(str(sample_count))):
        lengths[10**digits :] += 1
    return keys, np.cumsum(lengths)
