"""MXNet's ``.idx`` beside RecordIO shards: it is not read, and all records are samples. A shorter one is reported.

Lines are ``key<TAB>offset`` with different numbers as keys. So the minimum size of a file with all records follows from
the records' offsets. A smaller file names fewer records, which its size in the listing shows without reading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.shard_index import ShardIndex
    from feedd.values import ObjectRef

_IDX: Final = ".idx"
_RECORDS: Final = (".rec", ".recordio")
_FIELDS: Final = frozenset({"image", "data"})
_SIGNS: Final = 2  # per line: the tab and the line end
_TENS: Final = 10 ** np.arange(1, 19, dtype=np.int64)
_log = structlog.get_logger("feedd.sessions")


def idx_sizes(refs: Sequence[ObjectRef], beside: Sequence[ObjectRef]) -> Mapping[int, int]:
    """Return the size in bytes of the ``.idx`` beside each RecordIO shard that has one, by the shard's index."""
    found = {(ref.root, ref.key.removesuffix(_IDX)): ref.size_bytes for ref in beside if ref.key.endswith(_IDX)}
    if not found:
        return {}
    stems = ((at, (ref.root, ref.key.rpartition(".")[0])) for at, ref in enumerate(refs) if ref.key.endswith(_RECORDS))
    return {at: found[stem] for at, stem in stems if stem in found}


def say_fewer(ref: ObjectRef, idx_bytes: int, index: ShardIndex) -> bool:
    """Log, and return True, if the ``.idx`` beside a shard names fewer records than the shard holds."""
    if index.fields[-1:] and index.fields[-1] not in _FIELDS:
        return False
    # a record begins at the end of the one before it, plus padding
    least = least_bytes(np.concatenate(([0], (index.starts[-1] + index.sizes[-1])[:-1]))) if index.sample_count else 0
    if idx_bytes >= least:
        return False
    _log.warning(
        "an .idx names fewer records than its shard holds: feedd does not read it, all records are samples",
        object=ref.url,
        records=index.sample_count,
        idx_bytes=idx_bytes,
        least_bytes=least,
    )
    return True


def least_bytes(offsets: NDArray[np.int64]) -> int:
    """Return the minimum size of an ``.idx`` with lines for all records, with the shortest keys 0, 1, 2, ...

    Args:
        offsets: int64[records], lower bounds of the records' offsets in bytes.
    """
    keys = np.arange(len(offsets), dtype=np.int64)
    return int(_digits(keys).sum() + _digits(offsets).sum()) + _SIGNS * len(offsets)


def _digits(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(_TENS, numbers, side="right").astype(np.int64) + 1
