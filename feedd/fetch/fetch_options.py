"""How to reach the stores, and how hard to pull."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - readers of configuration resolve annotations at run time
from dataclasses import dataclass, field
from typing import Literal

from feedd.fetch.scheduler import PARTS_PER_PLACE
from feedd.units import MIB

AddressingStyle = Literal["auto", "path", "virtual"]
Transport = Literal["auto", "direct", "aiobotocore"]
Verify = Literal["off", "length", "checksum"]


@dataclass(frozen=True, slots=True)
class S3Options:
    """Access to one bucket; what is None is left to botocore's own chain (``AWS_*``, profiles, roles).

    Attributes:
        endpoint_url: another store that speaks S3.
        region: region of the bucket.
        profile: section of the AWS configuration files.
        role_arn: role to assume with the credentials found.
        addressing_style: ``auto``: virtual on AWS, path where ``endpoint_url`` is set.
        anonymous: send no credentials.
        requester_pays: accept to be charged.
        ca_bundle: file of certificates to trust instead of the system's.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    addressing_style: AddressingStyle = "auto"
    anonymous: bool = False
    requester_pays: bool = False
    ca_bundle: str | None = None


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Bounds of the source room.

    Attributes:
        part_size_bytes: size of one ranged GET; 0: as suits the object and how its bucket answers.
        parts_in_flight: ranged GETs at one time, over all shards; of small objects that are samples eight times as
            many. See ``connections_max``.
        bytes_in_flight: bytes of parts being received at one time.
        transfer_threads: threads that move bodies into files on disk, and as many for files in memory.
        attempts_max: attempts of one request that bring nothing, the first included; being told to slow down is
            bounded by time instead.
        retry_deadline_s: how long a request is tried again, besides the time for its bytes.
        connect_timeout_s: longest wait for a connection.
        read_timeout_s: longest silence of a server that owes us bytes.
        rate_floor_bytes_s: a part may take ``connect + read timeout + size / this``.
        listing_deadline_s: longest wait for one page of a listing.
        heads_in_flight: HEAD requests at one time, for manifests.
        file_threads: threads that read local files.
        transport: who receives objects from S3. ``direct``: our own HTTP reader, straight into the target;
            ``aiobotocore``: the SDK; ``auto``: ours, the SDK behind a proxy. What only the SDK can address it reads.
        verify: what is held against what. ``length``: each answer's length, range and version against what was asked
            for; ``checksum``: besides, each object's bytes against the checksum its store keeps, where it keeps one;
            ``off``: as ``length``, which costs nothing.
        hedge_share: of the bytes read so much may be asked for a second time, where a part is slow; 0: none.
        s3: access by bucket; ``*`` for those not named.
    """

    part_size_bytes: int = 0
    parts_in_flight: int = 16
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
    transport: Transport = "auto"
    verify: Verify = "checksum"
    hedge_share: float = 0.05
    s3: Mapping[str, S3Options] = field(default_factory=dict)

    def for_bucket(self, bucket: str) -> S3Options:
        """Return the access settings of ``bucket``."""
        return self.s3.get(bucket) or self.s3.get("*") or S3Options()

    @property
    def connections_max(self) -> int:
        """How many requests for parts, and connections for them, one bucket gets at one time.

        Second requests come on top: one that waited for a part to end would come too late, and one that took a part's
        place would make that late, and the next.
        """
        requests = self.parts_in_flight * PARTS_PER_PLACE
        return requests + (requests // 4 + 1 if self.hedge_share else 0)

    def read_deadline_s(self, size_bytes: int) -> float:
        """Return how long one request for ``size_bytes`` may take in all."""
        return self.connect_timeout_s + self.read_timeout_s + size_bytes / self.rate_floor_bytes_s

    def whole_deadline_s(self, size_bytes: int) -> float:
        """Return how long ``size_bytes`` may take with every attempt they need."""
        return self.retry_deadline_s + size_bytes / self.rate_floor_bytes_s
