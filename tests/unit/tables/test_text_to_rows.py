"""Values that are known only by decoding them (tokens, members of JSON): once, and laid wherever rows want them."""

from __future__ import annotations

import io
import itertools
import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from feedd.errors import BadRequest
from feedd.recipe import tokenizers
from feedd.values import FieldKind
from feedd.workers import executor as execute
from tests.fakes.feeding import ROOT, Taken, batches, feeding
from tests.fakes.files import npy
from tests.fakes.texts import word_tokenizer
from tests.unit.formats.test_mds import mds

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from feedd.sessions.session import Session
    from feedd.workers.work import DecodeResult, DecodeTask
    from tests.fakes.feeding import Feeding

WORDS = [f"w{n}" for n in range(1, 40)]
LENGTHS = (3, 0, 9, 1, 4, 17, 2)
TEXTS = [" ".join(WORDS[(n + k) % len(WORDS)] for k in range(size)) for n, size in enumerate(LENGTHS)]
IDS = [[(n + k) % len(WORDS) + 1 for k in range(size)] for n, size in enumerate(LENGTHS)]
TOKENIZE = {"decode": "tokenize", "tokenizer": "words.json", "from": "json", "key": "text"}


@pytest.fixture(autouse=True)
def offer(tmp_path: Path) -> Iterator[None]:
    """Offer a tokenizer."""
    word_tokenizer(tmp_path / "offered" / "words.json", WORDS)
    with tokenizers.offered(tmp_path / "offered"):
        yield


