"""The first batch pays for no import: what it needs is loaded when the daemon is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.budget import PATIENT_S

CODE = """
import sys

import numpy as np

from feedd.batching.gather import gather
from feedd.dataset.listing import Listing
from feedd.ordering.rank_reader import Reader, ReaderOptions
from feedd.dataset.assignment import Assignment
from feedd.open_spec import OrderSpec
from feedd.shard_index import ShardIndex
from feedd.values import Cursor, FieldRecipe, ObjectRef, Topology

before = set(sys.modules)
refs = [ObjectRef("s3://b", str(n), 10, "x") for n in range(5)]
listing = Listing.of(refs, 0.0)
listing.counts.update(dict.fromkeys(range(5), 3))
for sharding in ("key", "size", "sample", "replicated"):
    order = OrderSpec(4, sharding=sharding)
    reader = Reader(listing.as_listed.shares(order), ReaderOptions(0, True, 2, 4, Topology()), listing.counts)
    rows = reader.rows(Cursor())
    assert reader.assigned.tolist() == list(range(5))
    blob = ShardIndex(("cls",), np.zeros((1, 3), np.int64), np.ones((1, 3), np.int64), b"abc", np.arange(1, 4))
    gather([blob] * len(rows.shards), rows.shard_no, rows.ordinal, [FieldRecipe("cls", ("cls",), "int")])
print(sorted(set(sys.modules) - before))
"""


@pytest.mark.slow
def test_planning_and_gathering_import_nothing() -> None:
    """Above all not numpy.ma, which some functions of numpy import when they are first called."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=PATIENT_S)
    assert done.stdout.strip() == "[]", done.stderr
