"""A job's files and variables, as SageMaker's container has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from feedd.channels.channel import Channel, Compression, DataType, Distribution, InputMode, RecordWrapper
from feedd.channels.job import ChannelFlags, Cluster, Job
from feedd.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path

PIPE = {"TrainingInputMode": "Pipe", "S3DistributionType": "ShardedByS3Key", "RecordWrapperType": "None"}
CLUSTER = {
    "current_host": "algo-10",
    "hosts": [f"algo-{n}" for n in (1, 10, 2)],
    "network_interface_name": "eth0",
    "instance_groups": [
        {"instance_group_name": "cpu", "instance_type": "ml.c5", "hosts": ["algo-10", "algo-2"]},
        {"instance_group_name": "gpu", "instance_type": "ml.p4d", "hosts": ["algo-1"]},
    ],
}


def write(root: Path, **files: Any) -> None:
    """Write files of ``input/config``, by their names without the extension."""
    folder = root / "input" / "config"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_containers_files(tmp_path: Path) -> None:
    """Channels and hosts are read, hosts in the client's order; the URL comes from the flag."""
    write(tmp_path, inputdataconfig={"train": PIPE, "test": {}}, resourceconfig=CLUSTER, hyperparameters={"lr": "1"})
    job = Job.read(tmp_path, {})
    (train,) = job.channels(ChannelFlags(("train=s3://bucket/train/",)))
    assert (train.url, train.url_origin) == ("s3://bucket/train/", "flag --channel")
    assert (train.distribution, train.input_mode) == (Distribution.SHARDED, InputMode.PIPE)
    assert job.cluster.hosts == ("algo-1", "algo-2", "algo-10")
    assert job.cluster.node_of(train) == (3, 2)


def test_instance_groups(tmp_path: Path) -> None:
    """A channel with InstanceGroupNames is shared by these groups only, and others do not get it."""
    write(tmp_path, resourceconfig=CLUSTER)
    cluster = Job.read(tmp_path, {}).cluster
    assert cluster.node_of(Channel("train", groups=("cpu",))) == (2, 1)
    assert cluster.node_of(Channel("train", groups=("gpu",))) is None
    with pytest.raises(BadRequest, match=r"expected instance groups of this job \(cpu, gpu\), got tpu"):
        cluster.node_of(Channel("train", groups=("gpu", "tpu")))


def test_variables_instead_of_files(tmp_path: Path) -> None:
    """The toolkit's variables count where there are no files; files go before them."""
    env = {
        "SM_INPUT_DATA_CONFIG": json.dumps({"train": PIPE}),
        "SM_HOSTS": '["algo-1", "algo-2"]',
        "SM_CURRENT_HOST": "algo-2",
        "SM_HPS": json.dumps({"feedd_channels": {"train": "s3://bucket/from-hps/"}}),
    }
    job = Job.read(tmp_path, env)
    (train,) = job.channels(ChannelFlags())
    assert (train.url, train.input_mode) == ("s3://bucket/from-hps/", InputMode.PIPE)
    assert job.cluster.node_of(train) == (2, 1)
    write(tmp_path, inputdataconfig={"other": PIPE}, resourceconfig=CLUSTER, hyperparameters={})
    job = Job.read(tmp_path, env)
    assert list(job.known) == ["other"]
    assert len(job.cluster.hosts) == 3


def test_where_the_url_comes_from(tmp_path: Path) -> None:
    """Flag, then the file itself, then FEEDD_CHANNELS, then the hyperparameter; each is named."""
    urls = {name: f"s3://{name}/" for name in ("a", "b", "c", "d")}
    write(
        tmp_path,
        inputdataconfig={name: ({**PIPE, "S3Uri": "s3://file/"} if name in {"a", "b"} else PIPE) for name in urls},
        # the SDK writes texts as JSON once more
        hyperparameters={"feedd-channels": json.dumps(json.dumps(urls))},
    )
    job = Job.read(tmp_path, {"FEEDD_CHANNELS": json.dumps({"b": "s3://variable/", "c": "s3://variable/"})})
    found = {one.name: (one.url, one.url_origin) for one in job.channels(ChannelFlags())}
    file = str(tmp_path / "input/config/inputdataconfig.json")
    assert found == {
        "a": ("s3://file/", file),
        "b": ("s3://file/", file),
        "c": ("s3://variable/", "$FEEDD_CHANNELS"),
        "d": ("s3://d/", "hyperparameter feedd-channels"),
    }
    (only,) = job.channels(ChannelFlags(("a=s3://flag/",)))
    assert (only.url, only.url_origin) == ("s3://flag/", "flag --channel")


