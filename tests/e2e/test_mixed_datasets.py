"""Several datasets mixed, through real daemons: weights exactly, recipes of their own, resumed anywhere."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader

from feedd.dataset.index_file import INDEX_NAME, Row, render
from feedd_client import BadRecipeError, BadRequestError, FeedDataset, Source, StateError, Topology
from tests.budget import later
from tests.e2e.shards import jpeg, numbered, tar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(180)]

FIELDS = {"jpg": "image:32x32", "cls": "int"}
OTHER: dict[str, str | dict[str, Any]] = {
    "jpg": {"decode": "image", "size": [32, 32], "from": ["picture"]},
    "cls": {"decode": "int", "from": ["num"]},
}
OTHERS = 100_000  # their labels begin here
COUNTS, OTHER_COUNTS = [21, 13, 30, 18, 25, 9], [17, 22, 11, 14]
ONES = [shard * 1000 + n for shard, count in enumerate(COUNTS) for n in range(count)]


def _fill(s3: S3Server, folder: str, shards: Sequence[tuple[int, bytes]]) -> None:
    """Store shards with their counts, and what ``feedd index`` would write beside them."""
    rows = []
    for number, (count, data) in enumerate(shards):
        key = f"{number:02d}.tar"
        rows.append(Row(key, len(data), s3.put("data", f"{folder}/{key}", data), count))
    s3.put("data", f"{folder}/{INDEX_NAME}", render(rows))


def _other(shard: int, count: int) -> bytes:
    labels = [OTHERS + shard * 1000 + n for n in range(count)]
    return tar([(f"{label:08d}", {"num": str(label).encode(), "picture": jpeg(label)}) for label in labels])


@pytest.fixture
def filled(s3: S3Server) -> S3Server:
    """Two counted datasets that name label and picture differently."""
    _fill(s3, "a", [(count, numbered(shard, count, pad_bytes=100)) for shard, count in enumerate(COUNTS)])
    _fill(s3, "b", [(count, _other(shard, count)) for shard, count in enumerate(OTHER_COUNTS)])
    return s3


def _dataset(daemon: Daemon, *weights: float, **options: Any) -> FeedDataset:
    one, other = weights or (0.7, 0.3)
    sources = [Source("s3://data/a/", one), Source("s3://data/b/", other, OTHER)]
    settings: dict[str, Any] = {"batch_size": 10, "fields": FIELDS, "shuffle": True, "seed": 5}
    return FeedDataset(sources, address=daemon.address, **{**settings, **options})


def _labels(batches: Iterable[Any]) -> list[list[int]]:
    return [batch["cls"].tolist() for batch in batches]


def test_weights_are_realised_and_every_state_resumes(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Each batch is 7 to 3, pictures are their labels', and from any state, on another daemon, the same tail comes."""
    daemon = daemons()
    dataset = _dataset(daemon)
    assert len(dataset) == len(ONES) // 7
    whole: list[list[int]] = []
    states: list[dict[str, Any]] = [dataset.state_dict()]
    pictures: dict[int, int] = {}
    for _ in range(3):
        for batch in dataset:
            whole.append(batch["cls"].tolist())
            states.append(json.loads(json.dumps(dataset.state_dict())))
            for label, picture in zip(whole[-1], batch["jpg"], strict=True):
                assert pictures.setdefault(label, int(picture.long().sum())) == int(picture.long().sum())
    assert all(sum(label < OTHERS for label in labels) == 7 for labels in whole)
    assert len(whole) == 3 * (len(ONES) // 7)
    order = [label for labels in whole for label in labels]
    ones, others = [n for n in order if n < OTHERS], [n for n in order if n >= OTHERS]
    assert sorted(ones[: len(ONES)]) == ONES
    assert len(set(others[: sum(OTHER_COUNTS)])) == sum(OTHER_COUNTS)
    assert ones[: len(ONES)] != ONES
    fresh = daemons("fresh")
    for step in range(0, len(whole), 7):
        resumed = _dataset(fresh if step % 2 else daemon)
        resumed.load_state_dict(states[step])
        tail = [labels for _ in range(3 - step // (len(whole) // 3)) for labels in _labels(resumed)]
        assert tail == whole[step:]
        resumed.close()
    with pytest.raises(StateError, match="weights of source 0"):
        _dataset(daemon, 0.6, 0.3).load_state_dict(states[5])
    dataset.close()
    del batch, picture
    for one in (daemon, fresh):
        one.wait_idle()


@pytest.mark.parametrize("mode", [later("sample"), later("batch"), "batch-sample"])
def test_workers_and_ranks_split_a_mixture(filled: S3Server, daemons: Callable[..., Daemon], mode: str) -> None:
    """Two nodes of two ranks have as many steps, each by itself; DataLoader workers take theirs of a rank's."""
    nodes = [daemons(f"node{number}") for number in range(2)]
    ranks = [(node, local) for node in range(2) for local in range(2)]

    def dataset(node: int, local: int) -> FeedDataset:
        topology = Topology(4, 2 * node + local, 2, local, 2, node)
        return _dataset(nodes[node], 2, 1, batch_size=4, mix=mode, topology=topology, samples_per_epoch=210)

    datasets = [dataset(*rank) for rank in ranks]
    walks = [_labels(one) for one in datasets]
    assert [len(walk) for walk in walks] == [13] * 4 == [len(one) for one in datasets]
    if mode != "sample":
        assert all(len({label < OTHERS for label in labels}) == 1 for walk in walks for labels in walk)
    for node in range(2):  # by far not all of a node's came twice before each came once
        came = Counter(label for walk in walks[2 * node : 2 * node + 2] for labels in walk for label in labels)
        assert max(count for label, count in came.items() if label < OTHERS) <= 2
        share = sum(count for label, count in came.items() if label < OTHERS)
        assert abs(share - 104 * 2 / 3) <= (4 if mode != "sample" else 1)
    assert not {label for labels in walks[0] for label in labels} & {label for labels in walks[2] for label in labels}
    for worker_count, (rank, walk) in itertools.product((1, 2), zip(ranks[:2], walks[:2], strict=True)):
        split = dataset(*rank)
        assert _labels(DataLoader(split, batch_size=None, num_workers=worker_count)) == walk
        split.close()
    for one in datasets:
        one.close()
    for daemon in nodes:
        daemon.wait_idle()


@pytest.mark.nightly
def test_other_nodes_go_on_with_a_mixture(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """With two partitions a run of two nodes goes on on one, every step of all ranks holding what it would have."""
    nodes = [daemons(f"node{number}") for number in range(2)]

    def datasets(node_count: int) -> list[FeedDataset]:
        return [
            _dataset(
                nodes[node],
                batch_size=20 // node_count,
                partitions=2,
                sharding="sample",
                topology=Topology(node_count, node, 1, 0, node_count, node),
            )
            for node in range(node_count)
        ]

    def steps(those: list[FeedDataset]) -> list[list[int]]:
        return [sorted(itertools.chain(*step)) for step in zip(*map(_labels, those), strict=True)]

    alone, pair = datasets(1), datasets(2)
    whole = [steps(alone), steps(alone)]
    assert steps(pair) == whole[0]
    heads = [itertools.islice(iter(one), 3) for one in pair]
    assert [sorted(itertools.chain(*step)) for step in zip(*map(_labels, heads), strict=True)] == whole[1][:3]
    resumed = datasets(1)
    resumed[0].load_state_dict(pair[1].state_dict())
    assert steps(resumed) == whole[1][3:]
    for one in (*alone, *pair, *resumed):
        one.close()
    for daemon in nodes:
        daemon.wait_idle()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")  # so it is, here
def test_distributed_checkpoint_of_a_mixture(filled: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """torch.distributed.checkpoint saves and loads the position of a mixture with its sources and weights."""
    from torch.distributed.checkpoint.state_dict_loader import load  # noqa: PLC0415 - takes long, and for this test only
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415 - see above

    daemon = daemons()
    whole = _labels(_dataset(daemon))
    dataset = _dataset(daemon)
    seen = _labels(itertools.islice(iter(dataset), 5))
    save({"data": dataset.state_dict()}, checkpoint_id=str(tmp_path), no_dist=True)
    fresh = _dataset(daemon)
    found: dict[str, Any] = {"data": fresh.state_dict()}
    load(found, checkpoint_id=str(tmp_path), no_dist=True)
    fresh.load_state_dict(found["data"])
    assert seen + _labels(fresh) == whole


def test_weights_that_change_change_the_length(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """A source that comes in later is not there before; len() is of the epoch that comes, and right."""
    daemon = daemons()
    sources = [Source("s3://data/a/", 1), Source("s3://data/b/", {0: 0, 1: 1}, OTHER)]
    dataset = FeedDataset(sources, batch_size=8, fields=FIELDS, address=daemon.address)
    expected = [len(ONES) // 8, 2 * sum(OTHER_COUNTS) // 8, 2 * sum(OTHER_COUNTS) // 8]
    whole = []
    for epoch, steps in enumerate(expected):
        assert len(dataset) == steps
        labels = _labels(dataset)
        assert len(labels) == steps
        assert all(sum(label < OTHERS for label in one) == (4 if epoch else 8) for one in labels)
        whole += labels
    by_len = FeedDataset(sources, batch_size=8, fields=FIELDS, address=daemon.address)
    taken = []
    for _ in expected:  # as trainers do that never ask for more batches than there are
        taken += _labels(itertools.islice(iter(by_len), len(by_len)))
    assert taken == whole
    assert by_len.state_dict()["epoch"] == 3
    for one in (dataset, by_len):
        one.close()
    daemon.wait_idle()


def test_what_cannot_be_mixed_says_why(filled: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Shards nobody counted, and sources that make something else of a field, are one clear error; the daemon lives."""
    daemon = daemons()
    filled.put("data", "c/00.tar", numbered(0, 9))
    sources = [Source("s3://data/a/"), Source("s3://data/c/")]
    with pytest.raises(BadRequestError, match=r"sample counts.*s3://data/c/.*run feedd index s3://data/c/"):
        iter(FeedDataset(sources, batch_size=4, fields=FIELDS, address=daemon.address))
    other: dict[str, str | dict[str, Any]] = {
        **OTHER,
        "jpg": {"decode": "image", "size": [16, 32], "from": ["picture"]},
    }
    with pytest.raises(BadRecipeError, match=r"field 'jpg' as dense uint8 32x32x3.*got dense uint8 16x32x3.*data/b/"):
        iter(
            FeedDataset(
                [Source("s3://data/a/"), Source("s3://data/b/", fields=other)],
                batch_size=4,
                fields=FIELDS,
                address=daemon.address,
            )
        )
    one = _dataset(daemon)
    assert len(_labels(one)) == len(ONES) // 7
    one.close()
    daemon.wait_idle()
