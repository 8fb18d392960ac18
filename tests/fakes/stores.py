"""A real server with some objects, and sources over it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from feedd.catalog.sources import Sources
from feedd.clock import SystemClock
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.flow.loop_thread import LoopThread
from tests.fakes.s3.server import S3Server
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@contextmanager
def serving(bodies: Mapping[str, bytes]) -> Iterator[S3Server]:
    """Start a server whose bucket, ``bucket``, has some objects."""
    with S3Server() as running:
        for key, body in bodies.items():
            running.put("bucket", key, body)
        yield running


def sources_over(server: S3Server, recorder: TallyRecorder | None = None, **options: Any) -> Sources:
    """Return sources over a server, which asks for no credentials; to be opened. Requests run as in a daemon."""
    access = {"*": S3Options(endpoint_url=server.url, anonymous=True)}
    return Sources(
        SourceOptions(s3=access, **options), recorder or TallyRecorder(), SystemClock(), LoopThread("feedd-fetch")
    )
