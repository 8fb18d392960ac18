"""``feedd plan``: every object to the right node, sums that agree, a word about skew."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.cli.plan import PlanReport, assignments, summarise, warnings_of
from feedd.dataset.index_file import INDEX_NAME, Row, render
from feedd.dataset.sharding import assign, balance
from feedd.fetch.local_store import LocalStore
from feedd.values import ObjectRef

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tests.unit.cli.conftest import Feedd


def _refs(sizes: list[int]) -> list[ObjectRef]:
    return [ObjectRef("s3://b", f"k{index:03}", size, "e") for index, size in enumerate(sizes)]


async def _counted(counts: dict[Path, int]) -> list[Row]:
    """Return what feedd index would say of files."""
    store = LocalStore(1)
    refs = {path: await store.head(str(path)) for path in counts}
    await store.close()
    return [Row(path.name, ref.size_bytes, ref.etag, counts[path]) for path, ref in refs.items()]


def _report(sizes: list[int], nodes: int, sharding: str) -> PlanReport:
    refs = _refs(sizes)
    return summarise(["s3://b/"], refs, assignments(refs, nodes, sharding), sharding)


@given(st.lists(st.integers(0, 10**6), max_size=40), st.integers(1, 9), st.sampled_from(["key", "size"]))
def test_the_nodes_add_up_to_the_whole(sizes: list[int], nodes: int, sharding: str) -> None:
    """Split data: objects and bytes of all nodes together are those of the dataset, shares add up to one."""
    report = _report(sizes, nodes, sharding)
    assert sum(share.objects for share in report.nodes) == len(sizes) == report.objects
    assert sum(share.bytes for share in report.nodes) == sum(sizes) == report.bytes
    assert sum(share.share for share in report.nodes) == pytest.approx(1.0 if sum(sizes) else 0.0)
    assert report.skew >= 0.0


def test_replicated_data_goes_to_everyone() -> None:
    """Each node reads everything; nothing is skewed."""
    report = _report([10, 20], 3, "replicated")
    assert [share.bytes for share in report.nodes] == [30, 30, 30]
    assert report.skew == pytest.approx(0.0)


@pytest.mark.parametrize("sharding", ["key", "size", "replicated"])
def test_all_nodes_are_planned_at_once(monkeypatch: pytest.MonkeyPatch, sharding: str) -> None:
    """However many nodes there are, shards are balanced once; each node gets what it would find by itself."""
    calls: list[int] = []

    def noted(sizes: NDArray[np.int64], count: int) -> NDArray[np.int64]:
        calls.append(count)
        return balance(sizes, count)

    monkeypatch.setattr("feedd.dataset.sharding.balance", noted)
    refs = _refs([(7 * index) % 31 for index in range(200)])
    found = [indices.tolist() for indices in assignments(refs, 64, sharding)]
    assert len(calls) == (sharding == "size")
    sizes = np.array([ref.size_bytes for ref in refs])
    assert found == [assign(sizes, 64, node, sharding).tolist() for node in range(64)]


def test_skew_is_warned_about() -> None:
    """A fullest node more than a fifth above the mean is worth a word, and size sharding the cure."""
    assert warnings_of(_report([100, 1, 100, 1], 2, "key")) == [
        "the fullest node reads 98 % more bytes than the mean; --sharding size evens it out"
    ]
    assert warnings_of(_report([100, 1, 100, 1], 2, "size")) == []
    assert warnings_of(_report([100, 110], 2, "key")) == []


def test_idle_nodes_are_warned_about() -> None:
    """Fewer objects than nodes leaves some without work, by name."""
    assert warnings_of(_report([5, 5], 4, "key")) == ["2 objects for 4 nodes: nothing for node 2, 3"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four files of 1, 2, 3 and 4 KiB."""
    folder = tmp_path / "data"
    folder.mkdir()
    for index in range(4):
        (folder / f"shard-{index}.tar").write_bytes(b"x" * 1024 * (index + 1))
    return folder


