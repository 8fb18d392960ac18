"""The object store suite over memory, files, S3 over HTTP, and every wrapper."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import NotFound
from feedd.fetch.fetch_options import S3Options, SourceOptions
from feedd.fetch.hedge import HedgePolicy, Hedger, HedgeStore
from feedd.fetch.local_store import LocalStore
from feedd.fetch.requests import RequestStore
from feedd.fetch.retry import RetryLimits, RetryPolicy, RetryStore
from feedd.fetch.s3.store import S3Store
from feedd.values import ObjectRef
from tests.conformance.object_store_suite import *  # noqa: F403 - its tests run here, against the bed below
from tests.conformance.object_store_suite import Bed, collect, read
from tests.fakes.memory_store import MemoryStore
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.sdk_bodies import sdk_bodies_store
from tests.fakes.s3.server import S3Server
from tests.fakes.tally import TallyRecorder
from tests.fakes.timeless import TimelessClock
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from feedd.protocols import ObjectStore

KINDS = ["memory", "local", "direct", "direct-tls", "sdk"]
KINDS += ["hedge/direct", "request+retry/local", "request+hedge+retry/direct"]
OTHERS = ["request/memory", "retry/memory", "hedge/memory", "hedge/direct-tls", "hedge/sdk"]
OTHERS += ["request+retry/direct"]


def _beds(*without: str) -> list[Any]:
    """Return the stores and stacks of wrappers, some of them nightly, ``without`` those that cannot."""
    nightly = [pytest.param(kind, marks=pytest.mark.nightly) for kind in OTHERS if not kind.endswith(without)]
    return [kind for kind in KINDS if not kind.endswith(without)] + nightly


@contextlib.contextmanager
def _bare(kind: str, top: Path) -> Iterator[Bed]:
    if kind == "memory":
        memory = MemoryStore()
        yield Bed(memory, memory.put, memory.delete)
    elif kind == "local":
        yield _local(top)
    else:
        authority = Authority(top) if kind == "direct-tls" else None
        with S3Server(cert=authority.issue("store") if authority else None) as server:
            server.create_bucket("bucket")
            access = S3Options(
                endpoint_url=server.url, anonymous=True, ca_bundle=str(authority.ca_path) if authority else None
            )
            options = SourceOptions(s3={"*": access})
            store = (sdk_bodies_store if kind == "sdk" else S3Store)("bucket", options)
            yield Bed(
                store,
                lambda name, data: server.put("bucket", name, data),
                lambda name: server.delete("bucket", name),
                put_kept=lambda name, data, algorithm, sizes: server.put("bucket", name, data, Kept(algorithm, sizes)),
                tells_progress=True,
            )


def _local(top: Path) -> Bed:
    def put(name: str, data: bytes) -> None:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    odd_names = ("a\nb", "%41", " lead", "q?x=1#y&z", "tab\tx")  # those that name one file in one way
    return Bed(LocalStore(2), put, lambda name: (top / name).unlink(), lambda name: f"{top}/{name}", odd_names)


def _eager() -> Hedger:
    """Return one that finds whatever takes a moment late."""
    hedger = Hedger(HedgePolicy(floor_s=1e-5, part_share=0.0, lag_max_s=60.0))
    for _ in range(16):
        hedger.note(1, 1e-5, 2e-5)
    return hedger


def _wrapped(names: str, inner: ObjectStore) -> ObjectStore:
    recorder, clock = TallyRecorder(), TimelessClock()
    wrappers: dict[str, Callable[[ObjectStore], ObjectStore]] = {
        "request": lambda store: RequestStore(store, 2, recorder, clock),
        "retry": lambda store: RetryStore(store, RetryLimits(RetryPolicy()), clock, recorder),
        "hedge": lambda store: HedgeStore(store, _eager(), recorder),
    }
    for name in filter(None, names.split("+")):
        inner = wrappers[name](inner)
    return inner


@contextlib.asynccontextmanager
async def _made(request: pytest.FixtureRequest, top: Path) -> AsyncIterator[Bed]:
    names, _, kind = request.param.rpartition("/")
    with _bare(kind, top) as bare:
        store = _wrapped(names, bare.store)
        yield dataclasses.replace(bare, store=store)
        await store.close()


@pytest.fixture(params=_beds("none of them"))
async def bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    """Set up each store and stack of wrappers in turn."""
    async with _made(request, tmp_path) as made:
        yield made


@pytest.fixture(params=_beds("local"))
async def marker_bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    """Set up those in which a key may end in a slash."""
    async with _made(request, tmp_path) as made:
        yield made


@pytest.fixture(params=_beds("local", "memory"))
async def keeping_bed(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bed]:
    """Set up those that keep checksums."""
    async with _made(request, tmp_path) as made:
        yield made


@pytest.mark.parametrize("kind", [S3Store, sdk_bodies_store], ids=["own", "sdk"])
async def test_missing_bucket(kind: Callable[[str, SourceOptions], S3Store]) -> None:
    """A bucket that does not exist is NotFound for every request, with a hint about name and region."""
    with S3Server() as server:
        store = kind("absent", SourceOptions(s3={"*": S3Options(endpoint_url=server.url, anonymous=True)}))
        with pytest.raises(NotFound, match="name and region"):
            await collect(store, "")
        with pytest.raises(NotFound):
            await store.head("x")
        with pytest.raises(NotFound, match="name and region"):
            await read(store, ObjectRef(store.root, "x", 10, "etag"), 0, 10)
        await store.close()


async def test_missing_directory() -> None:
    """A directory that does not exist is NotFound."""
    store = LocalStore(1)
    with pytest.raises(NotFound):
        await collect(store, "/nonexistent-feedd/x/")
    await store.close()
