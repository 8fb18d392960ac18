"""A format: records back to back, each behind its length. Files end in ``.records``.

A file is ``b"RECORDS1"``, then for each record a u32 length, little-endian, and that many bytes.
"""

import numpy as np

from feedd.errors import BadShard
from feedd.formats.format_spec import FormatSpec, cut_at
from feedd.values import ShardIndex

MAGIC = b"RECORDS1"
LENGTH_BYTES = 4


def ends_of(data, url):
    """Return where each record ends, and whether the last one is cut off."""
    ends, at = [], len(MAGIC)
    while at < len(data):
        end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "little")
        if end > len(data):
            return ends, True
        ends.append(end)
        at = end
    return ends, False


class RecordsFormat:
    """Finds the records of a shard. It must be stateless: workers share one reader."""

    name = "records"

    def index(self, data, url):
        """Return where the only field, ``data``, lies in each sample."""
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise BadShard(f"expected {MAGIC!r} at byte 0, got {bytes(data[: len(MAGIC)])!r}", object=url)
        ends, cut_off = ends_of(data, url)
        if cut_off:
            raise BadShard(f"expected a whole record behind byte {ends[-1] if ends else len(MAGIC)}", object=url)
        ends = np.array(ends, np.int64)
        starts = np.concatenate(([len(MAGIC)], ends[:-1])).astype(np.int64)[: len(ends)] + LENGTH_BYTES
        keys = [b"%d" % number for number in range(len(ends))]
        key_ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
        return ShardIndex(("data",), starts[None], (ends - starts)[None], b"".join(keys), key_ends)


def begins(data):
    """Whether a file without a telling name is one of ours."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def whole_records_end(data):
    """Return where the last whole record ends in the first bytes of a file; 0 if there is none."""
    ends, _ = ends_of(data, "")
    return ends[-1] if ends else 0


RECORDS = FormatSpec(RecordsFormat(), (".records",), begins=begins, first_samples=cut_at(whole_records_end))
