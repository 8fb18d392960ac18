"""Contender: boto3's own transfer manager, ``download_file`` of every object."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from boto3.s3.transfer import TransferConfig

from tests.bench.ingest.arms.boto3_client import open_client
from tests.bench.ingest.arms.job import Job, finish

_OBJECTS_AT_ONCE = 2


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    client = open_client(job)
    transfer = TransferConfig(
        multipart_chunksize=job.part_bytes,
        max_concurrency=max(1, job.parts_in_flight // _OBJECTS_AT_ONCE),
        io_chunksize=1 << 20,
        preferred_transfer_client="classic",
    )

    def download(key: str) -> None:
        client.download_file(job.bucket, key, str(job.path(key)), Config=transfer)

    def transfer_all() -> None:
        with ThreadPoolExecutor(_OBJECTS_AT_ONCE) as pool:
            list(pool.map(download, [key for key, _ in job.objects]))

    finish(job, job.measure(transfer_all))


if __name__ == "__main__":
    main()
