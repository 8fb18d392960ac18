"""``channel://NAME``: URL, sharding, shuffle and seed of a SageMaker job's channel; what the user passed wins."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from feedd.catalog.channel_urls import with_channel
from feedd.catalog.stages import PipelineOptions
from feedd.errors import BadRecipe, BadRequest, Unsupported
from feedd.open_spec import SourceSpec
from feedd.values import Topology
from tests.fakes.feeding import ROOT, batches, feeding
from tests.fakes.specs import open_spec

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.open_spec import OpenSpec

LEFT = ("sharding", "shuffle", "seed")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEEDD_CHANNELS", "SM_INPUT_DATA_CONFIG", "SM_HPS", "SM_HOSTS", "SAGEMAKER_BASE_DIR"):
        monkeypatch.delenv(name, raising=False)


def _job(root: Path, hosts: int = 1, **channels: dict[str, Any]) -> Path:
    folder = root / "input/config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "inputdataconfig.json").write_text(json.dumps(channels))
    names = [f"algo-{number}" for number in range(1, hosts + 1)]
    groups = [{"instance_group_name": "first", "hosts": names[:1]}]
    cluster = {"hosts": names, "current_host": "algo-1", "instance_groups": groups}
    (folder / "resourceconfig.json").write_text(json.dumps(cluster))
    return root


def _spec(url: str = "channel://train", left: tuple[str, ...] = LEFT, **changes: Any) -> OpenSpec:
    return open_spec((url,), left_to_channel=left, **changes)


def _said(spec: OpenSpec) -> tuple[str, str, bool, int]:
    return spec.data.urls[0], spec.order.sharding, spec.order.shuffle, spec.order.seed


def test_a_channel_says_all_that_the_user_left_out(tmp_path: Path) -> None:
    """The words of containers and of requests; without settings, SageMaker's defaults: all data, in its order."""
    root = _job(
        tmp_path,
        train={"S3Uri": "s3://b/train/", "S3DistributionType": "ShardedByS3Key", "ShuffleConfig": {"Seed": 7}},
        test={
            "DataSource": {"S3DataSource": {"S3Uri": "s3://b/m", "S3DataType": "ManifestFile"}},
            "ShuffleConfig": {"Seed": -1},
        },
        plain={"S3Uri": "s3://b/p/", "CompressionType": "Gzip"},
    )
    assert _said(with_channel(_spec(), root)) == ("s3://b/train/", "key", True, 7)
    assert _said(with_channel(_spec("channel://test"), root)) == ("manifest+s3://b/m", "replicated", True, 2**64 - 1)
    assert _said(with_channel(_spec("channel://plain"), root)) == ("gz+s3://b/p/", "replicated", False, 0)


@pytest.mark.parametrize("passed", LEFT)
def test_what_the_user_passed_wins(tmp_path: Path, passed: str) -> None:
    """Each argument by itself."""
    root = _job(tmp_path, train={"S3Uri": "s3://b/train/", "ShuffleConfig": {"Seed": 7}})
    left = tuple(name for name in LEFT if name != passed)
    found = _said(with_channel(_spec(left=left, sharding="size", seed=3), root))
    wanted = {"sharding": ("size", True, 7), "shuffle": ("replicated", False, 7), "seed": ("replicated", True, 3)}
    assert found[1:] == wanted[passed]


def test_lanes_are_planned_by_the_channels_sharding(tmp_path: Path) -> None:
    """Replicated data is the same on all nodes, and split among the lanes of each; the plan needs both facts."""
    root = _job(tmp_path, hosts=2, train={"S3Uri": "s3://b/train/"})
    spec = _spec(topology=Topology(8, 5, 4, 1, 2, 1), lanes=2)
    found = with_channel(spec, root).order
    assert found == replace(spec.order, sharding="replicated", left_to_channel=(), lanes=1).in_lanes(2)
    assert (found.sharding, found.topology.node_count, found.lanes) == ("key", 2, 1)


