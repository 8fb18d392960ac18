"""Cases 5 to 9, 13 to 16 and 54: names, addresses, connections, and answers that are not the one asked for."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from feedd.errors import BadResponse, ResourceExhausted, StoreUnavailable
from feedd.fetch.s3 import pool as s3_pool
from feedd.fetch.s3.store import S3Store
from feedd.metrics import SOURCE_BYTES, SOURCE_RETRIES
from feedd.values import ByteRange, ReadProgress
from tests.fakes.s3 import faults as fault
from tests.fakes.s3.sdk_bodies import sdk_bodies_store
from tests.fakes.s3.server import S3Server
from tests.fakes.sinks import into
from tests.fault.s3_rig import DATA, PART_BYTES, WAYS, asked, opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tests.fakes.s3.faults import Fault
    from tests.fault.s3_rig import Rig
    from tests.unit.serve.certs import Authority

HERE, OTHER = "127.0.0.1", "127.0.0.2"  # both are this machine: on Linux all of 127/8 is
NAME = "store.test"
PLAIN = pytest.mark.parametrize("way", ["direct", "sdk"])  # the certificate is for an address, not for a name
DIRECT = pytest.mark.parametrize("way", ["direct"])


@pytest.fixture(params=[*WAYS, "sdk"])
def way(request: pytest.FixtureRequest) -> str:
    """Each way to the bytes in turn: these cases are about what is on the wire."""
    return str(request.param)


class Names:
    """What the resolver says about ``NAME``."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = (HERE,)
        self.asked_count = 0

    def found(self) -> Sequence[str]:
        """Answer, or fail as resolvers do."""
        self.asked_count += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.addresses


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """Answer for ``NAME`` in place of the machine's resolver."""
    known, real = Names(), socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **more: Any) -> list[Any]:
        if host not in {NAME, NAME.encode()}:
            return real(host, port, *args, **more)
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, (address, int(port))) for address in known.found()]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


@contextlib.contextmanager
def full_backlog(host: str, port: int) -> Iterator[None]:
    """Listen there, and have so many wait for an answer that Linux drops all further ones."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        probe = stack.enter_context(socket.socket())
        probe.settimeout(0.2)
        with pytest.raises(TimeoutError):
            probe.connect((host, port))
        yield


def named(server: S3Server) -> str:
    """Return the server's URL by name."""
    return server.url.replace(HERE, NAME)


@pytest.fixture
def second(server: S3Server) -> Iterator[S3Server]:
    """Start another server for the same objects, at the other address."""
    port = int(server.url.rpartition(":")[2])
    with S3Server(port=port, host=OTHER) as running:
        running.put("bucket", "key", DATA)
        yield running


@PLAIN
async def test_case_05_refused_goes_to_another_address(
    server: S3Server, authority: Authority, way: str, names: Names
) -> None:
    """Where one address of a name refuses, the next is tried at once: no retry, no wait, exact bytes."""
    names.addresses = (OTHER, HERE)
    async with opened(named(server), authority, way) as rig:
        assert await rig.fetch() == DATA
        assert rig.clock.sleeps_s == []
        assert rig.recorder.total(SOURCE_RETRIES) == 0
    assert asked(server) == 6


@PLAIN
async def test_case_05_connecting_times_out(server: S3Server, authority: Authority, way: str, names: Names) -> None:
    """Where an address drops what asks for a connection, the next is tried before the time is over: exact bytes."""
    names.addresses = (OTHER, HERE)
    with full_backlog(OTHER, int(server.url.rpartition(":")[2])):
        async with opened(named(server), authority, way, connect_timeout_s=1.0) as rig:
            assert await rig.fetch() == DATA
            assert rig.recorder.total(SOURCE_RETRIES) == 0


