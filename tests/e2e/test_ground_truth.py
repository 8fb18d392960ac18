"""SageMaker's augmented manifests from S3 through a real daemon: fields, shuffled nodes, resumed runs, bad lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from feedd_client import BadRequestError, BadSampleError, FeedDataset, Topology
from tests.e2e.test_objects import picture

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]

URL = "augmented+s3://data/train.manifest"
COUNT = 400


def put(s3: S3Server, lines: list[Any]) -> None:
    """Put a manifest."""
    texts = (one if isinstance(one, str) else json.dumps(one) for one in lines)
    s3.put("data", "train.manifest", "\n".join(texts).encode())


def test_fields_of_the_documentation(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Without ``fields``, images of two buckets, boxes and labels arrive as tensors and values."""
    lines = [
        {
            "source-ref": f"s3://{'data' if number % 2 else 'images'}/{number}.jpg",
            "species": number,
            "box": [1.5, number],
            "bounding-box": {"annotations": [{"class_id": number, "left": 3}]},
            "source": f"text {number}",
        }
        for number in range(12)
    ]
    for number in range(12):
        s3.put("data" if number % 2 else "images", f"{number}.jpg", picture(number))
    put(s3, lines)
    (batch,) = FeedDataset(URL, batch_size=12, address=daemons().address, keys=True)
    assert batch["species"].tolist() == list(range(12))
    assert np.asarray(batch["source-ref"][3]).shape == (30, 40, 3)
    assert batch["box"].values.tolist()[:4] == [1.5, 0, 1.5, 1]
    assert batch["bounding-box"] == [line["bounding-box"] for line in lines]
    assert batch["source"] == [line["source"] for line in lines]
    assert batch["__key__"] == [f"{number + 1:08d}" for number in range(12)]


def test_a_channel(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """The job's files, read by the daemon, say what is read, by whom and in which order; what is passed wins."""
    folder = tmp_path / "input/config"
    folder.mkdir(parents=True)
    channel = {
        "S3Uri": "s3://data/train.manifest",
        "S3DataType": "AugmentedManifestFile",
        "AttributeNames": ["label"],
        "ShuffleConfig": {"Seed": 5},
    }
    (folder / "inputdataconfig.json").write_text(json.dumps({"train": channel}))
    put(s3, [{"label": number, "other": "x"} for number in range(64)])
    options = dict[str, Any](batch_size=64, address=daemons(settings=(f"sagemaker.root={tmp_path}",)).address)
    place = Topology(2, 1, 1, 0, 2, 1)
    (of_channel,) = FeedDataset("channel://train", topology=place, **options)
    (passed,) = FeedDataset(URL, shuffle=True, seed=5, sharding="replicated", topology=place, **options)
    assert of_channel.keys() == {"label"}
    assert sorted(of_channel["label"].tolist()) == list(range(64))
    assert of_channel["label"].tolist() == passed["label"].tolist() != list(range(64))
    (plain,) = FeedDataset("channel://train", shuffle=False, fields={"other": "str", "label": "int"}, **options)
    assert plain["label"].tolist() == list(range(64))
    assert plain.keys() == {"label", "other"}
    with pytest.raises(BadRequestError, match=r"the job's channels \('train'\), got 'test'"):
        next(iter(FeedDataset("channel://test", **options)))


def test_shuffled_nodes_resume_and_bad_lines(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Two nodes read each line once in another order; a run resumes behind its last batch; a bad line is named."""
    for number in range(COUNT):
        s3.put("data", f"train/{number}.bin", b"%d" % number)
    lines: list[Any] = [{"source-ref": f"s3://data/train/{number}.bin", "label": number} for number in range(COUNT)]
    put(s3, lines)
    daemon = daemons()
    options = dict[str, Any](
        batch_size=32, shuffle=True, fields={"source-ref": "int", "label": "int"}, address=daemon.address
    )
    for sharding in ("key", "sample"):
        seen: list[list[int]] = []
        for node in range(2):
            place = Topology(2, node, 1, 0, 2, node)
            found = list(FeedDataset(URL, seed=3, sharding=sharding, topology=place, uneven="allow", **options))
            assert all(batch["source-ref"].tolist() == batch["label"].tolist() for batch in found)
            seen.append([label for batch in found for label in batch["label"].tolist()])
        assert sorted(seen[0] + seen[1]) == list(range(COUNT))
        assert seen[0] != sorted(seen[0])
        assert all(seen)
    whole = [batch["label"].tolist() for batch in FeedDataset(URL, **options)]
    dataset = FeedDataset(URL, **options)
    batches = iter(dataset)
    first = [next(batches)["label"].tolist() for _ in range(5)]
    resumed = FeedDataset(URL, **options)
    resumed.load_state_dict(dataset.state_dict())
    assert first + [batch["label"].tolist() for batch in resumed] == whole
    lines[100] = "{broken"
    lines[200] = {"label": 200}
    put(s3, lines)
    left = FeedDataset(URL, bad_samples="skip", max_bad_samples=2, **options)
    assert sum(len(batch["label"]) for batch in left) == COUNT - 2
    with pytest.raises(BadSampleError) as caught:
        list(FeedDataset(URL, bad_samples="error", **(options | {"shuffle": False})))
    assert "line 101 of s3://data/train.manifest, attribute 'source-ref': expected a JSON object" in str(caught.value)
