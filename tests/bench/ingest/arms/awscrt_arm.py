"""Contender: awscrt's S3Client, which writes whole objects to files by itself."""

from __future__ import annotations

import os
from urllib.parse import quote, urlsplit

from awscrt.auth import AwsCredentialsProvider
from awscrt.http import HttpHeaders, HttpRequest
from awscrt.io import (
    ClientBootstrap,
    ClientTlsContext,
    DefaultHostResolver,
    EventLoopGroup,
    TlsConnectionOptions,
    TlsContextOptions,
)
from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType, create_default_s3_signing_config

from tests.bench.ingest.arms.job import Job, finish

_DEADLINE_S = 300.0


def _client(job: Job, bootstrap: ClientBootstrap, *, tls: bool) -> S3Client:
    if "AWS_ACCESS_KEY_ID" in os.environ:
        provider = AwsCredentialsProvider.new_environment()
    else:
        provider = AwsCredentialsProvider.new_default_chain(bootstrap)
    options: TlsConnectionOptions | None = None
    if tls and job.ca_file:
        context = TlsContextOptions()
        context.override_default_trust_store_from_path(None, job.ca_file)
        options = TlsConnectionOptions(ClientTlsContext(context))
    return S3Client(
        bootstrap=bootstrap,
        region=job.region,
        tls_mode=S3RequestTlsMode.ENABLED if tls else S3RequestTlsMode.DISABLED,
        tls_connection_options=options,
        signing_config=create_default_s3_signing_config(region=job.region, credential_provider=provider),
        part_size=job.part_bytes,
        throughput_target_gbps=job.own.get("gbps", 25.0),
        max_active_connections_override=job.parts_in_flight,
    )


def main() -> None:
    """Run once."""
    job = Job.from_arguments()
    group = EventLoopGroup()
    bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
    place = urlsplit(job.endpoint)
    client = _client(job, bootstrap, tls=place.scheme != "http")
    host = place.netloc or f"{job.bucket}.s3.{job.region}.amazonaws.com"
    folder = f"/{job.bucket}" if job.endpoint else ""

    def request(key: str) -> HttpRequest:
        headers = HttpHeaders([("host", host)])
        return HttpRequest("GET", f"{folder}/{quote(key)}", headers)

    def transfer() -> None:
        sent = [
            client.make_request(
                type=S3RequestType.GET_OBJECT, request=request(key), recv_filepath=str(job.path(key))
            ).finished_future
            for key, _ in job.objects
        ]
        for future in sent:
            future.result(_DEADLINE_S)

    finish(job, job.measure(transfer))


if __name__ == "__main__":
    main()
