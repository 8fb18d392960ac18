"""Contender: Amazon's connector for PyTorch: a stream per object, parts in flight by the library's own rules."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from s3torchconnector import S3ClientConfig  # type: ignore[import-not-found]  # of the peers' environment
from s3torchconnector._s3client import S3Client  # type: ignore[import-not-found]  # ditto

from tests.bench.ingest.arms.job import Job, finish

_OBJECTS_AT_ONCE = 4


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    config = S3ClientConfig(
        throughput_target_gbps=job.own.get("gbps", 25.0), part_size=job.part_bytes, force_path_style=bool(job.endpoint)
    )
    client = S3Client(job.region, endpoint=job.endpoint or None, s3client_config=config)
    client.head_object(job.bucket, job.objects[0][0])

    def download(wanted: tuple[str, int]) -> None:
        key, size_bytes = wanted
        fd = job.allocate(key, size_bytes)
        try:
            at = 0
            for piece in client._get_object_stream(job.bucket, key):
                at += os.pwrite(fd, piece, at)
            assert at == size_bytes, f"expected {size_bytes} bytes, got {at}"
        finally:
            os.close(fd)

    def transfer() -> None:
        with ThreadPoolExecutor(job.own.get("objects_at_once", _OBJECTS_AT_ONCE)) as pool:
            list(pool.map(download, job.objects))

    finish(job, job.measure(transfer))


if __name__ == "__main__":
    main()
