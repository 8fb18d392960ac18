"""Why objects of a listing are passed over, how many of them, and how large: each object has one reason."""

from __future__ import annotations

from feedd.catalog.ignored_objects import IgnoredKeys
from feedd.catalog.object_grouper import Grouped, ObjectGrouper
from feedd.dataset.passed_over import PassedOver
from feedd.values import ObjectRef


def grouped(names: dict[str, int], prefix: str = "t/") -> Grouped:
    """Group a listing of objects of those sizes as the daemon does."""
    gathering = ObjectGrouper(prefix, ignored=IgnoredKeys(prefix))
    gathering.add([ObjectRef("s3://b", prefix + name, size, "e") for name, size in sorted(names.items())])
    found = gathering.grouped()
    amounts = found.reasons.values()
    assert sum(amount.count for amount in amounts) == found.left_out
    assert set(found.examples) <= {one for amount in amounts for one in amount.examples}
    return found


def told(found: Grouped) -> dict[str, tuple[int, int]]:
    """Return counts and bytes by reason."""
    return {kind.value: (amount.count, amount.size_bytes) for kind, amount in found.reasons.items()}


def test_hidden_shards_are_told_from_hidden_files() -> None:
    """A tar below a folder with an underscore may be data; a marker of a job, or a file manager's, is none."""
    hidden = {"_a/0.tar": 100, "_a/1.tar.gz": 200, ".b/x.parquet": 300, "_c/d.csv": 400}
    files = {"_SUCCESS": 0, "._0.tar": 9, ".c.tar.crc": 8, ".DS_Store": 7, "_metadata": 6, "_a/2.tar": 0, ".x.tar": 5}
    found = grouped({"b/0.tar": 1, **hidden, **files})
    assert told(found) == {"hidden-shards": (4, 1000), "hidden-files": (7, 35)}
    assert [ref.key for ref in found.refs] == ["t/b/0.tar"]


def test_side_files_and_tables_beside_tars() -> None:
    """What tools leave beside shards, and img2dataset's tables, have reasons of their own."""
    found = grouped({"0.tar": 1, "0.parquet": 20, "README.md": 3, "labels.txt": 4, "0.tar.md5": 5})
    assert told(found) == {"side-files": (3, 12), "tables-beside-tars": (1, 20)}


def test_what_lies_beside_samples() -> None:
    """Captions without a picture, tables, hidden pictures and unknown files are each counted as such."""
    names = {
        "a.jpg": 1,
        "a.json": 1,
        "b.json": 10,
        "b.txt": 20,
        "labels.csv": 30,
        "x.zip": 40,
        "noext": 50,
        "README.md": 60,
        ".ipynb_checkpoints/c.jpg": 70,
        "_SUCCESS": 0,
    }
    found = grouped(names)
    assert told(found) == {
        "side-files": (1, 60),
        "hidden-files": (1, 0),
        "tables-beside-samples": (1, 30),
        "unknown-objects": (2, 90),
        "lone-companions": (2, 30),
        "hidden-shards": (1, 70),
    }


def test_reasons_of_several_urls_add_up() -> None:
    """What is passed over of two URLs is told together."""
    one, two = (grouped({"0.tar": 1, f"_{name}/1.tar": 5}) for name in "ab")
    both = [PassedOver(of.left_out, of.examples, of.reasons) for of in (one, two)]
    (amount,) = both[0].plus(both[1]).reasons.values()
    assert (amount.count, amount.size_bytes, amount.examples) == (2, 10, ("t/_a/1.tar", "t/_b/1.tar"))
