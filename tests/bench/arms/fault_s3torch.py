"""Arm: s3torchconnector's map dataset, one object read whole; the AWS CRT is underneath."""

from __future__ import annotations

from s3torchconnector import S3ClientConfig, S3MapDataset  # type: ignore[import-not-found]  # peers' environment

from tests.bench.arms.faults import BUCKET, MIB, REGION, report, settings

_PART_BYTES = 5 * MIB  # the least it allows


def main() -> None:
    """Run."""
    config = S3ClientConfig(force_path_style=True, unsigned=True, part_size=_PART_BYTES)

    def read(key: str) -> bytes:
        uris = [f"s3://{BUCKET}/{key}"]
        dataset = S3MapDataset.from_objects(uris, region=REGION, endpoint=settings()["url"], s3client_config=config)
        data: bytes = dataset[0].read()
        return data

    report(read)


if __name__ == "__main__":
    main()
