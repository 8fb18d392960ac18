"""Arm: litdata's optimize, with the bytes of each picture as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from litdata import optimize  # type: ignore[import-not-found, unused-ignore]  # peers' environment

from tests.bench.arms.consume import read_settings
from tests.bench.arms.pack import files, keys, measured

_CLIENTS: list[Any] = []


def _client() -> Any:
    if not _CLIENTS:  # one for each worker
        import boto3  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - only from S3

        _CLIENTS.append(boto3.client("s3"))
    return _CLIENTS[0]


def _from_folder(one: tuple[str, int]) -> dict[str, Any]:
    return {"jpg": Path(one[0]).read_bytes(), "cls": one[1]}


def _from_bucket(one: tuple[str, str, int]) -> dict[str, Any]:
    bucket, key, label = one
    return {"jpg": _client().get_object(Bucket=bucket, Key=key)["Body"].read(), "cls": label}


def _pack() -> None:
    settings = read_settings()
    source = settings["source"]
    inputs: list[Any] = []
    if source.startswith("s3://"):
        bucket = source.removeprefix("s3://").partition("/")[0]
        inputs = [(bucket, key, label) for key, label in keys(_client(), source)]
        _CLIENTS.clear()
    else:
        inputs = files(source)
    optimize(
        fn=_from_bucket if source.startswith("s3://") else _from_folder,
        inputs=inputs,
        output_dir=settings["target"],
        chunk_bytes=settings["shard_bytes"],
        num_workers=settings["workers"],
    )


if __name__ == "__main__":
    measured(_pack)
