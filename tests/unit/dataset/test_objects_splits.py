"""Which listings mix the splits of a dataset."""

from __future__ import annotations

import pytest

from feedd.dataset.splits import with_one_split
from feedd.values import ObjectRef


def others(keys: str, base: str) -> list[str]:
    """Return the first shards of other splits in a listing, and check that each is counted with its bytes."""
    found = with_one_split([ObjectRef("s3://b", key, 10, "e") for key in keys.split()], base)
    assert all(kind.value == "splits-together" and one.size_bytes == 10 * one.count for kind, one in found.items())
    return [key for one in found.values() for key in one.examples]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("d/train/0.tar d/val/0.tar d/val/1.tar", "d/val/0.tar d/val/1.tar"),
        (
            "d/data/test-00000-of-00001.parquet d/data/train-00000-of-00002.parquet",
            "d/data/test-00000-of-00001.parquet",
        ),
        ("d/train.bin d/val.bin", "d/val.bin"),
        ("d/training/x/0.tar d/validation/x/0.tar", "d/validation/x/0.tar"),
    ],
)
def test_validation_beside_training_is_found(keys: str, expected: str) -> None:
    """Folders and names of files tell splits; the shards that are not of training are named."""
    assert others(keys, "d/") == expected.split()


@pytest.mark.parametrize(
    "keys",
    [
        "d/train/0.tar d/train/1.tar",
        "d/val/0.tar d/test/0.tar",
        "d/trains/0.tar d/vals/0.tar",
        "d/train/0.tar d/evaluation_of_trains/0.tar d/contest/1.tar",
        "d/a.tar d/b.tar",
    ],
)
def test_one_split_or_other_names_are_no_mixture(keys: str) -> None:
    """One split alone is what was asked for, and names that only contain such words say nothing."""
    assert others(keys, "d/") == []


def test_the_folder_that_is_named_is_not_judged() -> None:
    """Above the prefix a name may be anything: whoever names it knows it."""
    assert others("test/train/0.tar test/train/1.tar", "test/") == []
    assert others("train/0.tar train/test/1.tar", "train/") == []
