"""What one user cannot do to another: take all calls, connections or memory, or write to what others read."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from feedd.workers import sandbox
from tests.budget import PATIENT_S, later
from tests.e2e.daemon import free_port
from tests.fakes.processes import command_of
from tests.security.node import NEEDS_USERS, READ, Node, open_folder
from tests.security.users import ALICE, BOB, DAEMON_UID, MALLORY, run_as, started_as
from tests.unit.serve.certs import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, NEEDS_USERS]

SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "DATABASE_URL",
    "MY_PASSPHRASE",
    "HF_TOKEN",
    "SENTRY_DSN",
)
SETTINGS = bytes(3) + b"\x04" + bytes(5)
"""An empty SETTINGS frame of HTTP/2."""
HELLO = bytes.fromhex("16030100c8010000c40303")
"""The start of a TLS handshake."""
WAITING_READ = f"""
import feedd_client, sys
print("imported", flush=True)
sys.stdin.readline()
{READ}
"""
SILENT = """
import queue, sys, grpc, time
from feedd.wire.feedd_pb2_grpc import FeedStub
from feedd.serve.tickets import ticket_of, TICKET_HEADER
stub = FeedStub(grpc.insecure_channel(sys.argv[1].replace("unix://", "unix:")))
with ticket_of(sys.argv[1].removeprefix("unix://") + ".arena") as ticket:
    calls = [stub.Stream(iter(queue.SimpleQueue().get, None), metadata=((TICKET_HEADER, ticket),)) for _ in range(200)]
    print("begun", flush=True)
    codes = [call.code().name for call in calls]
    print({code: codes.count(code) for code in set(codes)}, flush=True)
"""
IDLE = """
import socket, sys, time
held = []
for number in range(600):
    for suffix in ("", ".arena") if number < 200 else ("",):
        conn = socket.socket(socket.AF_UNIX)
        conn.settimeout(2)
        try:
            conn.connect(sys.argv[1].removeprefix("unix://") + suffix)
        except OSError:
            conn.close()
        else:
            held.append(conn)
print("held", len(held), flush=True)
sys.stdin.read()
"""
HOG = """
import sys
from feedd_client import FeedDataset, FeedError
held = []
try:
    while True:
        dataset = FeedDataset(sys.argv[2], batch_size=4096, fields={"text": "bytes"}, prefetch=16, address=sys.argv[1],
            open_timeout_s=1)
        stream = iter(dataset)
        held.append((dataset, stream, next(stream)))
except FeedError as error:
    print("refused", len(held), error, flush=True)
sys.stdin.read()
"""
END = """
import sys
from feedd.cli.app import app
for session in sys.argv[2:]:
    app(["sessions", "end", session, "--address", sys.argv[1]], standalone_mode=False)
"""
GROUP = """
import fcntl, mmap, os, socket, sys, grpc
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feedd_pb2_grpc import FeedStub
from feedd.serve.tickets import ticket_of, TICKET_HEADER
path = sys.argv[1].removeprefix("unix://")
stub = FeedStub(grpc.insecure_channel(f"unix:{path}"))
with ticket_of(path + ".arena") as ticket:
    opened = stub.Open(pb.OpenRequest(version=pb.ProtocolVersion(major=1), urls=[sys.argv[2]],
        recipe=pb.Recipe(batch_size=4, fields=[pb.Field(name="text", recipe="str")]), share="team", shared_arena=True),
        timeout=20, metadata=((TICKET_HEADER, ticket),))
