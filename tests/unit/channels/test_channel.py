"""Channels are read from every form in which SageMaker writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from feedd.channels.channel import (
    Channel,
    Compression,
    DataType,
    Distribution,
    InputMode,
    RecordWrapper,
    channels_of,
    merged,
    s3_url,
)
from feedd.errors import BadRequest, Unsupported

CONTAINER = {
    "train": {
        "ContentType": "application/x-recordio",
        "RecordWrapperType": "None",
        "S3DistributionType": "ShardedByS3Key",
        "TrainingInputMode": "Pipe",
    },
    "validation": {},
}
REQUEST = [
    {
        "ChannelName": "train",
        "CompressionType": "Gzip",
        "ContentType": "application/jsonlines",
        "DataSource": {
            "S3DataSource": {
                "AttributeNames": ["source-ref", "class"],
                "S3DataDistributionType": "FullyReplicated",
                "S3DataType": "AugmentedManifestFile",
                "S3Uri": "s3://bucket/train.manifest",
                "InstanceGroupNames": ["workers"],
            }
        },
        "InputMode": "FastFile",
        "RecordWrapperType": "RecordIO",
        "ShuffleConfig": {"Seed": -7},
    }
]


def test_a_containers_file() -> None:
    """All names of the flat form are read; what is missing has SageMaker's defaults."""
    found = channels_of(CONTAINER, "file")
    assert found["train"] == Channel(
        "train",
        distribution=Distribution.SHARDED,
        input_mode=InputMode.PIPE,
        content_type="application/x-recordio",
    )
    assert found["validation"] == Channel("validation")
    assert found["validation"].distribution is Distribution.REPLICATED


def test_a_request_to_the_api() -> None:
    """All names of the nested form are read."""
    (found,) = channels_of(REQUEST, "request").values()
    assert found == Channel(
        "train",
        "s3://bucket/train.manifest",
        "request",
        DataType.AUGMENTED,
        Distribution.REPLICATED,
        InputMode.FAST_FILE,
        "application/jsonlines",
        Compression.GZIP,
        RecordWrapper.RECORDIO,
        ("source-ref", "class"),
        -7,
        ("workers",),
    )
    assert found.dataset_url == "augmented+s3://bucket/train.manifest"


def test_the_names_of_either_form_in_the_other() -> None:
    """An entry may mix the words of both, in any case, and hold words that nobody knows."""
    entry = {"s3": 1, "EnableFFM": True, "S3DataDistributionType": "shardedbys3key", "InputMode": "pipe"}
    found = channels_of({"train": entry}, "file")["train"]
    assert (found.distribution, found.input_mode) == (Distribution.SHARDED, InputMode.PIPE)
    nested = {"DataSource": {"S3DataSource": {"S3Uri": "s3://b/", "S3DistributionType": "ShardedByS3Key"}}}
    assert channels_of({"train": nested}, "file")["train"].distribution is Distribution.SHARDED


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"TrainingInputMode": "Stream"}, "expected TrainingInputMode to be one of File, FastFile, Pipe, got 'Stream'"),
        ({"CompressionType": "Bzip2"}, "expected CompressionType to be one of None, Gzip, got 'Bzip2'"),
        ({"S3DataType": "Converse"}, "one of S3Prefix, ManifestFile, AugmentedManifestFile, got 'Converse'"),
        ({"ShuffleConfig": {}}, 'expected ShuffleConfig to be {"Seed": a 64-bit integer}, got {}'),
        ({"ShuffleConfig": {"Seed": True}}, "a 64-bit integer"),
        ({"ShuffleConfig": {"Seed": 2**63}}, "a 64-bit integer"),
        ({"AttributeNames": ["a"] * 17}, "expected AttributeNames to be up to 16 texts"),
        ({"AttributeNames": "a"}, "expected AttributeNames to be up to 16 texts"),
        ({"S3Uri": 5}, "expected S3Uri to be a text, got 5"),
        (5, "expected a JSON object, got int"),
        ("", "expected a URL like s3://bucket/train/, got none"),
    ],
)
def test_what_an_entry_may_not_say(entry: Any, message: str) -> None:
    """The error names the channel, the file, the expected values and the value found."""
    with pytest.raises(BadRequest) as caught:
        channels_of({"train": entry}, "/opt/ml/input/config/inputdataconfig.json")
    assert message in str(caught.value)
    assert "channel train" in caught.value.object