def test_table_shows_each_node(feedd: Feedd, data: Path) -> None:
    """Objects, bytes, share, first and last key of every node."""
    outcome = feedd("plan", f"{data}/", "--nodes", "2")
    assert outcome.code == 0
    assert "4 objects, 10KiB, sharding key" in outcome.out
    rows = [line.split("│") for line in outcome.out.splitlines() if line.startswith("│")][:2]
    assert [[cell.strip() for cell in row[1:5]] for row in rows] == [
        ["0", "2", "4KiB", "40.0 %"],
        ["1", "2", "6KiB", "60.0 %"],
    ]
    assert [row[5].strip().rpartition("/")[2] for row in rows] == ["shard-0.tar", "shard-1.tar"]
    assert [row[6].strip().rpartition("/")[2] for row in rows] == ["shard-2.tar", "shard-3.tar"]
    assert outcome.err == ""


def test_shows_how_well_the_order_mixes(feedd: Feedd, data: Path) -> None:
    """From how many shards a batch comes: 3 and 7 samples of 1 KiB per node, all of them in one window."""
    outcome = feedd("plan", f"{data}/", "--nodes", "1", "--batch-size", "5", "--sample-size", "1KiB")
    title = "shards in a batch of 5, windows of 4 shards (10 samples of 1KiB, by --sample-size)"
    assert title in " ".join(outcome.out.split())
    mixed = json.loads(feedd("plan", f"{data}/", "--nodes", "1", "--sample-size", "1KiB", "--json").out)["shuffle"]
    assert (mixed["windows"], mixed["full"], mixed["window_samples"]) == (4.0, 4.0, 10)


def test_counts_of_feedd_index_are_used(feedd: Feedd, tmp_path: Path) -> None:
    """Samples that feedd index has counted are shown of each node, and are what the order is measured by."""
    folder = tmp_path / "lines"
    folder.mkdir()
    for index in range(4):
        (folder / f"part-{index}.jsonl").write_text("{}\n" * (index + 1))
    plain = json.loads(feedd("plan", f"{folder}/", "--nodes", "2", "--json").out)
    assert [node["samples"] for node in plain["nodes"]] == [None, None]
    (folder / INDEX_NAME).write_bytes(
        render(asyncio.run(_counted({folder / f"part-{index}.jsonl": index + 1 for index in range(4)})))
    )
    told = json.loads(feedd("plan", f"{folder}/", "--nodes", "2", "--json").out)
    assert [node["samples"] for node in told["nodes"]] == [1 + 3, 2 + 4]
    assert (told["shuffle"]["window_samples"], told["shuffle"]["sample_bytes"]) == (4, 3)


def test_one_node_is_the_default(feedd: Feedd, data: Path) -> None:
    """Without a number of nodes, one reads everything."""
    facts = json.loads(feedd("plan", f"{data}/", "--json").out)
    assert [(node["node"], node["objects"]) for node in facts["nodes"]] == [(0, 4)]


def test_json_is_one_object(feedd: Feedd, data: Path) -> None:
    """The same facts for machines, with the keys when asked for."""
    facts = json.loads(feedd("plan", f"{data}/", "--nodes", "2", "--json", "--keys").out)
    assert [node["bytes"] for node in facts["nodes"]] == [4096, 6144]
    assert [[key.rpartition("/")[2] for key in keys] for keys in facts["keys"]] == [
        ["shard-0.tar", "shard-2.tar"],
        ["shard-1.tar", "shard-3.tar"],
    ]


def test_what_is_left_out_is_said_with_its_reason(feedd: Feedd, data: Path) -> None:
    """Each reason is a line on standard error with count, bytes and what to do; --json has the same by kind."""
    (data / "_old").mkdir()
    for name in ("_old/0.tar", "_old/1.tar"):
        (data / name).write_bytes(b"x" * 1024)
    (data / "README.md").write_text("none")
    outcome = feedd("plan", f"{data}/")
    assert outcome.code == 0
    hidden, notes = outcome.err.splitlines()
    assert hidden.startswith("feedd: warning: objects below a folder or name that begins with . or _ are not read")
    assert ": 2, 2KiB (" in hidden
    assert "; rename them" in hidden
    assert notes.startswith("feedd: notes, checksums, lists and metadata beside the data are not read: 1, 4B (")
    told = feedd("plan", f"{data}/", "--json")
    notices = json.loads(told.out)["notices"]
    counts = {kind: (one["count"], one["bytes"], one["warns"]) for kind, one in notices.items()}
    assert counts == {"hidden-shards": (2, 2048, True), "side-files": (1, 4, False)}
    assert hidden == f"feedd: warning: {notices['hidden-shards']['text']}"
    assert told.err == outcome.err


