"""Parsers of what clients send and operators write: requests, recipes, conditions, manifests, tables of labels."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError

from feedd.catalog.manifest import names_in
from feedd.catalog.open_request import Request
from feedd.dataset.frozen_manifest import parse as parse_frozen
from feedd.dataset.frozen_manifest import render
from feedd.dataset.object_labels import parse_table
from feedd.errors import BadRequest, Unsupported
from feedd.recipe.filters import parse_filter
from feedd.recipe.recipe import parse_field
from feedd.wire import feedd_pb2 as pb
from feedd.wire.admin_messages import warm_spec
from feedd.wire.feed_messages import OpenLimits, check_version, cursor_from, open_spec, slots_from
from tests.unit.dataset.test_frozen_manifest import manifest

if TYPE_CHECKING:
    from collections.abc import Callable

_V1: Final = pb.ProtocolVersion(major=1)
_RECIPE: Final = pb.Recipe(
    batch_size=8,
    fields=[pb.Field(name="jpg;png", recipe="image:224x224:random"), pb.Field(name="cls", recipe='{"decode": "int"}')],
    filters=['{"field": "cls", "min": 1}'],
)
_OPEN: Final = pb.OpenRequest(
    version=_V1,
    urls=["s3://bucket/train/{000..003}.tar"],
    recipe=_RECIPE,
    topology=pb.Topology(world_size=4, rank=1, local_world_size=2, local_rank=1, node_count=2, node_rank=0),
    shuffle=pb.Shuffle(enabled=True, window_shards=4),
    seed=7,
    sharding="key",
    uneven="drop",
    client_version="1.0",
    open_id="x",
)
_MIXED: Final = pb.OpenRequest(
    version=_V1,
    recipe=pb.Recipe(batch_size=8, fields=[pb.Field(name="txt", recipe="str")]),
    sources=[pb.Source(urls=[f"s3://b/{n}/"], weights=[pb.Weight(epoch=0, weight=n + 0.5)]) for n in range(2)],
    mix=pb.Mix(mode="sample", samples_per_epoch=800),
)
_STREAM: Final = pb.StreamRequest(
    start=pb.StreamStart(
        session_id="a" * 32,
        next=pb.Cursor(epoch=1, step=2, more_anchors=[pb.Anchor(window=1, sample=9)]),
        held=pb.HeldLeases(leases=[pb.Release(slot=1, generation=3)]),
    ),
    credits=4,
    releases=[pb.Release(slot=0, generation=1)],
)
_WARM: Final = pb.WarmRequest(urls=["s3://b/x/"], node_count=2, node_rank=1, fields=[pb.Field(name="a", recipe="int")])
_LONG: Final = json.dumps(
    {
        "from": "jpg;png",
        "decode": "image",
        "size": [8, 8],
        "transforms": [
            "horizontal_flip",
            {"op": "resize", "size": 4},
            {"op": "normalize", "mean": [0], "std": [1]},
        ],
    }
)
_RECIPES: Final = ("image:224x224:random", "tokens:uint16:2049", "json", "npy:float32:3,4", "str", "bytes", "int")
_FROZEN: Final = render(manifest([("a.tar", 10, "ab", 3), ("bb.tar", 20, "0123456789abcdef" * 2, 4)]))[:-32]
_MANIFEST: Final = json.dumps([{"prefix": "s3://bucket/train/"}, "a.tar", "b.tar"]).encode()


def _frozen(data: bytes) -> None:
    """Parse a frozen manifest whose digest is right."""
    try:
        parse_frozen(memoryview(data + hashlib.blake2b(data, digest_size=32).digest()))
    except ValueError as error:
        raise BadRequest(str(error)) from error


def _open(data: bytes) -> None:
    request = pb.OpenRequest.FromString(data)
    check_version(request.version)
    Request.of(open_spec(request, OpenLimits()), 4)


def _stream(data: bytes) -> None:
    request = pb.StreamRequest.FromString(data)
    cursor_from(request.start.next)
    slots_from(request.start.held.leases)
    slots_from(request.releases)


def _field(data: bytes) -> None:
    name, _, text = data.decode("utf-8", "replace").partition("\n")
    parse_field(name, text)


def _table(data: bytes) -> None:
    try:
        parse_table("labels.csv", data, "label").clear()
    except ValueError as error:
        raise Unsupported(str(error)) from error


def _refusing(parse: Callable[[bytes], object], data: bytes) -> None:
    """Parse; what the daemon answers with a typed error is a refusal.

    Raises:
        Unsupported: refused.
    """
    try:
        parse(data)
    except (BadRequest, DecodeError) as error:
        raise Unsupported(str(error)) from error


def _target(parse: Callable[[bytes], object]) -> Callable[[bytes], None]:
    return functools.partial(_refusing, parse)


PARSERS: Final[dict[str, tuple[Callable[[bytes], None], tuple[bytes, ...]]]] = {
    "request-open": (_target(_open), (_OPEN.SerializeToString(), _MIXED.SerializeToString())),
    "request-stream": (_target(_stream), (_STREAM.SerializeToString(),)),
    "request-warm": (
        _target(lambda data: warm_spec(pb.WarmRequest.FromString(data), OpenLimits())),
        (_WARM.SerializeToString(),),
    ),
    "recipe": (
        _target(_field),
        (f"jpg\n{_LONG}".encode(), *(f"x\n{recipe}".encode() for recipe in _RECIPES)),
    ),
    "filter": (
        _target(lambda data: parse_filter(data.decode("utf-8", "replace"))),
        (b'{"field": "cls", "min": 1}', b'{"field": "txt", "min_bytes": 1}'),
    ),
    "manifest": (_target(lambda data: names_in(memoryview(data), "manifest+s3://b/m")), (_MANIFEST,)),
    "frozen": (_target(_frozen), (_FROZEN,)),
    "label-table": (_target(_table), (b"path,label\na.jpg,1\nb.jpg,2\n",)),
}
"""By name: what parses, and good inputs."""
