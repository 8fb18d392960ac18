"""JSON and text, from S3 through a real daemon to tensors: members by their keys, tokens, packed rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from feedd_client import BadRecipeError, BadSampleError, FeedDataset
from tests.fakes.texts import word_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
WORDS = [f"w{n}" for n in range(1, 40)]
LENGTHS = (5, 3, 9, 2, 0, 7)
IDS = [[(7 * n + k) % len(WORDS) + 1 for k in range(size)] for n, size in enumerate(LENGTHS)]


@pytest.fixture
def offered(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """Store JSON Lines, and start a daemon that offers a tokenizer."""
    word_tokenizer(tmp_path / "words.json", WORDS)
    lines = [
        {
            "text": " ".join(WORDS[one - 1] for one in ids),
            "ids": ids,
            "mask": [one % 2 for one in ids],
            "meta": {"score": n / 4},
        }
        for n, ids in enumerate(IDS)
    ]
    s3.put("data", "t/0.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in lines))
    bad = [{"text": 5}, {"none": "w1"}, {"text": "w2", "meta": {"score": None}}]
    s3.put("data", "b/0.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in (*lines, *bad)))
    return daemons(settings=(f"decode.tokenizers={tmp_path}",))


def inside(codec: str, key: object, **more: object) -> dict[str, Any]:
    """Return a recipe of a value inside the lines."""
    return {"decode": codec, "from": "json", "key": key, **more}


def test_members_of_lines(offered: Daemon) -> None:
    """Text, numbers, lists and JSON, each by its key, filtered by one; the line itself can be had beside them."""
    fields: dict[str, str | dict[str, Any]] = {
        "text": inside("str", "text"),
        "score": inside("float", ["meta", "score"]),
        "ids": inside("array", "ids", dtype="int32"),
        "meta": inside("json", "meta"),
        "first": inside("str", "text", **{"as": "again"}),
        "json": "json",
    }
    dataset = FeedDataset(
        "s3://data/t/",
        batch_size=9,
        fields=fields,
        filter={"field": "json", "key": ["meta", "score"], "min": 0.5},
        address=offered.address,
        copy=True,
    )
    (batch,) = dataset
    assert [row.tolist() for row in batch["ids"]] == IDS[2:]
    assert batch["score"].tolist() == [n / 4 for n in range(2, 6)]
    assert batch["meta"] == [{"score": n / 4} for n in range(2, 6)]
    assert batch["text"] == batch["again"] == [one["text"] for one in batch["json"]]
    assert dataset.stats()["filtered_samples"] == 2


@pytest.mark.parametrize("how", ["concat", "bins"])
def test_text_becomes_packed_rows(offered: Daemon, how: str) -> None:
    """Text, tokens, rows: one recipe. stats() counts texts as samples, and rows apart."""
    pack = {"length": 8, "how": how, "fill": -100}
    recipe = inside("tokenize", "text", tokenizer="words.json", end=99, pack=pack)
    dataset = FeedDataset("s3://data/t/", batch_size=6, fields={"x": recipe}, address=offered.address, copy=True)
    (batch,) = dataset
    for number, ids in enumerate(IDS):
        assert batch["x"][batch["x.document"] == number].tolist() == [*ids, 99]
    assert (batch["x"][batch["x.document"] < 0] == -100).all()
    assert batch["x"].dtype == torch.int32
    assert len(batch["x"]) == 4
    stats = dataset.stats()
    assert (stats["batches"], stats["samples"], stats["rows"]) == (1, 6, 4)


def test_a_mask_beside_its_ids(offered: Daemon) -> None:
    """Fields packed alike lie alike."""
    pack = {"length": 8, "how": "bins"}
    fields = {
        "ids": inside("array", "ids", dtype="int64", pack=pack),
        "mask": inside("array", "mask", dtype="uint8", pack={**pack, "fill": 7}),
    }
    (batch,) = FeedDataset("s3://data/t/", batch_size=6, fields=fields, address=offered.address, copy=True)
    there = batch["ids.document"] >= 0
    assert torch.equal(batch["mask"][there].long(), batch["ids"][there] % 2)
    assert (batch["mask"][~there] == 7).all()
    assert int(there.sum()) == sum(LENGTHS)


def test_lines_that_lack_the_key(offered: Daemon) -> None:
    """Bad samples by policy, with the reason."""
    fields = {
        "text": inside("tokenize", "text", tokenizer="words.json"),
        "score": inside("float", ["meta", "score"]),
    }
    asked: dict[str, Any] = {"batch_size": 9, "fields": fields, "address": offered.address, "copy": True}
    skipped = FeedDataset("s3://data/b/", bad_samples="skip", **asked)
    (batch,) = skipped
    assert [row.tolist() for row in batch["text"]] == IDS
    assert skipped.stats()["bad_samples"] == 3
    (replaced,) = FeedDataset("s3://data/b/", bad_samples="replace", **asked)
    assert replaced["__valid__"].tolist() == [True] * 6 + [False] * 3
    with pytest.raises(BadSampleError, match="expected text at the key 'text', got the number 5"):
        list(FeedDataset("s3://data/b/", bad_samples="error", **asked))
    log = offered.log.read_text()
    assert "expected the key 'text', got an object with the keys none" in log
    assert "expected a number at the key ['meta', 'score'], got null" in log.replace('\\"', '"')


def test_what_is_meant_is_said_at_open(offered: Daemon) -> None:
    """A line tokenized whole, a member named as a field, and options that there are: the hint is a recipe."""
    for fields, hint in (
        ({"json": {"decode": "tokenize", "tokenizer": "words.json"}}, r'"key": "text" takes that member'),
        ({"text": "str"}, r'\{"decode": "str", "from": "json", "key": "text"\}'),
        ({"ids": inside("array", "ids", dtype="int32", pad={}, pack={"length": 4})}, "pad or pack"),
        ({"ids": inside("array", "ids", dtype="int32", padding=4)}, r"array takes dtype, pack, key, from, as, pad"),
        ({"ids": inside("tokenize", "text", tokenizer="words.json", size=4)}, "tokenize takes .*pack,.*key, .*pad"),
    ):
        with pytest.raises(BadRecipeError, match=hint):
            next(iter(FeedDataset("s3://data/t/", batch_size=1, fields=fields, address=offered.address)))
