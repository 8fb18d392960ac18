"""Who may read, see and administer what on a node that several users share."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from tests.security.node import NEEDS_USERS, READ, Node, open_folder
from tests.security.users import ALICE, BOB, DAEMON_UID, MALLORY, run_as, started_as

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, NEEDS_USERS]

REFUSED = "PERMISSION_DENIED expected a URL that you may read"
OPEN = (
    'feed.Open(pb.OpenRequest(version=pb.ProtocolVersion(major=1), urls=["{url}"],'
    ' recipe=pb.Recipe(batch_size=4, fields=[pb.Field(name="{field}", recipe="{recipe}")])),'
    " timeout=20, metadata=headers)"
)


def opening(url: str, field: str = "text", recipe: str = "str") -> str:
    """Return the call that opens a dataset."""
    return OPEN.format(url=url, field=field, recipe=recipe.replace('"', '\\"'))


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Return a node whose socket everybody can open."""
    with open_folder() as home, Node(home) as node:
        yield node


def test_clients_read_what_is_allowed(node: Node) -> None:
    """S1: everybody who may open the socket reads the folder that the operator names, and nothing else."""
    urls = ("s3://secret-bucket/x.tar", "s3://secret-bucket/", "s3://secret-bucket/{0,1}.tar")
    assert all(said.startswith(REFUSED) for said in node.calls(MALLORY, [opening(url) for url in urls]))
    assert node.read(ALICE, f"text+file://{node.public}/lines.txt").startswith("read 16 ")
    assert node.read(MALLORY, f"{node.public}/lines.txt").startswith("read 16 ")


def test_nobody_reads_files_of_the_daemon(node: Node) -> None:
    """S1: neither outside of the allowed folder, nor through links below it, nor by way of its parent."""
    paths = ["secret/token.txt", "secret/", "public/link.txt", "public/folder/", "public/../secret/token.txt"]
    for said in node.calls(MALLORY, [opening(f"text+file://{node.home}/{path}") for path in paths]):
        assert said.startswith(("PERMISSION_DENIED", "NOT_FOUND")), said
        assert "the daemon's token" not in said


def test_manifests_braces_and_tables_are_refused_as_well(node: Node) -> None:
    """S1: what a URL expands to is checked like a URL."""
    manifest = node.public / "list.manifest"
    manifest.write_text(json.dumps([{"prefix": f"file://{node.secret.parent}/"}, "token.txt"]))
    foreign = node.public / "foreign.manifest"
    foreign.write_text(json.dumps([{"prefix": "s3://secret-bucket/"}, "x.tar"]))
    assert node.calls(MALLORY, [opening(f"manifest+file://{foreign}")])[0].startswith(REFUSED)
    table = json.dumps({"from": "table", "file": str(node.secret), "decode": "int"})
    said = node.calls(
        MALLORY,
        [
            opening(f"manifest+file://{manifest}"),
            opening(f"text+file://{node.home}/{{public/lines,secret/token}}.txt"),
            opening(f"{node.public}/", "label", table),
        ],
    )
    assert all(one.startswith("PERMISSION_DENIED") for one in said[:2]), said
    assert not said[2].startswith("answered")
    assert "the daemon's token" not in said[2]


def test_the_answer_does_not_tell_what_exists(node: Node) -> None:
    """S1: a file that is there and one that is not are refused in the same words."""
    secret = str(node.secret)
    there, missing = node.calls(MALLORY, [opening(f"text+file://{secret}"), opening(f"text+file://{secret}x")])
    assert there.replace(secret, "X") == missing.replace(f"{secret}x", "X")


RELAY = """
import os, socket, subprocess, sys, threading
path = sys.argv[1].removeprefix("unix://")
below = sys.argv[2] + "/" + str(os.getpid())
listener = socket.socket(socket.AF_UNIX)
listener.bind(below)
listener.listen()

def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)

def serve():
    while True:
        ours, _ = listener.accept()
        theirs = socket.socket(socket.AF_UNIX)
        theirs.bind(f"\\0feedd-relay-{os.getpid()}")
        theirs.connect(path)
        for pair in ((ours, theirs), (theirs, ours)):
            threading.Thread(target=copy, args=pair, daemon=True).start()

threading.Thread(target=serve, daemon=True).start()
import grpc
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feedd_pb2_grpc import FeedStub
try:
    FeedStub(grpc.insecure_channel("unix:" + below)).Open(pb.OpenRequest(version=pb.ProtocolVersion(major=1),
        urls=[sys.argv[3]], recipe=pb.Recipe(batch_size=4, fields=[pb.Field(name="text", recipe="str")])), timeout=20)
    print("answered")
except grpc.RpcError as error:
    print(error.code().name, error.details())
"""


def test_a_socket_with_a_name_of_its_own_is_no_tcp_client(node: Node) -> None:
    """S2: the name that a client binds its socket to does not free it of the ticket."""
    with open_folder() as folder:
        folder.chmod(0o777)
        said = run_as(MALLORY, RELAY, node.address, str(folder), f"text+file://{node.public}/lines.txt")
    assert said.startswith("PERMISSION_DENIED expected a ticket"), said


