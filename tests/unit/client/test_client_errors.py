"""What a user sees when something is wrong: the daemon's sentence, not what gRPC printed above it."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from feedd_client import BadOptionError, FeedDataset, FeedError
from tests.fakes.feed_script import Fault

if TYPE_CHECKING:
    from tests.fakes.feed_client import Bench

SAID = {"kind": "not-found", "message": "expected a bucket, got none", "object": "s3://b/", "hint": "make it"}


def _printed(caught: pytest.ExceptionInfo[FeedError]) -> list[str]:
    return "".join(traceback.format_exception(caught.value)).splitlines()


@pytest.mark.parametrize("when", ["open", "stream", "trailer", "away"])
def test_no_traceback_of_grpc_stands_above_the_sentence(
    bench: Bench, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What is printed ends with what the daemon said, has nothing of gRPC, and the log has that at debug."""
    caplog.set_level(logging.DEBUG, "feedd_client")
    if when == "open":
        server = bench.server(open_errors=(SAID,) * 3)
    else:
        kind = {"stream": "error", "trailer": "trailer", "away": "vanish"}[when]
        server = bench.server(faults=(Fault(1, kind, times=9, error=SAID),))
    dataset = bench.dataset(server, reconnect_timeout_s=0.2)
    with pytest.raises(FeedError) as caught:
        list(dataset)
    lines = _printed(caught)
    assert len(lines) < 45
    assert not [line for line in lines if "grpc." in line or "RpcError" in line or "direct cause" in line]
    if when != "away":
        assert lines[-1].endswith("expected a bucket, got none [s3://b/] - make it")
    if when != "stream":  # that one is a message, and no failure of a call
        assert any("failed" in record.getMessage() for record in caplog.records if record.levelname == "DEBUG")
    caplog.clear()  # a record's error holds the frames of its traceback, and these hold the dataset


@pytest.mark.parametrize(
    ("keyword", "said"),
    [
        ("transform", "DeviceLoader(dataset, transforms=[...])"),
        ("transforms", "DeviceLoader(dataset, transforms=[...])"),
        ("collate_fn", "DeviceLoader(dataset, transforms=[...])"),
        ("batchsize", "did you mean batch_size?"),
        ("shufle", "did you mean shuffle?"),
        ("drop_last", 'uneven="drop"'),
        ("num_workers", "the daemon decodes"),
        ("nothing_like_it", "there are url, batch_size, fields"),
    ],
)
def test_keywords_of_others_say_what_to_write(keyword: str, said: str) -> None:
    """A keyword that FeedDataset does not have is a TypeError that names what was meant, or where it belongs."""
    arguments: dict[str, Any] = {"batch_size": 4, keyword: None}
    with pytest.raises(TypeError) as caught:
        FeedDataset("s3://b/", **arguments)
    assert keyword in str(caught.value)
    assert said in str(caught.value)


def test_a_socket_path_that_is_too_long_says_so() -> None:
    """The kernel's limit on the paths of sockets is said by the constructor, with a path that works."""
    FeedDataset("s3://b/", batch_size=4, address=f"unix:///{'x' * 99}")
    with pytest.raises(BadOptionError, match=r"at most 100 bytes, got 101.*shorter path"):
        FeedDataset("s3://b/", batch_size=4, address=f"unix:///{'x' * 100}")
