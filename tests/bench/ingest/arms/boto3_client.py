"""What the contenders that are boto3's have in common: its client, with one connection open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from tests.bench.ingest.arms.job import Job


def open_client(job: Job) -> Any:
    """Return a client that has asked the store for something already."""
    config = Config(
        max_pool_connections=job.parts_in_flight,
        s3={"addressing_style": "path" if job.endpoint else "auto"},
        response_checksum_validation="when_required",
    )
    client = boto3.client(
        "s3", endpoint_url=job.endpoint or None, region_name=job.region, verify=job.ca_file or None, config=config
    )
    client.get_object(Bucket=job.bucket, Key=job.objects[0][0], Range="bytes=0-0")["Body"].read()
    return client
