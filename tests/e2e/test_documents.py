"""Megatron's documents as samples, from S3 through a real daemon to tensors."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from feedd_client import FeedDataset, FeedError, Ragged, Shuffle, Source, Topology
from tests.fakes.megatron import Builder, megatron

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

URL = "megatron+s3://data/corpus/part-"


def corpus(s3: S3Server, dtype: str = "uint16", files: int = 3) -> list[list[int]]:
    """Put files of documents of one to four sequences, some empty; return the documents, in order."""
    draw = random.Random(5)
    documents = []
    for file in range(files):
        builder = Builder(dtype)
        for _ in range(40 + file):
            document: list[int] = []
            for _ in range(draw.randint(1, 4)):
                sequence = [draw.randrange(60_000) for _ in range(draw.randrange(30))]
                builder.item(sequence)
                document += sequence
            builder.end_document()
            documents.append(document)
        s3.put("data", f"corpus/part-{file}_text_document.bin", builder.tokens)
        s3.put("data", f"corpus/part-{file}_text_document.idx", builder.index())
    s3.put("data", "corpus/vocab.json", b"{}")
    return documents


def dataset(daemon: Daemon, url: Any = URL, **options: Any) -> FeedDataset:
    """Open the documents."""
    options = dict[str, Any](batch_size=8, fields={"tokens": "array"}, copy=True) | options
    return FeedDataset(url, address=daemon.address, **options)


def samples(batches: Any) -> list[list[int]]:
    """Return the samples of batches one by one."""
    found = []
    for batch in batches:
        assert isinstance(batch["tokens"], Ragged)
        found += [row.tolist() for row in batch["tokens"]]
    return found


def test_documents_are_samples(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """In order, of their own type and length, in steps known ahead; only tokens of a node's own files are fetched."""
    documents = corpus(s3)
    daemon = daemons()
    data = dataset(daemon)
    assert len(data) == -(-len(documents) // 8)
    batches = list(data)
    assert samples(batches) == documents
    assert batches[0]["tokens"].values.dtype == torch.uint16
    assert samples(dataset(daemon, fields=None)) == documents
    got = []
    for node in range(2):
        topology = Topology(2, node, 1, 0, 2, node)
        own = dataset(daemons(name=f"n{node}"), topology=topology, uneven="allow", sharding="sample")
        got.append(samples(own))
    assert abs(len(got[0]) - len(got[1])) <= 1
    assert sorted(got[0] + got[1]) == sorted(documents)


@pytest.mark.nightly
def test_a_run_goes_on(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Shuffled, each document comes once; a run goes on elsewhere, and not over an index that is another one."""
    documents = corpus(s3)
    options = dict[str, Any](shuffle=Shuffle(window_shards=2, bucket_by="tokens"), seed=9)
    whole = samples(dataset(daemons(name="one"), **options))
    assert sorted(whole) == sorted(documents)
    assert whole != documents
    two = daemons(name="two")
    data = dataset(two, **options)
    knows = daemons(name="knows")
    assert len(dataset(knows)) == -(-len(documents) // 8)
    batches = iter(data)
    seen = samples(next(batches) for _ in range(4))
    state = json.loads(json.dumps(data.state_dict()))
    del batches
    fresh = dataset(daemons(name="three"), **options)
    fresh.load_state_dict(state)
    assert seen + samples(fresh) == whole
    file = "corpus/part-1_text_document"
    index, tokens = megatron([[7]] * 41, "uint16")  # as many documents, and other ones
    s3.put("data", f"{file}.idx", index)
    again = dataset(daemons(name="four"), **options)
    again.load_state_dict(state)
    with pytest.raises(FeedError, match="fingerprint"):
        next(iter(again))
    s3.put("data", f"{file}.bin", tokens)
    with pytest.raises(FeedError, match="part-1_text_document"):  # it listed before: what it knows is no more
        samples(dataset(knows))
    assert samples(dataset(knows)) == documents[:40] + [[7]] * 41 + documents[81:]


def test_documents_are_packed(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Into rows of one length, with the document and the position in it of each token; or cut where rows end."""
    documents = corpus(s3, "int32", files=1)
    daemon = daemons()
    for how in ("bins", "concat"):
        recipe = {"decode": "array", "pack": {"length": 128, "how": how, "fill": -1}}
        data = dataset(daemon, fields={"tokens": recipe}, batch_size=len(documents))
        (batch,) = data
        tokens, document, position = (batch[name].numpy() for name in ("tokens", "tokens.document", "tokens.position"))
        assert tokens.shape[1] == 128
        assert tokens.dtype == np.int32
        assert (tokens[document < 0] == -1).all()
        for number, expected in enumerate(documents):
            assert tokens[document == number].tolist() == expected
            assert position[document == number].tolist() == list(range(len(expected))) or how == "concat"


def test_other_ways_to_name_them(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """One file, a manifest of them, a folder of this machine, and several cut to one length."""
    documents = corpus(s3, files=2)
    files = [f"corpus/part-{file}_text_document.bin" for file in range(2)]
    manifest = json.dumps([{"prefix": "s3://data/"}, *files])
    s3.put("data", "two.manifest", manifest.encode())
    index, tokens = megatron([[1, 2], [3]], "int64")
    (tmp_path / "0.idx").write_bytes(index)
    (tmp_path / "0.bin").write_bytes(tokens)
    daemon = daemons()
    assert samples(dataset(daemon, f"megatron+s3://data/{files[0]}")) == documents[:40]
    assert samples(dataset(daemon, "megatron+manifest+s3://data/two.manifest")) == documents
    assert samples(dataset(daemon, f"megatron+file://{tmp_path}")) == [[1, 2], [3]]
    mixed = [Source(f"megatron+s3://data/{file}", weight=1) for file in files]
    both = samples(dataset(daemon, mixed, shuffle=True, batch_size=4))
    assert len(both) == 80  # until the first of them ends
    assert sorted(one for one in both if one and one in documents[:40]) == sorted(filter(None, documents[:40]))
    recipe = {"decode": "array", "pad": {"to": 16, "truncate": True, "value": 0}}
    padded = torch.cat([batch["tokens"] for batch in dataset(daemon, fields={"tokens": recipe})])
    assert padded.tolist() == [(document + [0] * 16)[:16] for document in documents]


def test_what_is_not_there_is_named(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Objects that are no tokens, tokens without an index, an index that is none, and one of other tokens."""
    corpus(s3, files=1)
    daemon = daemons()
    with pytest.raises(FeedError, match=r"vocab\.json.*megatron\+s3://bucket/corpus/part-"):
        next(iter(dataset(daemon, "megatron+s3://data/corpus/")))
    index, tokens = megatron([[1, 2], [3]], "uint16")
    s3.put("data", "bare/0.bin", tokens)
    with pytest.raises(FeedError, match=r"0\.idx, got none.*bare/0\.bin.*tokens:uint16:2049"):
        next(iter(dataset(daemon, "megatron+s3://data/bare/")))
    with pytest.raises(FeedError, match=r"megatron\+"):  # who does not say what samples are is told both ways
        next(iter(dataset(daemon, "s3://data/bare/")))
    s3.put("data", "bare/0.idx", index[:30])
    with pytest.raises(FeedError, match=r"34 bytes.*bare/0\.idx"):
        next(iter(dataset(daemon, "megatron+s3://data/bare/")))
    s3.put("data", "other/0.bin", tokens + tokens)
    s3.put("data", "other/0.idx", index)
    with pytest.raises(FeedError, match=r"sequences of the 12 bytes beside it.*other/0\.idx"):
        next(iter(dataset(daemon, "megatron+s3://data/other/")))
    with pytest.raises(FeedError, match="int"):  # documents are rows of any length, and no numbers
        next(iter(dataset(daemon, fields={"tokens": "image"})))
