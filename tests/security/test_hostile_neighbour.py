"""A job beside a user who tries everything: the job's batches are right and its rate stays, the other gets errors."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING

import pytest

from tests.security.node import NEEDS_USERS, Node, open_folder
from tests.security.users import ALICE, MALLORY, started_as

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, NEEDS_USERS]

JOB = """
import json, sys, time
from feedd_client import FeedDataset
dataset = FeedDataset(sys.argv[2], batch_size=32, fields={"text": "str"}, address=sys.argv[1], share="job")
end_s = time.monotonic() + float(sys.argv[3])
epochs = steps = 0
while time.monotonic() < end_s:
    seen = []
    for batch in dataset:
        seen += batch["text"]
        steps += time.monotonic() < end_s
        time.sleep(float(sys.argv[4]))
    assert seen == [f"line {number}" for number in range(20000)], (len(seen), seen[:3])
    epochs += 1
print(json.dumps({"epochs": epochs, "rate": steps / float(sys.argv[3])}), flush=True)
"""
HOSTILE = """
import json, os, queue, random, signal, socket, sys, threading, time, grpc
from feedd.wire import feedd_pb2 as pb
from feedd.wire.feedd_pb2_grpc import AdminStub, FeedStub
from feedd.serve.tickets import ticket_of, TICKET_HEADER
path, public, secret = sys.argv[1].removeprefix("unix://"), sys.argv[2], sys.argv[3]
end_s = time.monotonic() + float(sys.argv[4])
channel = grpc.insecure_channel(f"unix:{path}")
feed, admin = FeedStub(channel), AdminStub(channel)
told, held = {}, []
rng = random.Random(1)

def note(name, error=None):
    code = "answered" if error is None else error.code().name
    told.setdefault(name, {}).setdefault(code, 0)
    told[name][code] += 1

def opened(urls, **more):
    recipe = pb.Recipe(batch_size=more.pop("batch_size", 8), fields=[pb.Field(name="text", recipe="bytes")])
    return pb.OpenRequest(version=pb.ProtocolVersion(major=1), urls=urls, recipe=recipe, **more)

def connections():
    for suffix in ("", ".arena"):
        for _ in range(20):
            conn = socket.socket(socket.AF_UNIX)
            conn.settimeout(1)
            try:
                conn.connect(path + suffix)
                conn.sendall(rng.randbytes(rng.choice([1, 5, 21])))
                held.append(conn)
            except OSError:
                conn.close()
    while len(held) > 200:
        held.pop(0).close()

with ticket_of(path + ".arena") as ticket:
    headers = ((TICKET_HEADER, ticket),)
    calls = {
        "drain": lambda: admin.Drain(pb.DrainRequest(grace_s=0), timeout=2, metadata=headers),
        "remove": lambda: admin.CacheRemove(pb.CacheRemoveRequest(pattern=""), timeout=2, metadata=headers),
        "secret": lambda: feed.Open(opened([f"text+file://{secret}"]), timeout=2, metadata=headers),
        "bucket": lambda: feed.Open(opened(["s3://somebody-else/"]), timeout=2, metadata=headers),
        "long": lambda: feed.Open(opened(["s3://" + "x" * (1 << 20)]), timeout=2, metadata=headers),
        "redos": lambda: feed.Open(opened(["a:" * 4000], client_version="://" * 5000), timeout=2, metadata=headers),
        "braces": lambda: feed.Open(opened(["file://" + public + "/{0..99999}/" * 3]), timeout=2, metadata=headers),
        "quota": lambda: feed.Open(opened([f"text+file://{public}/lines.txt"], prefetch_batches=16, batch_size=1024),
                                   timeout=2, metadata=headers),
        "silent": lambda: feed.Stream(iter(queue.SimpleQueue().get, None), metadata=headers, timeout=3).code(),
        "bare": lambda: feed.Open(opened([f"text+file://{public}/lines.txt"]), timeout=2),
    }
    while time.monotonic() < end_s:
        connections()
        name = rng.choice(sorted(calls))
        try:
            if name == "silent":
                threading.Thread(target=lambda: calls["silent"](), daemon=True).start()
                note(name)
            else:
                calls[name]()
                note(name)
        except grpc.RpcError as error:
            note(name, error)
print(json.dumps(told), flush=True)
os._exit(0)
"""


@pytest.fixture
def node() -> Iterator[Node]:
    """Return a node with a dataset of 20,000 lines in 20 shards."""
    with open_folder() as home, Node(home, settings=("arena.size=256MiB",)) as node:
        folder = node.public / "job"
        folder.mkdir()
        for shard in range(20):
            (folder / f"{shard:03d}.txt").write_text("".join(f"line {shard * 1000 + n}\n" for n in range(1000)))
        yield node


def _job(node: Node, seconds: float, *, hostile: bool, step_s: float = 0.0) -> tuple[float, dict[str, dict[str, int]]]:
    """Return the job's steps per second, and what the hostile user was answered.

    Args:
        node: the node.
        seconds: how long the job goes on.
        hostile: whether another user does everything that may disturb it.
        step_s: time that a training step takes on a device, so without a core.
    """
    url = f"text+file://{node.public}/job/"
    mallory = None
    if hostile:
        arguments = (node.address, str(node.public), str(node.secret), str(seconds + 5))
        mallory = started_as(MALLORY, HOSTILE, *arguments)
    alice = started_as(ALICE, JOB, node.address, url, str(seconds), str(step_s))
    try:
        said, _ = alice.communicate(timeout=seconds + 120)
        told = json.loads(mallory.communicate(timeout=120)[0].splitlines()[-1]) if mallory is not None else {}
    finally:
        for process in (alice, mallory):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()
    return float(json.loads(said.splitlines()[-1])["rate"]), told


@pytest.mark.timeout(900)
@pytest.mark.nightly
def test_the_job_goes_on_beside_a_hostile_user(node: Node) -> None:
    """Every epoch is complete and in order; what the other asks for is refused by a typed error, or ends by itself."""
    _, told = _job(node, 300.0, hostile=True)
    assert node.alive
    for name in ("drain", "remove", "secret", "bucket", "bare"):
        assert set(told[name]) <= {"PERMISSION_DENIED"}, told
    for name in ("long", "redos"):
        assert set(told[name]) <= {"INVALID_ARGUMENT", "PERMISSION_DENIED"}, told
    assert not {"UNKNOWN", "INTERNAL", "UNAVAILABLE"} & {code for codes in told.values() for code in codes}, told


@pytest.mark.bench
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("step_s", "least"), [(0.005, 0.9), (0.0, 0.5)])
def test_rate_beside_a_hostile_user(node: Node, step_s: float, least: float) -> None:
    """Interleaved with runs alone, median of five. Without training steps both users want all cores."""
    ratios = []
    for _ in range(5):
        alone, _ = _job(node, 10.0, hostile=False, step_s=step_s)
        beside, _ = _job(node, 10.0, hostile=True, step_s=step_s)
        ratios.append(beside / alone)
    print(ratios)
    assert statistics.median(ratios) >= least, ratios
