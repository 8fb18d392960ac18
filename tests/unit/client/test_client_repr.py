"""What a dataset and a loader show of themselves in a notebook or a log: one line, and no secret."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.utils.data import DataLoader

from feedd_client import DeviceLoader, FeedDataset, Normalize, Source, Topology

_FIELDS = {"jpg": "image:32x32", "cls": "int"}


def test_a_dataset_shows_what_it_reads_and_for_whom() -> None:
    """URL, batch size, number of fields, rank and world size."""
    dataset = FeedDataset("s3://b/train/", batch_size=256, fields=_FIELDS, topology=Topology(8, 3, 8, 3))
    assert repr(dataset) == "FeedDataset('s3://b/train/', batch_size=256, fields=2, rank=3, world_size=8)"
    alone = FeedDataset("s3://b/train/", batch_size=None)
    assert repr(alone) == "FeedDataset('s3://b/train/', batch_size=None, fields=by default, rank=0, world_size=1)"


def test_several_urls_are_counted() -> None:
    """Of a list, and of sources that are mixed, the first URL stands for all."""
    listed = FeedDataset(["s3://b/1.tar", "s3://b/2.tar", "s3://b/3.tar"], batch_size=1)
    assert repr(listed).startswith("FeedDataset('s3://b/1.tar' and 2 more, batch_size=1, ")
    mixed = FeedDataset([Source("s3://b/x/"), Source("s3://b/y/", 2.0)], batch_size=1)
    assert repr(mixed).startswith("FeedDataset('s3://b/x/' and 1 more, batch_size=1, ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://AKIAEXAMPLE:hidden/with+slash@b/train/", "'s3://…@b/train/'"),
        ("s3://hidden@b/train/", "'s3://…@b/train/'"),
        ("manifest+s3://user:hidden@b/a.json", "'manifest+s3://…@b/a.json'"),
        ("https://b/a.tar?X-Amz-Signature=hidden", "'https://b/a.tar'"),
        ("s3://b/user@place/", "'s3://b/user@place/'"),
        (
            "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/p/",
            "'s3://arn:aws:s3:us-east-1:123456789012:accesspoint/p/'",
        ),
        ("s3://b/line\nbreak/", r"'s3://b/line\nbreak/'"),
        (f"s3://b/{'x' * 500}/end/", f"'s3://b/{'x' * 93}…{'x' * 14}/end/'"),
    ],
)
def test_credentials_are_not_shown(url: str, shown: str) -> None:
    """A user name, a password or a signature in a URL is in no repr, a long URL is cut, and a key stays as it is."""
    text = repr(FeedDataset(url, batch_size=2))
    assert "hidden" not in text
    assert text.startswith(f"FeedDataset({shown}, batch_size=2, ")


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "rank=3, world_size=4"),
        ({"RANK": "3", "WORLD_SIZE": "4"}, "rank unknown"),
    ],
)
def test_ranks_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], shown: str) -> None:
    """Variables of a launcher count; if they contradict each other, a repr says so and does not fail."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert repr(FeedDataset("s3://b/", batch_size=2)).endswith(f", {shown})")


def test_ranks_of_a_process_group_are_shown_without_asking_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch.distributed its rank counts, also if the variables do not say which node this is."""
    monkeypatch.setattr("feedd_client.passes.process_group_ready", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 2)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 4)
    assert repr(FeedDataset("s3://b/", batch_size=2)).endswith(", rank=2, world_size=4)")


def test_a_loader_shows_its_dataset_in_one_line() -> None:
    """A DeviceLoader shows dataset, device and transforms, also through a DataLoader, and no batch of a list."""
    dataset = FeedDataset("s3://b/", batch_size=2, fields=_FIELDS)
    inner = "FeedDataset('s3://b/', batch_size=2, fields=2, rank=0, world_size=1)"
    steps: list[Any] = [nn.Sequential(nn.ReLU(), nn.ReLU()), Normalize((0.5,) * 3, (0.5,) * 3)]
    text = repr(DeviceLoader(dataset, "cpu", steps))
    assert text.startswith(f"DeviceLoader({inner}, cpu, [Sequential( (0): ReLU() (1): ReLU() ), Normalize(")
    assert text.endswith("device_prefetch=2)")
    assert "\n" not in text
    through = DeviceLoader(DataLoader(dataset, batch_size=None))
    assert repr(through).startswith(f"DeviceLoader(DataLoader({inner}), the current accelerator, []")
    assert repr(DeviceLoader([{"x": 1}], "cpu")) == "DeviceLoader(list, cpu, [], device_prefetch=2)"
