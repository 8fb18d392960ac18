"""``channel://NAME``: a dataset that a SageMaker job describes, read from the job's files where the daemon runs.

The channel says which URL is read, which nodes get which objects, whether the order is shuffled, and by which seed. An
argument that the user passed wins over the channel.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feedd.channels.channel import Compression, DataType, Distribution
from feedd.channels.job import INPUT_FILE, Job
from feedd.dataset.sharding import KEY, REPLICATED
from feedd.errors import BadRequest, Unsupported

if TYPE_CHECKING:
    from feedd.channels.channel import Channel
    from feedd.open_spec import OpenSpec, OrderSpec

CHANNEL: Final = "channel://"
_ROOT_VARIABLE: Final = "SAGEMAKER_BASE_DIR"
_ROOT: Final = "/opt/ml"
_SHARDINGS: Final = {Distribution.SHARDED: KEY, Distribution.REPLICATED: REPLICATED}


def with_channel(spec: OpenSpec, root: Path | None) -> OpenSpec:
    """Return a request with the URL and settings of its channel in place of the channel's name. Reads small files.

    Args:
        spec: a request for a channel.
        root: folder of the job; None: ``$SAGEMAKER_BASE_DIR``, or else ``/opt/ml``.

    Raises:
        BadRequest: the request names more than one channel, the job has none of that name, or a file is malformed.
        Unsupported: the channel needs something that feedd does not have.
    """
    urls = spec.data.urls
    if len(urls) > 1 or spec.data.sources:
        raise BadRequest(
            f"expected one channel alone, got {len(urls)} URLs",
            object=next(url for url in urls if url.startswith(CHANNEL)),
            hint="name the URLs of the channels to mix or join them",
            stage="plan",
        )
    channel, job = _channel(urls[0], root or Path(os.environ.get(_ROOT_VARIABLE) or _ROOT))
    if (
        len(job.cluster.hosts) > 1
        and channel.groups
        and job.cluster.node_of(channel) != job.cluster.node_of(replace(channel, groups=()))
    ):
        raise Unsupported(
            f"expected a channel for all hosts, got InstanceGroupNames {', '.join(channel.groups)}",
            object=urls[0],
            hint="pass the channel's s3:// URL, and topology= with the hosts of these groups",
            stage="plan",
        )
    data = replace(spec.data, urls=(_url_of(channel, urls[0]),))
    if not data.fields and channel.attributes:
        data = replace(data, only=tuple(name.lower() for name in channel.attributes))
    return replace(spec, data=data, order=_ordered(spec.order, channel))


def _channel(url: str, root: Path) -> tuple[Channel, Job]:
    name = url.removeprefix(CHANNEL).rstrip("/")
    job = Job.read(root, os.environ)
    found = job.known.get(name)
    if found is None:
        known = ", ".join(map(repr, job.known))
        expected = f"one of the job's channels ({known})" if known else "a job with channels"
        raise BadRequest(
            f"expected {expected}, got {name!r}",
            object=url,
            hint=f"channels are described by {root}/input/config/{INPUT_FILE}; sagemaker.root names another folder",
            stage="plan",
        )
    return found.check(), job


def _url_of(channel: Channel, url: str) -> str:
    if channel.compression is Compression.NONE:
        return channel.dataset_url
    if channel.data_type is DataType.AUGMENTED:
        raise Unsupported(
            "expected objects as they are in a channel of an augmented manifest, got CompressionType Gzip",
            object=url,
            stage="plan",
        )
    return f"gz+{channel.dataset_url}"


def _ordered(order: OrderSpec, channel: Channel) -> OrderSpec:
    """Return the order with the channel's settings, and then, if the sharding was not known before, its lanes."""
    changes: dict[str, object] = {}
    if "sharding" in order.left_to_channel:
        changes["sharding"] = _SHARDINGS[channel.distribution]
    if "shuffle" in order.left_to_channel and channel.seed is not None:
        changes["shuffle"] = True
    if "seed" in order.left_to_channel and channel.seed is not None:
        changes["seed"] = channel.seed % 2**64
    found: OrderSpec = replace(order, left_to_channel=(), lanes=1, **changes)  # type: ignore[arg-type]  # by name
    try:
        return found.in_lanes(order.lanes)
    except ValueError as error:
        raise BadRequest(str(error), object="topology", stage="plan") from error