def test_a_file_system_is_no_channel() -> None:
    """EFS and FSx are named in the error, with what to write instead."""
    entry = {"DataSource": {"FileSystemDataSource": {"FileSystemType": "EFS"}}}
    with pytest.raises(Unsupported, match="FileSystemDataSource"):
        channels_of({"train": entry}, "request")


@pytest.mark.parametrize("config", [[{}], [{"ChannelName": "a"}, {"ChannelName": "a"}], "train", {"a/b": {}}, {"": {}}])
def test_what_is_no_list_of_channels(config: Any) -> None:
    """Names are checked, and each entry has its own."""
    with pytest.raises(BadRequest):
        channels_of(config, "file")


def test_there_are_at_most_20_channels() -> None:
    """As SageMaker allows."""
    assert len(channels_of({f"c{n}": {} for n in range(20)}, "file")) == 20
    with pytest.raises(BadRequest, match="expected at most 20 channels, got 21"):
        channels_of({f"c{n}": {} for n in range(21)}, "file")


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("s3://b/k", "s3://b/k"),
        ("https://s3.eu-west-1.amazonaws.com/b/k/", "s3://b/k/"),
        ("https://s3.amazonaws.com/b/k", "s3://b/k"),
        ("https://b.s3.eu-west-1.amazonaws.com/k", "s3://b/k"),
        ("https://my.b.s3.amazonaws.com/", "s3://my.b/"),
        ("https://example.com/b/k", "https://example.com/b/k"),
        ("/data/train", "/data/train"),
    ],
)
def test_https_uris_of_s3(uri: str, url: str) -> None:
    """Both of S3's forms mean an object, and other URIs stay."""
    assert s3_url(uri) == url


def test_a_url_chooses_the_data_type() -> None:
    """``manifest+`` and ``augmented+``, as in FeedDataset, are not part of the URL."""
    plain = Channel("train")
    assert plain.at("manifest+s3://b/m", "flag").data_type is DataType.MANIFEST
    assert plain.at("augmented+s3://b/m", "flag").url == "s3://b/m"
    assert plain.at("s3://b/m", "flag").data_type is DataType.PREFIX
    # a job's channel keeps its type if the URL does not choose one
    known = channels_of({"train": {"S3DataType": "ManifestFile"}}, "file")["train"]
    assert known.at("s3://b/m", "flag").dataset_url == "manifest+s3://b/m"


def test_settings_that_do_not_fit() -> None:
    """Attributes and augmented manifests need each other, and each channel needs a URL."""
    with pytest.raises(BadRequest, match="expected a URL for channel 'train'") as caught:
        Channel("train").check()
    assert "--channel train=s3://bucket/prefix/" in caught.value.hint
    assert json.loads(caught.value.hint.split("'")[1]) == {"train": "s3://bucket/prefix/"}
    with pytest.raises(BadRequest, match="expected AttributeNames for an augmented manifest"):
        Channel("train").at("augmented+s3://b/m", "flag").check()
    with pytest.raises(BadRequest, match="expected AttributeNames with AugmentedManifestFile, got S3Prefix"):
        Channel("train", attributes=("a",)).at("s3://b/m", "flag").check()


def test_urls_are_added_to_channels_without_one() -> None:
    """A channel keeps the URL that it has; a channel that is only in the second mapping is added."""
    known = channels_of({"a": {"S3Uri": "s3://own/", "TrainingInputMode": "Pipe"}, "b": {"InputMode": "File"}}, "file")
    found = merged(known, channels_of({"a": "s3://other/", "b": "manifest+s3://b/m", "c": "s3://c/"}, "variable"))
    assert {name: one.dataset_url for name, one in found.items()} == {
        "a": "s3://own/",
        "b": "manifest+s3://b/m",
        "c": "s3://c/",
    }
    assert found["a"].url_origin == "file"
    assert (found["b"].url_origin, found["b"].input_mode) == ("variable", InputMode.FILE)
