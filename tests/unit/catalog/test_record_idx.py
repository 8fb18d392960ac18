"""MXNet's .idx beside a shard of records: what names fewer is said, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from feedd.catalog.record_idx import idx_sizes, least_bytes, say_fewer
from feedd.formats.format_registry import get
from feedd.values import ObjectRef
from tests.fakes.feeding import batches, feeding
from tests.fakes.recordio import image_record, recordio

if TYPE_CHECKING:
    import random
    from pathlib import Path


def idx(sizes: list[int], keys: list[int]) -> bytes:
    """Return the .idx of records of these padded sizes."""
    offsets = np.cumsum([0, *sizes[:-1]]).tolist() if sizes else []
    return b"".join(b"%d\t%d\n" % pair for pair in zip(keys, offsets, strict=True))


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.randoms(use_true_random=False), st.integers(0, 9000))
def test_an_idx_of_all_records_is_never_too_short(payloads: list[int], rng: random.Random, shift: int) -> None:
    """Whatever its keys are, and however long the records: it takes at least what is said."""
    records = [bytes(size) for size in payloads]
    framed = [len(recordio(record)) for record in records]
    keys = [key + shift for key in rng.sample(range(2 * len(records)), len(records))]
    index = get("recordio-raw").index(memoryview(recordio(*records)), "s3://b/a.rec")
    ref = ObjectRef("s3://b", "a.rec", 1, "e")
    whole = idx(framed, keys)
    assert not say_fewer(ref, len(whole), index)
    plain = idx(framed, list(range(len(records))))
    assert least_bytes(np.cumsum([0, *framed[:-1]])) == len(plain)
    with structlog.testing.capture_logs() as logs:
        assert say_fewer(ref, len(plain) // 2 - 1, index) is (len(plain) // 2 - 1 < least_bytes(_before(index)))
    assert len(logs) <= 1


def _before(index: object) -> np.ndarray:
    starts, sizes = index.starts[-1], index.sizes[-1]  # type: ignore[attr-defined]  # a ShardIndex
    return np.concatenate(([0], (starts + sizes)[:-1]))


def test_the_idx_of_a_shard_lies_beside_it() -> None:
    """By its name, in its folder and store; files of tokens have another."""
    refs = [ObjectRef("s3://b", key, 1, "e") for key in ("t/a.rec", "t/b.rec", "u/a.recordio", "t/c.bin")]
    sidecar_refs = [
        ObjectRef("s3://b", key, size, "e") for key, size in (("t/a.idx", 7), ("u/a.idx", 8), ("t/c.idx", 9))
    ]
    assert idx_sizes(refs, sidecar_refs) == {0: 7, 2: 8}
    assert idx_sizes(refs, []) == {}


@pytest.mark.parametrize("named", [4, 3])
async def test_all_records_come_whatever_the_idx_names(tmp_path: Path, named: int) -> None:
    """One line less is a word in the log; all records are samples all the same."""
    records = [image_record(b"\xff\xd8\xff" + b"x" * 300, [n], n) for n in range(4)]
    async with feeding(tmp_path) as rig:
        rig.store.put("train/a.rec", recordio(*records))
        rig.store.put("train/a.idx", idx([len(recordio(records[0]))] * 4, [0, 1, 2, 3])[: None if named == 4 else -7])
        with structlog.testing.capture_logs() as logs:
            made = await batches(await rig.open(fields=(("id", "int"),)))
        assert [one for taken in made for one in taken.ints("id")] == [0, 1, 2, 3]
        assert sum("names fewer records" in log["event"] for log in logs) == (named < 4)
