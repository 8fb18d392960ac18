"""Arm: mosaicml-streaming's MDSWriter, as its documentation has it: a loop over samples."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streaming import MDSWriter  # type: ignore[import-not-found, unused-ignore]  # peers' environment

from tests.bench.arms.consume import read_settings
from tests.bench.arms.pack import files, keys, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

_AHEAD = 256


def _samples(settings: dict[str, Any]) -> Iterator[tuple[bytes, int]]:
    source = settings["source"]
    if not source.startswith("s3://"):
        for path, label in files(source):
            yield Path(path).read_bytes(), label
        return
    import boto3  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - only from S3
    from botocore.config import Config  # noqa: PLC0415 - only from S3

    client = boto3.client("s3", config=Config(max_pool_connections=settings["threads"]))
    bucket = source.removeprefix("s3://").partition("/")[0]
    found = keys(client, source)
    with ThreadPoolExecutor(settings["threads"]) as pool:
        for at in range(0, len(found), _AHEAD):
            some = found[at : at + _AHEAD]
            bodies = pool.map(lambda one: client.get_object(Bucket=bucket, Key=one[0])["Body"].read(), some)
            yield from zip(bodies, (label for _, label in some), strict=True)


def _pack() -> None:
    settings = read_settings()
    columns = {"jpg": "jpeg", "cls": "int"}
    limit, hashes = settings["shard_bytes"], settings.get("hashes", [])
    with MDSWriter(out=settings["target"], columns=columns, size_limit=limit, hashes=hashes) as out:
        for data, label in _samples(settings):
            out.write({"jpg": data, "cls": label})


if __name__ == "__main__":
    measured(_pack)
