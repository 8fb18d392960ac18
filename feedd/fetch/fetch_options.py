"""Options of access to the stores, and bounds of the requests to them."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - readers of configuration resolve annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from feedd.fetch.scheduler import PARTS_PER_PLACE
from feedd.units import MIB

AddressingStyle = Literal["auto", "path", "virtual"]
Verify = Literal["off", "length", "checksum"]


@dataclass(frozen=True, slots=True)
class S3Options:
    """Access to one bucket; botocore's own chain (``AWS_*``, profiles, roles) decides each value that is None.

    Attributes:
        endpoint_url: URL of another store that speaks S3.
        region: region of the bucket.
        profile: section of the AWS configuration files.
        role_arn: role to assume with the credentials found.
        addressing_style: ``auto``: virtual on AWS, path if ``endpoint_url`` is set.
        anonymous: send no credentials.
        requester_pays: accept to be charged.
        ca_bundle: file of certificates to trust instead of the system's.
        client_certificate: PEM file with the certificate to show to a server that asks for one.
        client_key: PEM file with its private key; None: ``client_certificate`` holds it.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    addressing_style: AddressingStyle = "auto"
    anonymous: bool = False
    requester_pays: bool = False
    ca_bundle: str | None = None
    client_certificate: str | None = None
    client_key: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Bounds of all requests to stores.

    Attributes:
        part_size_bytes: size of one ranged GET; 0: chosen by the object's size and the bucket's recent speed.
        parts_in_flight: concurrent ranged GETs, over all shards. Small objects that are samples may use eight times
            as many. See ``connections_max``.
        pinned: always have that many in flight, unless the store throttles; False: while they raise the throughput.
        bytes_in_flight: bytes of parts being received at one time.
        transfer_threads: threads that move bodies into files on disk, and as many for files in memory.
        attempts_max: attempts of one request that bring no bytes, the first included. Throttling is bounded by time
            instead.
        retry_deadline_s: how long a request is retried, in addition to the time for its bytes.
        connect_timeout_s: longest wait for a connection.
        read_timeout_s: longest silence of a server that has not sent all bytes.
        rate_floor_bytes_s: a part may take ``connect + read timeout + size / this``.
        listing_deadline_s: longest wait for one page of a listing.
        heads_in_flight: concurrent HEAD requests, for manifests.
        file_threads: threads that read the local files of one mount.
        file_folders: folders, with a final slash, below which local files may be read, without following links;
            None: everywhere.
        verify: what is compared. ``length``: each answer's length, range and version with the request.
            ``checksum``: also each object's bytes with the store's checksum, if there is one. ``off``: same as
            ``length``, which costs nothing.
        hedge_share: share of the bytes read that may be requested a second time because a part is slow; 0: none.
        s3: access options by bucket; ``*``: all other buckets.
        traced: note parts and requests for traces.
    """

    part_size_bytes: int = 0
    parts_in_flight: int = 16
    pinned: bool = False
    bytes_in_flight: int = 256 * MIB
    transfer_threads: int = 2
    attempts_max: int = 8
    retry_deadline_s: float = 300.0
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 30.0
    rate_floor_bytes_s: int = MIB // 4
    listing_deadline_s: float = 60.0
    heads_in_flight: int = 64
    file_threads: int = 8
    file_folders: tuple[str, ...] | None = None
    verify: Verify = "checksum"
    hedge_share: float = 0.05
    s3: Mapping[str, S3Options] = field(default_factory=dict)
    traced: bool = False

    def for_bucket(self, bucket: str) -> S3Options:
        """Return the access settings of ``bucket``."""
        return self.s3.get(bucket) or self.s3.get("*") or S3Options()

    @property
    def connections_max(self) -> int:
        """Upper limit of concurrent part requests, and of connections, to one bucket.

        Hedges come on top of the parts. A hedge that waited for another part to end would come too late. A hedge that
        took a part's place would delay that part and the next.
        """
        requests = self.parts_in_flight * PARTS_PER_PLACE
        return requests + (requests // 4 + 1 if self.hedge_share else 0)

    def read_deadline_s(self, size_bytes: int) -> float:
        """Return how long one request for ``size_bytes`` may take in total."""
        return self.connect_timeout_s + self.read_timeout_s + size_bytes / self.rate_floor_bytes_s

    def whole_deadline_s(self, size_bytes: int) -> float:
        """Return how long ``size_bytes`` may take with all retries."""
        return self.retry_deadline_s + size_bytes / self.rate_floor_bytes_s