def test_flags_describe_channels(tmp_path: Path) -> None:
    """Flags count before the file, for all channels of the command line; attributes for augmented manifests only."""
    write(tmp_path, inputdataconfig={"train": {**PIPE, "ShuffleConfig": {"Seed": 1}}})
    flags = ChannelFlags(
        ("train=s3://b/t/", "boxes=augmented+s3://b/boxes.manifest"),
        sharding="replicated",
        seed=5,
        record_wrapper="recordio",
        compression="Gzip",
        attributes=("source-ref", "boxes"),
    )
    train, boxes = Job.read(tmp_path, {}).channels(flags)
    assert (train.distribution, train.seed, train.attributes) == (Distribution.REPLICATED, 5, ())
    assert (train.record_wrapper, train.compression) == (RecordWrapper.RECORDIO, Compression.GZIP)
    assert train.input_mode is InputMode.PIPE
    assert (boxes.data_type, boxes.attributes) == (DataType.AUGMENTED, ("source-ref", "boxes"))
    (kept,) = Job.read(tmp_path, {}).channels(ChannelFlags(("train=s3://b/t/",)))
    assert (kept.distribution, kept.seed) == (Distribution.SHARDED, 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (ChannelFlags(), "expected a channel, got none"),
        (ChannelFlags(("train",)), "expected --channel NAME=URL, got 'train'"),
        (ChannelFlags(("=s3://b/",)), "got ''"),
        (ChannelFlags(("a=s3://b/", "a=s3://c/")), "expected each --channel once"),
        (ChannelFlags(seed=1), "expected --channel NAME=URL with the flags that describe channels"),
        (ChannelFlags(("a=s3://b/",), sharding="size"), "expected --sharding to be one of key, replicated, got 'size'"),
        (ChannelFlags(("a=s3://b/",), record_wrapper="TFRecord"), "one of None, RecordIO, got 'TFRecord'"),
        (ChannelFlags(("a=s3://b/",), compression="Bzip2"), "one of None, Gzip, got 'Bzip2'"),
    ],
)
def test_wrong_flags(tmp_path: Path, flags: ChannelFlags, message: str) -> None:
    """Each error says what to write."""
    with pytest.raises(BadRequest) as caught:
        Job.read(tmp_path, {}).channels(flags)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("inputdataconfig", "{"),
        ("inputdataconfig", "\0\xff"),
        ("inputdataconfig", "[" * 100_000),
        ("hyperparameters", "[]"),
        ("hyperparameters", {"feedd_channels": "s3://bucket/"}),
        ("resourceconfig", {"hosts": ["a"], "current_host": "b"}),
        ("resourceconfig", {"hosts": "a", "current_host": "a"}),
        ("resourceconfig", []),
        ("resourceconfig", {"hosts": ["a"], "current_host": "a", "instance_groups": [{}]}),
    ],
)
def test_malformed_files(tmp_path: Path, name: str, content: Any) -> None:
    """The error names the file or the hyperparameter."""
    write(tmp_path, **{name: content})
    with pytest.raises(BadRequest) as caught:
        Job.read(tmp_path, {})
    assert caught.value.object in {str(tmp_path / "input/config" / f"{name}.json"), "hyperparameter feedd_channels"}


def test_nodes_without_names() -> None:
    """--nodes and --node-rank take the place of the hosts."""
    assert Cluster.numbered(3, 2).node_of(Channel("train")) == (3, 2)
    with pytest.raises(BadRequest, match="expected --node-rank below --nodes 3, got 3"):
        Cluster.numbered(3, 3)


def test_outside_of_sagemaker(tmp_path: Path) -> None:
    """Without files and variables there is one node, and no channel."""
    job = Job.read(tmp_path, {})
    assert (job.known, job.cluster.node_of(Channel("train"))) == ({}, (1, 0))