def lines(rig: Feeding, *more: dict[str, object]) -> None:
    """Store one shard of the texts with their ids and a mask, and further documents behind them."""
    made = [{"text": text, "ids": ids, "mask": [i % 2 for i in ids]} for text, ids in zip(TEXTS, IDS, strict=True)]
    rig.store.put("train/0.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in (*made, *more)))


async def opened(rig: Feeding, fields: Mapping[str, object], **changes: object) -> Session:
    """Open all samples as one batch."""
    texts = tuple((name, one if isinstance(one, str) else json.dumps(one)) for name, one in fields.items())
    asked: dict[str, object] = {"urls": (f"{ROOT}/train/",), "fields": texts, "batch_size": 20}
    return await rig.open(**(asked | changes))


def values(batch: Taken, name: str) -> list[list[int]]:
    """Return a RAGGED field's rows."""
    at = next(n for n, spec in enumerate(batch.specs) if spec.name == name)
    spec, region = batch.specs[at], batch.ready.regions[at]
    assert spec.kind is FieldKind.RAGGED
    flat = np.frombuffer(batch.data, spec.dtype, region.values_bytes // np.dtype(spec.dtype).itemsize, region.values_at)
    offsets = np.frombuffer(batch.data, np.int64, batch.ready.rows + 1, region.offsets_at)
    return [flat[a:b].tolist() for a, b in itertools.pairwise(offsets)]


def documents(batch: Taken, name: str = "x") -> list[list[int]]:
    """Return what each document of a packed field is, put together again; positions count within rows."""
    tokens, document, position = (np.array(batch.rows(f"{name}{end}")) for end in ("", ".document", ".position"))
    for row_of, at in zip(document, position, strict=True):
        for number in set(row_of.tolist()) - {-1}:
            assert at[row_of == number].tolist() == list(range((row_of == number).sum()))
    return [tokens[document == number].tolist() for number in range(int(document.max(initial=-1)) + 1)]


async def test_text_is_tokenized_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever counts the tokens brings them: nothing is asked of a worker a second time."""
    async with feeding(tmp_path) as rig:
        lines(rig)
        session = await opened(rig, {"x": TOKENIZE, "t": {"decode": "str", "from": "json", "key": "text"}})

        async def refuse(task: DecodeTask) -> DecodeResult:
            raise AssertionError(f"decoded again: {task}")

        monkeypatch.setattr(rig.pool, "decode", refuse)
        (batch,) = await batches(session)
        assert values(batch, "x") == IDS
        assert [text.decode() for text in batch.texts("t")] == TEXTS


async def test_fields_of_both_kinds_in_one_batch(tmp_path: Path) -> None:
    """What is kept is laid, what is not is decoded, and bad rows are left out of all of them, each counted once."""
    async with feeding(tmp_path) as rig:
        lines(rig, {"text": 5, "ids": []}, {"text": "w1", "ids": "no"}, {"ids": 7}, {"text": "w2", "ids": [2], "n": 1})
        fields = {
            "x": TOKENIZE,
            "ids": {"decode": "array", "from": "json", "key": "ids", "dtype": "uint16"},
            "json": "json",
        }
        (batch,) = await batches(await opened(rig, fields, bad_samples_max=3, bad_samples="skip"))
        assert batch.ready.bad_samples == 3
        assert values(batch, "x") == values(batch, "ids") == [*IDS, [2]]
        assert [json.loads(one)["text"] for one in batch.texts("json")] == [*TEXTS, "w2"]


@pytest.mark.parametrize("limit_bytes", [0, 64, 1 << 20])
async def test_what_does_not_come_along_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    """However many of the values fit an answer, batches are the same."""
    monkeypatch.setattr(execute, "_KEPT_BYTES_MAX", limit_bytes)
    async with feeding(tmp_path) as rig:
        lines(rig, {"text": None})
        session = await opened(rig, {"x": TOKENIZE}, bad_samples_max=1, bad_samples="skip")
        (batch,) = await batches(session)
        assert values(batch, "x") == IDS
        assert batch.ready.bad_samples == 1


@pytest.mark.parametrize(
    ("pad", "width", "bad"),
    [({}, 17, 0), ({"to": 5}, 5, 2), ({"to": 5, "truncate": True}, 5, 0), ({"to": [4, 20]}, 20, 0)],
)
async def test_padded(tmp_path: Path, pad: dict[str, object], width: int, bad: int) -> None:
    """As any other field: filled up, cut off, or bad where too long."""
    async with feeding(tmp_path) as rig:
        lines(rig)
        recipe = {**TOKENIZE, "pad": {"value": -7, "lengths": True, **pad}}
        (batch,) = await batches(await opened(rig, {"x": recipe}, bad_samples_max=9, bad_samples="skip"))
        left = [ids[:width] for ids in IDS if len(ids) <= width or not bad]
        assert batch.ready.bad_samples == bad
        assert batch.rows("x") == [ids + [-7] * (width - len(ids)) for ids in left]
        assert batch.rows("x_length") == [len(ids) for ids in left]


@pytest.mark.parametrize("how", ["concat", "bins"])
async def test_text_to_packed_rows(tmp_path: Path, how: str) -> None:
    """Text, tokens, an end behind each, rows of several: all in one recipe; what cannot be tokenized takes no room."""
    async with feeding(tmp_path) as rig:
        lines(rig, {"text": []}, {"text": "w3"})
        recipe = {**TOKENIZE, "end": 99, "pack": {"length": 8, "how": how, "fill": -1}}
        (batch,) = await batches(await opened(rig, {"x": recipe}, bad_samples_max=1, bad_samples="skip"))
        assert batch.ready.bad_samples == 1
        assert documents(batch) == [*([*ids, 99] for ids in IDS), [], [3, 99]]
        tokens, document = np.array(batch.rows("x")), np.array(batch.rows("x.document"))
        assert (tokens[document < 0] == -1).all()
        assert (document >= 0).sum() == sum(LENGTHS) + len(LENGTHS) + 2


async def test_documents_in_columns(tmp_path: Path) -> None:
    """Text columns of Parquet, CSV and MDS hold documents as lines do."""
    async with feeding(tmp_path) as rig:
        made = [json.dumps({"text": text, "n": n}) for n, text in enumerate(TEXTS)]
        table, sink = pa.table({"meta": made, "other": [1.5] * len(made)}), io.BytesIO()
        pq.write_table(table, sink)
        rig.store.put("train/p/0.parquet", sink.getvalue())
        sink = io.BytesIO()
        csv.write_csv(table, sink)
        rig.store.put("train/c/0.csv", sink.getvalue())
        samples = [{"meta": one.encode()} for one in made]
        rig.store.put("train/m/0.mds", mds({"meta": "json"}, samples))
        fields = {
            "x": {**TOKENIZE, "from": "meta"},
            "n": {"decode": "int", "from": "meta", "key": "n"},
        }
        for kind in "pcm":
            (batch,) = await batches(await opened(rig, fields, urls=(f"{ROOT}/train/{kind}/",)))
            assert values(batch, "x") == IDS
            assert batch.ints("n") == list(range(len(IDS)))
        whole = {"decode": "tokenize", "tokenizer": "words.json"}
        with pytest.raises(BadRequest, match="which names the text in each JSON document"):
            await opened(rig, {"meta": whole}, urls=(f"{ROOT}/train/m/",))


@pytest.mark.parametrize("first", [[], [{"cls": b"1"}]])
async def test_a_first_shard_without_text(tmp_path: Path, first: list[dict[str, bytes]]) -> None:
    """An empty one tells nothing, and one that lacks the field is of bad samples."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, first)
        rig.store.shard(1, [{"json": json.dumps({"text": text}).encode(), "cls": b"1"} for text in TEXTS])
        recipe = {**TOKENIZE, "pack": {"length": 8}}
        made = await batches(await opened(rig, {"x": recipe}, bad_samples_max=1, bad_samples="skip"))
        assert [one for batch in made for one in documents(batch)] == [[] for _ in first] + IDS


@pytest.mark.parametrize("how", ["concat", "bins"])
async def test_fields_packed_alike(tmp_path: Path, how: str) -> None:
    """A mask lies where its ids do; a sample whose fields differ in length is bad, and touches nobody's places."""
    async with feeding(tmp_path) as rig:
        lines(
            rig,
            {"ids": [1, 2, 3], "mask": [1] * 9},
            {"ids": [5] * 9, "mask": "no"},
            {"ids": "no", "mask": [4] * 9},
            {"ids": [8], "mask": [1]},
        )
        pack = {"length": 8, "how": how}
        fields = {
            "x": {"decode": "array", "dtype": "int32", "from": "json", "key": "ids", "pack": {**pack, "fill": -1}},
            "mask": {"decode": "array", "dtype": "uint8", "from": "json", "key": "mask", "pack": {**pack, "fill": 3}},
        }
        session = await opened(rig, fields, bad_samples_max=3, bad_samples="skip")
        assert [spec.name for spec in session.info.specs] == ["x", "x.document", "x.position", "mask"]
        (batch,) = await batches(session)
        assert batch.ready.bad_samples == 3
        assert documents(batch) == [*IDS, [], [], [], [8]]
        document, mask = np.array(batch.rows("x.document")), np.array(batch.rows("mask"))
        expected = [*[[i % 2 for i in ids] for ids in IDS], [], [], [], [1]]
        assert [mask[document == n].tolist() for n in range(len(expected))] == expected
        assert (mask[document < 0] == 3).all()


async def test_a_sample_of_uneven_fields_says_so(tmp_path: Path) -> None:
    """With the names and the lengths."""
    async with feeding(tmp_path) as rig:
        lines(rig, {"ids": [1, 2, 3], "mask": [1]})
        one = {"decode": "array", "dtype": "int32", "from": "json", "pack": {"length": 8}}
        session = await opened(rig, {"x": {**one, "key": "ids"}, "m": {**one, "key": "mask"}}, bad_samples="error")
        with pytest.raises(Exception, match="as many values as 'x' has, 3, got 1"):
            await batches(session)


@pytest.mark.parametrize("how", ["concat", "bins"])
async def test_arrays_are_packed(tmp_path: Path, how: str) -> None:
    """Of any integer type, as their first one says."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"npy": npy(np.array(ids, np.uint16))} for ids in IDS])
        recipe = {"decode": "npy", "as": "x", "pack": {"length": 8, "how": how, "fill": 9}}
        session = await opened(rig, {"npy": recipe})
        assert session.info.specs[0].dtype == "uint16"
        (batch,) = await batches(session)
        assert documents(batch) == IDS


async def test_what_cannot_be_packed_is_said_at_open(tmp_path: Path) -> None:
    """More dimensions, fields that are not packed or otherwise, and fill where pack has one."""
    async with feeding(tmp_path) as rig:
        rig.store.shard(0, [{"npy": npy(np.zeros((2, 3), np.int32)), "cls": b"1"}])
        pack = {"length": 8}
        for fields, message in (
            ({"npy": {"decode": "npy", "pack": pack}}, "one dimension.*got 2 dimensions"),
            ({"npy": {"decode": "npy", "shape": [3], "dtype": "int32", "pack": pack}}, "one dimension"),
            ({"npy": {"decode": "npy", "pack": pack}, "cls": "int"}, "all fields to be packed or none, got 'cls'"),
            ({"a": {**TOKENIZE, "pack": pack}, "b": {**TOKENIZE, "pack": {"length": 9}}}, "rows of 8 by 'concat'"),
            ({"a": {**TOKENIZE, "max_length": 4, "fill": 0, "pack": pack}}, "fill inside pack"),
            ({"a": {**TOKENIZE, "pad": {}, "pack": pack}}, "pad or pack"),
            ({"a": {**TOKENIZE, "pack": {"length": 8, "fill": 1 << 40}}}, "a fill that int32 holds"),
        ):
            with pytest.raises(BadRequest, match=message):
                await opened(rig, fields)


@pytest.mark.parametrize(
    ("condition", "kept", "bad"),
    [
        ({"field": "json", "key": "score", "min": 2}, [2, 3, 4, 5, 6], 1),
        ({"field": "json", "key": ["text"], "min_bytes": 3, "max_bytes": 12}, [0, 4, 6], 0),
        ({"field": "json", "key": "ids", "min": 0}, [], 8),
        ({"field": "n", "max": 1}, [0, 1], 1),
        ({"field": "t", "min_bytes": 30}, [5], 0),
        ({"field": "ids", "min_bytes": 10}, [2, 4, 5], 0),
    ],
)
async def test_samples_are_filtered_by_values_inside(
    tmp_path: Path, condition: dict[str, object], kept: list[int], bad: int
) -> None:
    """By a key of their own or that of a decoded field; what cannot be judged is bad, and not filtered."""
    async with feeding(tmp_path) as rig:
        made = [{"text": text, "ids": ids, "score": n} for n, (text, ids) in enumerate(zip(TEXTS, IDS, strict=True))]
        made.append({"text": "w", "ids": [], "score": "high"})
        rig.store.put("train/0.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in made))
        fields = {
            "n": {"decode": "int", "from": "json", "key": "score"},
            "t": {"decode": "str", "from": "json", "key": "text"},
            "ids": {"decode": "array", "from": "json", "key": "ids", "dtype": "int32"},
        }
        session = await opened(rig, fields, filters=(json.dumps(condition),), bad_samples_max=9, bad_samples="skip")
        (batch,) = await batches(session)
        assert batch.ints("n") == kept
        assert batch.ready.bad_samples == bad


async def test_raw_json_is_not_tokenized_by_oversight(tmp_path: Path) -> None:
    """Whoever wants braces and keys says so; the error says both ways."""
    async with feeding(tmp_path) as rig:
        lines(rig)
        whole = {"decode": "tokenize", "tokenizer": "words.json"}
        with pytest.raises(BadRequest, match="which names the text in each JSON document") as caught:
            await opened(rig, {"json": whole})
        assert '"key": "text"' in str(caught.value)
        (batch,) = await batches(await opened(rig, {"json": {**whole, "key": []}}))
        assert batch.ready.rows == len(TEXTS)
        for row, ids in zip(values(batch, "json"), IDS, strict=True):
            assert [one for one in row if one] == ids  # of words; braces, keys and numbers are unknown
            assert row.count(0) > 4 + len(ids)
        most = {"field": "json", "max_bytes": len(json.dumps({"text": TEXTS[0], "ids": IDS[0], "mask": IDS[0]}))}
        fewer = await opened(rig, {"json": {**whole, "key": []}}, filters=(json.dumps(most),))
        (batch,) = await batches(fewer)
        assert (batch.ready.rows, batch.ready.bad_samples) == (4, 0)