def test_where_the_job_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option, else the variable; the URL may come from a variable of its own."""
    _job(tmp_path, train={"S3DistributionType": "ShardedByS3Key"})
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("FEEDD_CHANNELS", json.dumps({"train": "s3://b/x/"}))
    assert _said(with_channel(_spec(), None))[:2] == ("s3://b/x/", "key")
    other = _job(tmp_path / "other", train={"S3Uri": "s3://b/other/"})
    assert _said(with_channel(_spec(), other))[0] == "s3://b/other/"


AUGMENTED = {"S3Uri": "s3://b/m", "S3DataType": "AugmentedManifestFile", "AttributeNames": ["source-ref", "Label"]}


@pytest.mark.parametrize(
    ("entry", "url", "error", "message"),
    [
        ({"S3Uri": "s3://b/"}, "channel://nothing", BadRequest, r"the job's channels \('train'\), got 'nothing'"),
        ({}, "channel://train", BadRequest, "expected a URL for channel 'train'"),
        ({"S3Uri": "s3://b/", "InstanceGroupNames": ["first"]}, "channel://train", Unsupported, "all hosts"),
        ({**AUGMENTED, "CompressionType": "Gzip"}, "channel://train", Unsupported, "augmented manifest"),
        ({"S3Uri": "s3://b/", "S3DataType": "S3Prefixes"}, "channel://train", BadRequest, "S3DataType"),
    ],
)
def test_refused_channels(
    tmp_path: Path, entry: dict[str, Any], url: str, error: type[Exception], message: str
) -> None:
    """Each error says what was expected."""
    with pytest.raises(error, match=message):
        with_channel(_spec(url), _job(tmp_path, hosts=2, train=entry))


def test_a_job_without_channels(tmp_path: Path) -> None:
    """The error says that there are none, and where they are looked for."""
    with pytest.raises(BadRequest, match="expected a job with channels, got 'train'") as caught:
        with_channel(_spec(), tmp_path)
    assert f"{tmp_path}/input/config/inputdataconfig.json" in caught.value.hint


def test_one_channel_alone(tmp_path: Path) -> None:
    """A channel has settings, so it is neither joined to other URLs nor mixed."""
    root = _job(tmp_path, train={"S3Uri": "s3://b/"})
    source = SourceSpec(("channel://train",), (), ((0, 1.0),))
    for spec in (open_spec(("channel://train", "s3://b/x/")), open_spec(("channel://train",), sources=(source,))):
        with pytest.raises(BadRequest, match="one channel alone"):
            with_channel(spec, root)


async def test_attributes_of_an_augmented_manifest(tmp_path: Path) -> None:
    """Without ``fields``, the named attributes are read, in their order, and no others."""
    root = _job(tmp_path / "ml", train={**AUGMENTED, "S3Uri": f"{ROOT}/m"})
    async with feeding(tmp_path, options=PipelineOptions(channel_root=root)) as rig:
        rig.store.put("a.bin", b"object")
        rig.store.put("m", b'{"Label": 3, "other": 1, "source-ref": "s3://memory/a.bin"}\n' * 8)
        session = await rig.open(urls=("channel://train",), fields=(), left_to_channel=LEFT)
        assert [spec.name for spec in session.info.specs] == ["source-ref", "label"]
        assert [value for batch in await batches(session) for value in batch.ints("label")] == [3] * 8
        chosen = await rig.open(urls=("channel://train",), fields=(("other", "int"),), left_to_channel=LEFT)
        assert [spec.name for spec in chosen.info.specs] == ["other"]
        _job(root, train={**AUGMENTED, "S3Uri": f"{ROOT}/m", "AttributeNames": ["source-ref"]})
        fewer = await rig.open(urls=("channel://train",), fields=(), left_to_channel=LEFT)
        assert len({one.info.fingerprint for one in (session, chosen, fewer)}) == 3
        rig.store.put("m", b'{"label": 3, "source-ref": "s3://memory/a.bin", "x": 1}\n')
        _job(root, train={**AUGMENTED, "S3Uri": f"{ROOT}/m", "AttributeNames": ["y"]})
        with pytest.raises(BadRecipe, match="got y"):
            await rig.open(urls=("channel://train",), fields=(), left_to_channel=LEFT)