lifeline = socket.socket(socket.AF_UNIX)
lifeline.connect(opened.arena.socket_path)
lifeline.sendall(b"ARENA" + opened.arena.token)
_, (fd,), _, _ = socket.recv_fds(lifeline, 1, 1)
print(os.fstat(fd).st_ino, opened.arena.places > 0, flush=True)
tries = {
    "map": lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE),
    "open": lambda: os.open(f"/proc/self/fd/{fd}", os.O_RDWR),
    "hole": lambda: os.posix_fallocate(fd, 0, 4096),
    "write": lambda: os.pwrite(fd, b"x", 0),
    "private": lambda: mmap.mmap(fd, 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE),
}
for name, attempt in tries.items():
    try:
        attempt()
    except OSError:
        print(name, "refused", flush=True)
    else:
        print(name, "done", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Return a node with little memory for batches and few files, whose socket everybody can open."""
    with (
        open_folder() as home,
        Node(
            home,
            settings=("arena.size=64MiB", "limits.sessions_per_owner=8", "decode.environment=MY_MODEL"),
            limit_files=512,
            env=dict.fromkeys(SECRETS, "verysecret") | {"MY_MODEL": "/models/a"},
        ) as node,
    ):
        yield node


def _reads(node: Node) -> None:
    said = node.read(ALICE, f"text+file://{node.public}/lines.txt")
    assert said.startswith("read 16 "), said


def test_streams_that_never_start_are_few_and_short(node: Node) -> None:
    """S5: 64 of one user at a time, 5 s each; others open and read meanwhile."""
    mallory = started_as(MALLORY, SILENT, node.address)
    try:
        assert mallory.stdout is not None
        assert mallory.stdout.readline() == "begun\n"
        _reads(node)
        codes = json.loads(mallory.stdout.readline().replace("'", '"'))
        assert codes == {"RESOURCE_EXHAUSTED": 136, "INVALID_ARGUMENT": 64}
    finally:
        mallory.kill()
        mallory.communicate()


def test_connections_that_say_nothing_are_dropped(node: Node) -> None:
    """S6: 800 of them, more than the daemon may open files; within seconds others get through."""
    mallory = started_as(MALLORY, IDLE, node.address)
    try:
        assert mallory.stdout is not None
        assert mallory.stdout.readline().startswith("held")
        deadline_s = time.monotonic() + PATIENT_S
        while not (said := node.read(ALICE, f"text+file://{node.public}/lines.txt")).startswith("read 16 "):
            assert node.alive, node.log.read_text()[-3000:]
            assert time.monotonic() < deadline_s, said
    finally:
        mallory.kill()
        mallory.communicate()
    assert node.alive


def _page(node: Node) -> tuple[str, int]:
    """Return host and port of the status page, once the log tells them."""
    while not (lines := [line for line in node.log.read_text().splitlines() if '"status page"' in line]):
        assert node.alive, node.log.read_text()[-3000:]
        time.sleep(0.05)
    host, _, port = str(json.loads(lines[0])["address"]).rpartition(":")
    return host, int(port)


def _health(page: tuple[str, int]) -> str:
    """Return what the status page answers to a request for health."""
    with urllib.request.urlopen(f"http://{page[0]}:{page[1]}/healthz", timeout=PATIENT_S) as answer:
        return str(json.loads(answer.read())["state"])


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("port", "said"),
    [
        ("status", "nothing"),
        ("grpc", "nothing"),
        ("tls", "greeting"),
        ("arena", "half"),
        later("status", "half"),
        *(later("tcp", said) for said in ("nothing", "half", "greeting", "hello")),
        *(later("tls", said) for said in ("nothing", "half", "hello")),
        later("status", "greeting"),
        later("grpc", "half"),
        later("grpc", "greeting"),
        later("arena", "nothing"),
        later("arena", "greeting"),
    ],
)
def test_idle_connections_leave_descriptors_for_the_work(port: str, said: str) -> None:
    """400 at a limit of 320 files: health is answered, and a dataset opens at the first try with an empty cache."""
    preface = {
        "half": b"PRI * HTTP/2.0\r\n",
        "greeting": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS,
        "hello": HELLO,
    }
    words = {
        "status": {"half": b"GET /healthz HTTP/1.1\r\n", "greeting": b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"},
        "arena": {"half": b"ARENA", "greeting": b"ARENA" + bytes(16)},
    }.get(port, preface)
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(open_folder())
        tcp_port = free_port()
        listen = (f"127.0.0.1:{tcp_port}",)
        settings: tuple[str, ...] = ()
        env: dict[str, str] = {}
        if port == "tls":
            authority = Authority(home)
            cert, key = authority.issue("localhost")
            key.chmod(0o644)
            settings = (f"tls.cert={cert}", f"tls.key={key}")
            env = {"FEEDD_TLS_CA": str(authority.ca_path)}
        node = stack.enter_context(Node(home, settings, listen=listen, limit_files=320, status="127.0.0.1:0"))
        page = _page(node)
        address = {"tcp": f"127.0.0.1:{tcp_port}", "tls": f"tls://127.0.0.1:{tcp_port}"}.get(port, node.address)
        # The client has started before the connections come, and opens while the port is full.
        client = started_as(ALICE, WAITING_READ, address, f"text+file://{node.public}/lines.txt", env=env)
        stack.callback(client.communicate)
        stack.callback(client.kill)
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stdout.readline() == "imported\n"
        for _ in range(400):
            unix = port in {"grpc", "arena"}
            conn = stack.enter_context(socket.socket(socket.AF_UNIX if unix else socket.AF_INET))
            conn.settimeout(2)
            with contextlib.suppress(OSError):  # full, or dropped meanwhile
                suffix = ".arena" if port == "arena" else ""
                where = page if port == "status" else ("127.0.0.1", tcp_port)
                conn.connect(f"{node.socket}{suffix}" if unix else where)
                conn.sendall(words.get(said, b""))
        client.stdin.write("go\n")
        client.stdin.flush()
        assert node.process is not None
        assert psutil.Process(node.process.pid).num_fds() <= 240, "a quarter is for the work"
        assert _health(page) == "ready"
        lines = [line for line in client.stdout if "cannot open yet" not in line]
        assert lines[0].startswith("read 16 "), lines
        assert _health(page) == "ready"
        assert node.alive
        log = node.log.read_text()
        assert "Too many open files" not in log, log[-3000:]
        assert log.count("a port has all the connections") <= 1


def test_a_user_who_holds_all_it_can_leaves_room_for_others(node: Node) -> None:
    """S9: three quarters of the memory at most, also while stopped; an administrator sees and ends its sessions."""
    (node.public / "wide.txt").write_text("x" * 100 + "\n")
    mallory = started_as(MALLORY, HOG, node.address, f"text+file://{node.public}/wide.txt")
    try:
        assert mallory.stdout is not None
        while not (said := mallory.stdout.readline()).startswith("refused"):
            assert "cannot open yet" in said, said
        family = psutil.Process(mallory.pid)  # tests beside this one have processes of the same user
        processes = [one for one in (family, *family.children(recursive=True)) if one.uids().real == MALLORY]
        assert processes
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        _reads(node)
        theirs = [one for one in node.sessions() if one["owner"] == f"uid {MALLORY}"]
        assert theirs
        assert sum(int(str(one["arena_bytes"])) for one in theirs) <= 48 << 20
        run_as(0, END, node.address, *(str(one["id"]) for one in theirs))
        assert not [one for one in node.sessions() if one["owner"] == f"uid {MALLORY}"]
        for process in processes:
            process.send_signal(signal.SIGCONT)
    finally:
        mallory.kill()
        mallory.communicate()


def test_shared_batches_are_for_reading(node: Node) -> None:
    """S8: jobs of two users share nothing; jobs of one user cannot change what the others read."""
    started = [
        started_as(uid, GROUP, node.address, f"text+file://{node.public}/lines.txt") for uid in (ALICE, ALICE, BOB)
    ]
    try:
        said = []
        for process in started:
            assert process.stdout is not None
            said.append([process.stdout.readline().strip() for _ in range(6)])
        files = [lines[0].split()[0] for lines in said]
        assert files[0] == files[1] != files[2]
        for lines in said:
            assert lines[0].endswith("True")
            assert lines[1:] == ["map refused", "open refused", "hole refused", "write refused", "private done"]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_nobody_holds_a_daemon_that_does_not_end_with_its_users(node: Node) -> None:
    """S9: such connections have no end; a shared daemon refuses them."""
    code = """
import socket, sys
conn = socket.socket(socket.AF_UNIX)
conn.connect(sys.argv[1].removeprefix("unix://") + ".arena")
conn.sendall(b"HOLD!" + bytes(16))
print(conn.recv(1))
"""
    assert run_as(MALLORY, code, node.address).strip() == str(b"\x00")


def test_workers_and_daemon_are_closed_to_each_other(node: Node) -> None:
    """S10: the kernel holds workers, and the daemon's environment is closed to processes of its own user."""
    _reads(node)
    daemon = next(
        one
        for one in psutil.process_iter()
        if one.uids().real == DAEMON_UID
        and "serve" in command_of(one)
        and str(node.socket) in " ".join(command_of(one))
    )
    workers = [one for one in daemon.children() if "feedd.workers.worker" in command_of(one)]
    assert workers
    here = sandbox.supported()
    for worker in workers:
        lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines())
        assert lines["NoNewPrivs"] == "1"
        assert lines["Seccomp"] == ("2" if here.seccomp else "0")
        assert "verysecret" not in str(worker.environ())
        assert worker.environ()["MY_MODEL"] == "/models/a"
    code = "import sys; print(open(f'/proc/{sys.argv[1]}/environ', 'rb').read()[:9])"
    assert "PermissionError" in run_as(DAEMON_UID, code, str(daemon.pid))
    assert Path(f"/proc/{daemon.pid}/environ").stat().st_uid == 0
