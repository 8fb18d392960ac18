"""Labels that are words: of folders, and of a table, numbered alike wherever a run reads them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedd_client import BadRequestError, FeedDataset, FeedError, Source, Topology
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

WORDS = ("n02084071", "zebra", "Ape", "dog-house", "dog", "été")
COUNT = 60


def put(s3: S3Server, prefix: str = "train/") -> dict[str, str]:
    """Put samples into folders named by words; return each one's word by its key."""
    words = {}
    for number in range(COUNT):
        word = WORDS[(number * 5) % len(WORDS)]
        s3.put("data", f"{prefix}{word}/{number:03d}.jpg", f"{number}".encode())
        words[f"{word}/{number:03d}"] = word
    return words


def dataset(daemon: Daemon, label: str = "folder", **options: Any) -> FeedDataset:
    """Open them."""
    fields = {"jpg": "bytes", "label": label}
    options = dict[str, Any](batch_size=8, fields=fields, keys=True, copy=True) | options
    return FeedDataset(options.pop("url", "s3://data/train/"), address=daemon.address, **options)


def labels(batches: Any) -> dict[str, int]:
    """Return the label of each sample by its key."""
    return {
        key: label for batch in batches for key, label in zip(batch["__key__"], batch["label"].tolist(), strict=True)
    }