def test_calls_name_their_user(node: Node) -> None:
    """S2: without a ticket nothing is opened, listed or warmed, since the socket does not tell whose call it is."""
    expressions = [
        opening(f"text+file://{node.public}/lines.txt"),
        "admin.Stats(pb.StatsRequest(), timeout=5, metadata=headers)",
        "admin.Sessions(pb.SessionsRequest(), timeout=5, metadata=headers)",
    ]
    for said in node.calls(MALLORY, expressions, ticket=False):
        assert said.startswith("PERMISSION_DENIED expected a ticket"), said
    assert all(said.startswith("answered") for said in node.calls(MALLORY, expressions))


def test_clients_do_not_administer(node: Node) -> None:
    """S4: a client neither stops the daemon nor empties its cache."""
    expressions = [
        "admin.Drain(pb.DrainRequest(grace_s=0), timeout=5, metadata=headers)",
        'admin.CacheRemove(pb.CacheRemoveRequest(pattern=""), timeout=5, metadata=headers)',
    ]
    for said in node.calls(MALLORY, expressions):
        assert said.startswith("PERMISSION_DENIED expected an administrator"), said
        assert ".admin" in said
    assert node.alive


def test_the_admin_socket_is_for_root_and_the_daemon(node: Node) -> None:
    """S4: its permissions say so, and commands of both find it by the address of the daemon."""
    mode = node.socket.with_name("feedd.sock.admin").stat()
    assert (stat.S_IMODE(mode.st_mode), mode.st_uid) == (0o600, DAEMON_UID)
    node.read(ALICE, f"text+file://{node.public}/lines.txt")
    for uid in (0, DAEMON_UID):
        assert "lines.txt" in node.command(uid, "cache", "ls", "--json", "--address", node.address)
    assert "lines.txt" not in node.command(BOB, "cache", "ls", "--json", "--address", node.address)


def test_sessions_are_their_owners(node: Node) -> None:
    """S4, S9: a client sees and ends its own sessions; an administrator sees all, with who holds them."""
    code = """
import sys
from feedd_client import FeedDataset
stream = iter(FeedDataset(sys.argv[2], batch_size=4, fields={"text": "str"}, address=sys.argv[1]))
held = next(stream)
print("held", flush=True)
sys.stdin.read()
"""
    alice = started_as(ALICE, code, node.address, f"text+file://{node.public}/lines.txt")
    try:
        assert alice.stdout is not None
        assert alice.stdout.readline() == "held\n"
        (seen,) = [one for one in node.sessions() if one["owner"] == f"uid {ALICE}"]
        assert (seen["owner"], seen["urls"]) == (f"uid {ALICE}", [f"text+file://{node.public}/lines.txt"])
        assert seen["leases"] >= 1  # type: ignore[operator]  # a number
        ours = node.command(ALICE, "sessions", "ls", "--json", "--address", node.address)
        assert [one["id"] for one in json.loads(ours)] == [seen["id"]]
        theirs = node.command(BOB, "sessions", "ls", "--json", "--address", node.address)
        assert json.loads(theirs) == []
        refused = node.command(BOB, "sessions", "end", str(seen["id"]), "--address", node.address)
        assert "0 have" in refused, refused
        assert seen["id"] in {one["id"] for one in node.sessions()}
        assert "ended" in node.command(0, "sessions", "end", str(seen["id"]), "--address", node.address)
        assert seen["id"] not in {one["id"] for one in node.sessions()}
    finally:
        alice.kill()
        alice.communicate()


def test_only_listed_users_may_connect_and_some_have_rules_of_their_own() -> None:
    """S2: whoever is in no list gets nothing, by shared memory or inline. An owner's rules replace the general ones."""
    settings = (f"security.allow_uids={ALICE},{BOB}", f"owners.{BOB}.allow_urls=s3://nothing/")
    with open_folder() as home, Node(home, settings=settings) as node:
        url = f"text+file://{node.public}/lines.txt"
        assert node.calls(ALICE, [opening(url)])[0].startswith("answered")
        assert node.calls(BOB, [opening(url)])[0].startswith(REFUSED)
        said = node.read(MALLORY, url)
        assert said.startswith("refused AccessDenied"), said


def test_a_client_refuses_a_socket_that_somebody_else_opened() -> None:
    """S17: in a folder that everybody may write to, another user could listen where the daemon should."""
    code = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o666)
server.listen()
print("listening", flush=True)
sys.stdin.read()
"""
    with open_folder() as home:
        home.chmod(0o1777)
        path = home / "feedd.sock"
        mallory = started_as(MALLORY, code, str(path))
        try:
            assert mallory.stdout is not None
            assert mallory.stdout.readline() == "listening\n"
            said = run_as(ALICE, READ, f"unix://{path}", "s3://bucket/")
            assert said.startswith("refused AccessDenied expected a daemon of root"), said
            assert f"got one of user {MALLORY}" in said
        finally:
            mallory.kill()
            mallory.communicate()
