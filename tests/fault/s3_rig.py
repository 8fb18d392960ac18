"""The daemon's sources over the scripted server, with short deadlines and a clock that does not wait."""

from __future__ import annotations

import contextlib
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from feedd.catalog.sources import Sources
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.loop_thread import LoopThread
from feedd.metrics import FETCH_BYTES, FETCH_PARTS
from tests.budget import PATIENT_S
from tests.fakes.sinks import into
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from feedd.values import ObjectRef
    from tests.fakes.s3.server import S3Server
    from tests.unit.serve.certs import Authority

WAYS: Final = ("direct", "direct-tls")
EVERY_WAY: Final = pytest.mark.parametrize("way", WAYS, indirect=True)
PART_BYTES = 64 * 1024
DATA = random.Random(1).randbytes(5 * PART_BYTES + 123)
ANONYMOUS = S3Options(anonymous=True)
SIGNED = S3Options()


class Rig:
    """Sources over the fake server, with clocks that do not wait, and long time-outs unless a test shortens them."""

    def __init__(
        self, url: str, authority: Authority, way: str = "direct", access: S3Options | None = None, **changes: float
    ) -> None:
        self.recorder = TallyRecorder()
        self.clock = TimelessClock()
        settings: dict[str, float] = {
            "connect_timeout_s": PATIENT_S,
            "read_timeout_s": PATIENT_S,
            "attempts_max": 4,
            "hedge_share": 0.0,
        } | changes
        settings = {"parts_in_flight": 4, "bytes_in_flight": 3 * PART_BYTES} | settings
        self.options = SourceOptions(
            part_size_bytes=PART_BYTES,
            s3={"*": replace(access or ANONYMOUS, endpoint_url=url, ca_bundle=str(authority.ca_path))},
            **settings,  # type: ignore[arg-type]  # attempts_max is a whole number in every call
        )
        self.sources = Sources(self.options, self.recorder, self.clock, LoopThread("feedd-fetch"))

    async def fetch(self, url: str = "s3://bucket/key") -> bytes:
        """Resolve and fetch an object."""
        (ref,) = await self.sources.resolve([url])
        return await self.fetch_ref(ref)

    async def fetch_ref(self, ref: ObjectRef) -> bytes:
        """Fetch a version."""
        target = bytearray(ref.size_bytes)
        await self.sources.fetcher.fetch(ref, into(target))
        return bytes(target)

    def assert_nothing_held(self) -> None:
        """Check that the gauges are back at zero."""
        assert self.recorder.total(FETCH_BYTES) == 0
        assert self.recorder.total(FETCH_PARTS) == 0


@contextlib.asynccontextmanager
async def opened(
    url: str, authority: Authority, way: str = "direct", access: S3Options | None = None, **changes: float
) -> AsyncIterator[Rig]:
    """Run a rig, and check its gauges in the end."""
    made = Rig(url, authority, way, access, **changes)
    async with made.sources:
        yield made
    made.assert_nothing_held()


def asked(server: S3Server, op: str = "GET") -> int:
    """Return how many requests of that kind came."""
    return sum(request.op == op for request in server.requests)