def test_folders_are_numbered_alike_on_all_nodes(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Each node holds half of the objects, on a daemon of its own; both number, and name, as ImageFolder would."""
    words = put(s3)
    classes = sorted(set(words.values()))
    got: dict[str, int] = {}
    for node in range(2):
        data = dataset(daemons(name=f"n{node}"), topology=Topology(2, node, 1, 0, 2, node), uneven="allow")
        assert data.classes("label") == classes
        part = labels(data)
        assert not part.keys() & got.keys()
        got |= part
    assert {key: classes[label] for key, label in got.items()} == words


def test_a_table_of_words(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A table's words are numbered over all its rows; a run that stops goes on with the same numbers elsewhere."""
    words = put(s3)
    rows = [f"{key}.jpg,{word}" for key, word in words.items()]
    s3.put("data", "train/labels.csv", "\n".join(["file,label", *rows, "gone/1.jpg,aardvark"]).encode())
    classes = sorted({*words.values(), "aardvark"})
    table = "table:labels.csv"
    data = dataset(daemons(name="one"), table, shuffle=True, seed=3)
    batches = iter(data)
    got = labels(next(batches) for _ in range(3))
    state = json.loads(json.dumps(data.state_dict()))
    assert data.classes("label") == classes
    del batches
    fresh = dataset(daemons(name="two"), table, shuffle=True, seed=3)
    fresh.load_state_dict(state)
    got |= labels(fresh)
    assert fresh.classes("label") == classes
    assert {key: classes[label] for key, label in got.items()} == words


def test_a_sample_without_a_label_is_bad(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """It is left out, counted and named with the reason; where none may be bad, the run does not begin."""
    words = put(s3)
    s3.put("data", "train/stray.jpg", b"1")
    rows = [json.dumps({"path": f"{key}.jpg", "label": word}) for key, word in words.items()]
    first = min(words)
    rows = [row for row in rows if f'"{first}.jpg"' not in row]
    rows.append(json.dumps({"path": "stray.jpg", "label": "dog"}))
    s3.put("data", "train/labels.jsonl", "\n".join(rows).encode())
    daemon = daemons(settings=("quarantine.path=bad.jsonl",))
    for recipe, missing, reason in (
        ("folder", "stray", "in no folder"),
        ("table:labels.jsonl", first, "no row of s3://data/train/labels.jsonl gives it a 'label'"),
    ):
        with pytest.raises(BadRequestError, match=missing) as refused:
            next(iter(dataset(daemon, recipe)))
        assert reason in str(refused.value)
        data = dataset(daemon, recipe, bad_samples="quarantine")
        got = labels(data)
        assert got.keys() == {*words, "stray"} - {missing}
        assert data.stats()["bad_samples"] == 1
        names = data.classes("label")
        assert all(names[label] == words.get(key, "dog") for key, label in got.items())
        alone = dataset(daemon, fields={"label": recipe}, keys=False, bad_samples="skip")  # copied many at a time
        assert sorted(label for batch in alone for label in batch["label"].tolist()) == sorted(got.values())
        assert alone.stats()["bad_samples"] == 1
    told = [json.loads(line) for line in (daemon.home / "cache" / "bad.jsonl").read_text().splitlines()]
    reasons = {(one["key"], one["field"]): one["reason"] for one in told}  # an epoch's first batches are made ahead
    assert reasons.keys() == {("stray", "label"), (first, "label")}
    assert "in no folder" in reasons["stray", "label"]
    assert "labels.jsonl" in reasons[first, "label"]


def test_what_is_no_word_has_no_names(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Numbers of a table stay what they are, and asking for names says which fields have some."""
    words = put(s3)
    rows = [f"{key}.jpg,{len(word)}" for key, word in words.items()]
    s3.put("data", "train/sizes.csv", "\n".join(["file,label", *rows]).encode())
    daemon = daemons()
    fields = {"jpg": "bytes", "label": "table:sizes.csv", "kind": "folder"}
    data = dataset(daemon, fields=fields)
    assert labels(data) == {key: len(word) for key, word in words.items()}
    assert data.classes("kind") == sorted(set(words.values()))
    with pytest.raises(FeedError, match="kind"):
        data.classes("label")
    hot = {"jpg": "bytes", "label": {"decode": "folder", "transforms": [{"op": "one_hot", "classes": len(WORDS)}]}}
    for batch in dataset(daemon, fields=hot):
        named = [data.classes("kind")[place] for place in batch["label"].argmax(1).tolist()]
        assert named == [words[key] for key in batch["__key__"]]


def test_mixed_tables_must_number_alike(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Two tables with other words would give one number two meanings: refused; folders are numbered together."""
    for prefix, words in (("a/", ("x", "y")), ("b/", ("y", "z"))):
        rows = ["file,label"]
        for number in range(20):
            word = words[number % 2]
            s3.put("data", f"{prefix}{word}/{number}.jpg", b"1")
            rows.append(f"{word}/{number}.jpg,{word}")
        s3.put("data", f"{prefix}labels.csv", "\n".join(rows).encode())
    daemon = daemons()
    sources = [Source("s3://data/a/"), Source("s3://data/b/")]
    with pytest.raises(BadRequestError, match="same classes"):
        next(iter(dataset(daemon, "table:labels.csv", url=sources)))
    named = {"decode": "table", "file": "labels.csv", "classes": ["z", "y", "x"]}
    data = dataset(daemon, url=sources, fields={"jpg": "bytes", "label": named})
    got = labels(data)
    assert {"zyx"[label] == key.split("/")[0] for key, label in got.items()} == {True}
    assert set(got.values()) == {0, 1, 2}
    data = dataset(daemon, url=sources)
    assert data.classes("label") == ["x", "y", "z"]
    assert {data.classes("label")[label] == key.split("/")[0] for key, label in labels(data).items()} == {True}


def test_text_columns_become_classes(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Text of tables, tars and objects is numbered by the names that a recipe gives; what takes no words says so."""
    kinds = ["cat", "dog", "cat", "eel"]
    sink = io.BytesIO()
    pq.write_table(pa.table({"kind": kinds}), sink)
    s3.put("data", "parquet/0.parquet", sink.getvalue())
    s3.put("data", "csv/0.csv", "\n".join(["kind", *kinds]).encode())
    s3.put("data", "tar/0.tar", tar_bytes([(str(at), {"kind": f"{kind}\n".encode()}) for at, kind in enumerate(kinds)]))
    s3.put("data", "jsonl/0.jsonl", b"".join(b'{"kind": "%s"}\n' % kind.encode() for kind in kinds))
    daemon = daemons()
    fields = {"kind": {"decode": "int", "classes": ["eel", "cat", "dog"]}}
    for url in ("s3://data/parquet/", "s3://data/csv/", "s3://data/tar/"):
        data = dataset(daemon, url=url, fields=fields)
        (batch,) = data
        assert [data.classes("kind")[place] for place in batch["kind"].tolist()] == kinds
        (batch,) = dataset(daemon, url=url, fields={"kind": "str"})
        assert [text.strip() for text in batch["kind"]] == kinds
        with pytest.raises(FeedError, match='for words, use "str", or "classes" to number them'):
            list(dataset(daemon, url=url, fields={"kind": "int"}))
        some = {"kind": {"decode": "int", "classes": ["cat", "dog"]}}
        with pytest.raises(FeedError, match="one of the 2 classes, got b'eel"):
            list(dataset(daemon, url=url, fields=some))
        with pytest.raises(BadRequestError, match=r'"classes": \["cat", "dog"\]'):
            list(dataset(daemon, url=url, fields={"kind": "folder"}))
    with pytest.raises(BadRequestError, match='"from": "json", "key": "kind"'):
        list(dataset(daemon, url="s3://data/jsonl/", fields=fields))