@DIRECT
async def test_case_06_last_good_addresses_stay(
    server: S3Server, authority: Authority, way: str, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While names cannot be resolved the last good addresses stay in use, for new connections too."""
    monkeypatch.setattr(s3_pool, "_RESOLVE_EVERY_S", 0.0)
    monkeypatch.setattr(s3_pool, "_IDLE_S", 0.0)
    async with opened(named(server), authority, way) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        assert await rig.fetch_ref(ref) == DATA
        names.addresses, before, connections = (), names.asked_count, server.connection_count
        assert await rig.fetch_ref(ref) == DATA
        assert rig.recorder.total(SOURCE_RETRIES) == 0
        assert names.asked_count > before, "it was asked, and did not answer"
        assert server.connection_count > connections


@PLAIN
async def test_case_06_a_name_that_never_resolved(
    server: S3Server, authority: Authority, way: str, names: Names
) -> None:
    """Where a name never resolved the error names the endpoint, after a bounded number of attempts."""
    names.addresses = ()
    async with opened(named(server), authority, way) as rig:
        with pytest.raises(StoreUnavailable, match=NAME):
            await rig.fetch()
        assert rig.recorder.total(SOURCE_RETRIES) == 3


@DIRECT
@pytest.mark.parametrize("bad", [fault.hang(), fault.hang_in_body(1000)], ids=["silent", "stalls"])
async def test_case_07_traffic_leaves_a_dead_address_and_comes_back(
    server: S3Server,
    second: S3Server,
    authority: Authority,
    way: str,
    names: Names,
    bad: Fault,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An address that answers no more loses its traffic, is probed, and gets traffic again once it answers."""
    monkeypatch.setattr(s3_pool, "QUARANTINE_FIRST_S", 0.05)
    names.addresses = (HERE, OTHER)
    second.script("bucket", "key", always=bad)
    async with opened(named(server), authority, way, read_timeout_s=0.1) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        assert await rig.fetch_ref(ref) == DATA
        first = asked(second)
        assert 1 <= first <= 4, "what was under way, and no more"
        assert asked(server) >= 6
        second.calm()
        while asked(second) <= first + 1:  # a probe, and then what a good address gets
            await asyncio.sleep(0.02)
            assert await rig.fetch_ref(ref) == DATA


@DIRECT
async def test_case_07_another_attempt_goes_elsewhere(
    server: S3Server, second: S3Server, authority: Authority, way: str, names: Names
) -> None:
    """A second request for the same bytes, as a hedge sends it, goes to another address than the first."""
    names.addresses = (HERE, OTHER)
    hang = fault.hang_in_body(1000)
    for one in (server, second):
        one.script("bucket", "key", hang)
    async with opened(named(server), authority, way) as rig, rooted(rig, way) as store:
        ref = await store.head("key")
        spans = [ByteRange(0, 5000), ByteRange(0, 5000), ByteRange(1000, 5000)]
        reads = []
        for index, span in enumerate(spans):
            target = memoryview(bytearray(span.size_bytes))
            reads.append(asyncio.ensure_future(store.read_into(ref, span, into(target))))
            while asked(server) + asked(second) <= min(index, 1):  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.002)
            if index < 2:
                assert asked(server) <= 1
                assert asked(second) <= 1
        await reads[2]  # taken up again behind what came: both answer now
        for read in reads[:2]:
            read.cancel()
        await asyncio.gather(*reads[:2], return_exceptions=True)


@contextlib.asynccontextmanager
async def rooted(rig: Rig, way: str) -> AsyncIterator[S3Store]:
    """Open the bare store of the rig's bucket."""
    store = (sdk_bodies_store if way == "sdk" else S3Store)("bucket", rig.options)
    try:
        yield store
    finally:
        await store.close()


async def broken_off_and_taken_up(server: S3Server, rig: Rig, way: str, bad: Fault) -> ReadProgress:
    """Check that what came of a body that broke off is the object's, and that the rest can be had."""
    server.script("bucket", "key", bad)
    async with rooted(rig, way) as store:
        ref = await store.head("key")
        target, progress = bytearray(PART_BYTES), ReadProgress()
        with pytest.raises(StoreUnavailable) as caught:
            await store.read_into(ref, ByteRange(10, 10 + PART_BYTES), into(target), progress)
        assert type(caught.value) is StoreUnavailable
        assert target[: progress.filled_bytes] == DATA[10 : 10 + progress.filled_bytes]
        assert (progress.first_byte_s is None) == (progress.filled_bytes == 0)
        rest = ByteRange(10 + progress.filled_bytes, 10 + PART_BYTES)
        again = ReadProgress()
        await store.read_into(ref, rest, into(target).part(progress.filled_bytes, PART_BYTES), again)
        assert again.filled_bytes == rest.size_bytes
        assert target == DATA[10 : 10 + PART_BYTES]
        return progress


async def test_case_08_reset_in_mid_body(server: S3Server, rig: Rig, way: str) -> None:
    """A body cut by a reset is an error, never the end; what came is the object's and the rest comes anew."""
    await broken_off_and_taken_up(server, rig, way, fault.reset_in_body(30_000))  # which may overtake bytes before it


async def test_case_09_clean_close_in_mid_body(server: S3Server, rig: Rig, way: str) -> None:
    """A body closed before its Content-Length is an error that says how far it came, byte for byte."""
    progress = await broken_off_and_taken_up(server, rig, way, fault.cut_body(30_000))
    assert progress.filled_bytes == 30_000
    assert progress.answered_by.startswith("request id fake, address ")


async def test_case_09_a_close_is_never_the_end(server: S3Server, rig: Rig) -> None:
    """Parts closed cleanly before their Content-Length are fetched again, each once, and nothing is lost."""
    server.script("bucket", "key", fault.cut_body(1000), None, fault.cut_body(0))
    assert await rig.fetch() == DATA
    assert asked(server) == 6 + 2
    assert rig.recorder.total(SOURCE_RETRIES) == 2


async def refused_and_fetched_again(server: S3Server, rig: Rig, way: str, bad: Fault) -> None:
    """Check that an answer leaves no byte in the target, and that a fetch that meets it twice is exact."""
    server.script("bucket", "key", bad)
    async with rooted(rig, way) as store:
        ref = await store.head("key")
        target, progress = bytearray(b"\xee" * 5000), ReadProgress()
        with pytest.raises(BadResponse) as caught:
            await store.read_into(ref, ByteRange(100, 5100), into(target), progress)
        assert progress.filled_bytes == 0
        assert set(target) == {0xEE}, "not a byte of it reached the target"
        assert caught.value.object == "s3://bucket/key"
        assert progress.answered_by
    before = asked(server)
    server.script("bucket", "key", bad, None, bad)
    assert await rig.fetch() == DATA
    assert asked(server) - before == 6 + 2
    assert rig.recorder.total(SOURCE_BYTES) == len(DATA)


