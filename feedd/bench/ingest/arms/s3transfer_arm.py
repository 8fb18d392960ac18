"""Contender: boto3's own transfer manager, ``download_file`` of every object."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from feedd.bench.ingest.arms.job import Job, finish

_OBJECTS_AT_ONCE = 2


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    config = Config(
        max_pool_connections=job.parts_in_flight,
        s3={"addressing_style": "path" if job.endpoint else "auto"},
        response_checksum_validation="when_required",
    )
    client = boto3.client(
        "s3", endpoint_url=job.endpoint or None, region_name=job.region, verify=job.ca_file or None, config=config
    )
    client.get_object(Bucket=job.bucket, Key=job.objects[0][0], Range="bytes=0-0")["Body"].read()
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
