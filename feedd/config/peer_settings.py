"""The options of the peer cache."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from feedd.config.section import Section
from feedd.config.types import AbsolutePath, Duration, HostPort, ReadableFile, split_list


class PeersConfig(Section):
    """Shards read from the caches of other daemons instead of from the store."""

    listen: HostPort | None = Field(None, description="host:port for other daemons; default: the peer cache is off")
    members: Annotated[list[HostPort], BeforeValidator(split_list)] = Field(
        [], description="host:port of all daemons, this one included; a DNS name stands for all of its addresses"
    )
    members_file: AbsolutePath | None = Field(
        None, description="file with one host:port a line, besides members; it is read again when it changes"
    )
    address: HostPort | None = Field(
        None,
        description="own host:port among the members, an IP or a name; default: found by this machine's addresses",
    )
    ca: ReadableFile | None = Field(
        None, description="PEM file; daemons show each other tls.cert, which one of these authorities must have signed"
    )
    timeout: Duration = Field(
        0.05, ge=0.001, le=60, description="longest silence of a daemon before the store is used in its place"
    )