@pytest.mark.parametrize("shift", [1, -1, 100])
async def test_case_13_206_with_another_range(server: S3Server, rig: Rig, way: str, shift: int) -> None:
    """An answer of another range is refused before a byte of it counts, and the part asked for once more."""
    await refused_and_fetched_again(server, rig, way, fault.wrong_content_range(shift))


async def test_case_14_200_for_a_range(server: S3Server, rig: Rig, way: str) -> None:
    """The whole object in place of a range is refused before a byte of it counts, and the part asked for once more."""
    await refused_and_fetched_again(server, rig, way, fault.whole_object())


@pytest.mark.parametrize("header", ["Content-Range", "ETag"])
async def test_case_15_missing_headers(server: S3Server, rig: Rig, way: str, header: str) -> None:
    """An answer that does not say which range of which version it is is refused, and the part asked for once more."""
    await refused_and_fetched_again(server, rig, way, fault.without(header))


@pytest.mark.parametrize("bad", [fault.extra_bytes(1), fault.extra_bytes(300_000), fault.short_body(1)])
async def test_case_16_another_length(server: S3Server, rig: Rig, way: str, bad: Fault) -> None:
    """An answer longer or shorter than its range is refused before a byte of it counts, and asked for once more."""
    await refused_and_fetched_again(server, rig, way, bad)


async def test_progress_of_a_good_read(server: S3Server, rig: Rig, way: str) -> None:
    """A read that ends well says so: all bytes filled, when they began to come, and who sent them."""
    async with rooted(rig, way) as store:
        ref = await store.head("key")
        target, progress = bytearray(len(DATA)), ReadProgress()
        await store.read_into(ref, ByteRange(0, len(DATA)), into(target), progress)
        assert target == DATA
        assert progress.filled_bytes == len(DATA)
        assert progress.first_byte_s is not None
        assert progress.answered_by == f"request id fake, address {HERE}"


@contextlib.contextmanager
def _descriptors_left(count: int) -> Iterator[None]:
    """Let this process open only so many more."""
    listed = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    used = {number for number in listed if Path(f"/proc/self/fd/{number}").exists()}  # the listing had one of its own
    free = [number for number in range(max(used) + count + 2) if number not in used]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[count], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
async def outside(tmp_path: Path) -> AsyncIterator[str]:
    """Start the server in a process of its own: the limit of open files is ours, not its."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "key").write_bytes(DATA)
    command = [sys.executable, "-m", "tests.fakes.s3.server", "--root", str(tmp_path), "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.slow
@DIRECT
async def test_case_54_no_descriptor_left(outside: str, authority: Authority, way: str) -> None:
    """With descriptors for two connections and six parts at once, the parts take turns: no error, no retry."""
    async with opened(outside, authority, way, parts_in_flight=6, bytes_in_flight=len(DATA)) as rig:
        (ref,) = await rig.sources.resolve(["s3://bucket/key"])
        target = bytearray(100)
        async with rooted(rig, way) as store:  # whatever is opened once is open
            await store.read_into(ref, ByteRange(0, 100), into(target))
            with _descriptors_left(2):
                parts = [memoryview(bytearray(1000)) for _ in range(6)]
                reads = (store.read_into(ref, ByteRange(at, at + 1000), into(part)) for at, part in enumerate(parts))
                await asyncio.gather(*reads)
            assert all(part == DATA[at : at + 1000] for at, part in enumerate(parts))


@pytest.mark.slow
@PLAIN
async def test_case_54_none_at_all(outside: str, authority: Authority, way: str) -> None:
    """Without a descriptor for one connection the error names the limit to raise, and it passes with the shortage."""
    async with opened(outside, authority, way) as rig, rooted(rig, way) as store:
        ref = await store.head("key")
        target = bytearray(1000)
        await store.read_into(ref, ByteRange(0, 1000), into(target))
        await _idle(store)
        with _descriptors_left(0), pytest.raises(ResourceExhausted, match="ulimit") as caught:
            await store.read_into(ref, ByteRange(0, 1000), into(target))
        assert caught.value.retryable
        await store.read_into(ref, ByteRange(0, 1000), into(target))
        assert target == DATA[:1000]


async def _idle(store: S3Store) -> None:
    """Give up the kept connections."""
    for pool in store._pools.values():
        await pool._drop(list(pool._idle))
    client = store.clients._current.value
    assert client is not None
    for session in client.client._endpoint.http_session._sessions.values():
        for kept in session.connector._conns.values():
            for protocol, _ in kept:
                protocol.transport.abort()
    await asyncio.sleep(0.05)


def test_errno_of_a_shortage() -> None:
    """What the kernel calls a shortage of descriptors, of this process and of the machine."""
    assert {errno.EMFILE, errno.ENFILE} == s3_pool._NO_DESCRIPTOR