def test_counts_that_are_not_used_are_said(feedd: Feedd, data: Path) -> None:
    """A count of a shard that is not there any more is a warning, said once."""
    (data / INDEX_NAME).write_bytes(render([Row("gone.tar", 1, "x", 1)]))
    (said,) = feedd("plan", f"{data}/").err.splitlines()
    assert said.startswith("feedd: warning: sample counts beside the data are not used")
    assert "gone.tar: does not exist" in said
    (data / INDEX_NAME).write_bytes(b"no json")
    (said,) = feedd("plan", f"{data}/").err.splitlines()
    assert said.startswith("feedd: warning: files with sample counts beside the data are not used")


def test_keys_are_lines(feedd: Feedd, data: Path) -> None:
    """Node and URL of every object, for other tools."""
    lines = feedd("plan", f"{data}/", "--nodes", "2", "--keys").out.splitlines()
    assert [(line.split("\t")[0], line.rpartition("/")[2]) for line in lines] == [
        ("0", "shard-0.tar"),
        ("0", "shard-2.tar"),
        ("1", "shard-1.tar"),
        ("1", "shard-3.tar"),
    ]


def test_nothing_there_is_an_error(feedd: Feedd, tmp_path: Path) -> None:
    """A URL that names nothing is exit code 1 and one line."""
    outcome = feedd("plan", f"{tmp_path}/none/", "--nodes", "2")
    assert outcome.code == 1
    assert outcome.err.startswith("feedd: error: ")


@pytest.mark.parametrize("arguments", [("s3://b/", "--sharding", "random"), ("ftp://b/",)], ids=" ".join)
def test_impossible_requests_exit_with_2(feedd: Feedd, arguments: tuple[str, ...]) -> None:
    """An unknown split or scheme is the user's to correct."""
    assert feedd("plan", *arguments, "--nodes", "2").code == 2


def test_large_files_are_planned_as_spans(feedd: Feedd, tmp_path: Path) -> None:
    """Rows of .npy and windows of tokens are split among nodes; without a recipe, tokens are whole."""
    (rows := tmp_path / "rows").mkdir()
    np.save(rows / "a.npy", np.zeros((5000, 256), np.float32))
    (tokens := tmp_path / "tokens").mkdir()
    (tokens / "a.bin").write_bytes(bytes(5 << 20))
    small = ("--nodes", "4", "--set", "fetch.span_size=1MiB")
    found = json.loads(feedd("plan", f"npy+file://{rows}/", *small, "--json", "--keys").out)
    assert [node["objects"] for node in found["nodes"]] == [1, 1, 1, 1]
    assert [node["samples"] for node in found["nodes"]] == [1250] * 4
    assert [[key.rpartition("/")[2] for key in keys] for keys in found["keys"]] == [
        [f"a.npy#samples={at}-{at + 1250}"] for at in range(0, 5000, 1250)
    ]
    assert json.loads(feedd("plan", f"npy+file://{rows}/", "--json").out)["objects"] == 1, "64 MiB are the default"
    assert json.loads(feedd("plan", f"{tokens}/", *small, "--json").out)["objects"] == 1
    recipe = ("--fields", '{"tokens": "tokens:uint16:1024"}')
    found = json.loads(feedd("plan", f"{tokens}/", *small, *recipe, "--json").out)
    assert sum(node["samples"] for node in found["nodes"]) == ((5 << 19) - 1) // 1023, "windows share a token"
    assert found["objects"] > 1
    assert found["skew"] < 0.5
