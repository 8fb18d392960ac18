"""Every way users read: slots, inline, DataLoader workers, fork after iteration, no daemon at all, several ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from feedd_client import DeviceLoader, FeedDataset, Normalize
from tests.budget import PATIENT_S, later
from tests.e2e.shards import numbered
from tests.fakes.processes import command_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(180)]

FIELDS = {"jpg": "image:32x32", "cls": "int"}
IDS = [shard * 1000 + ordinal for shard in range(4) for ordinal in range(21)]


@pytest.fixture
def daemon(s3: S3Server, daemons: Callable[..., Daemon]) -> Daemon:
    """A daemon over four shards."""
    for shard in range(4):
        s3.put("data", f"train/{shard}.tar", numbered(shard, 21))
    return daemons()


def _dataset(daemon: Daemon, **options: Any) -> FeedDataset:
    settings = {"batch_size": 8, "fields": FIELDS, "shuffle": True, "seed": 3, "address": daemon.address}
    return FeedDataset("s3://data/train/", **{**settings, **options})


def _rows(batches: Any) -> list[tuple[int, int]]:
    return [
        (label, int(image.long().sum()))
        for batch in batches
        for label, image in zip(batch["cls"].tolist(), batch["jpg"], strict=True)
    ]


def test_slots_and_inline_are_identical(daemon: Daemon, daemons: Callable[..., Daemon]) -> None:
    """From a daemon without a Unix socket the same batches come inline."""
    remote = daemons("remote", tcp_only=True)
    slots, inline = _dataset(daemon), _dataset(remote)
    assert _rows(slots) == _rows(inline)
    assert (slots.stats()["transport"], inline.stats()["transport"]) == ("slot", "inline")
    daemon.wait_idle(sessions=1)
    remote.wait_idle(sessions=1)


def test_dataloader_workers_split_the_stream(daemon: Daemon) -> None:
    """DataLoader with 0 and 2 workers, also forked after the parent has iterated, gives the same batches."""
    dataset = _dataset(daemon)
    alone = _rows(dataset)
    assert sorted(label for label, _ in alone) == IDS
    for worker_count in (0, 2, 2):
        dataset.set_epoch(0)
        assert _rows(DataLoader(dataset, batch_size=None, num_workers=worker_count)) == alone
    daemon.wait_idle(sessions=1)


def test_samples_keys_and_defaults(daemon: Daemon) -> None:
    """One sample at a time, fields left to the defaults, keys on request."""
    samples = list(_dataset(daemon, batch_size=None, fields=None, keys=True, shuffle=False))
    assert [int(sample["cls"]) for sample in samples] == IDS
    assert samples[30]["__key__"] == "00001009"
    assert samples[30]["__url__"] == "s3://data/train/1.tar"
    assert tuple(samples[0]["jpg"].shape) == (48, 64, 3)
    daemon.wait_idle()


def test_device_loader_on_the_cpu(daemon: Daemon) -> None:
    """Without CUDA, DeviceLoader passes through with the transforms applied, and its batches are the trainer's."""
    plain = [batch["jpg"].clone() for batch in _dataset(daemon)]
    loader = DeviceLoader(_dataset(daemon), device="cpu", transforms=[Normalize((0.5,) * 3, (0.25,) * 3)])
    batches = list(loader)
    for raw, batch in zip(plain, batches, strict=True):
        expected = (raw.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
        torch.testing.assert_close(batch["jpg"], expected)
    daemon.wait_idle(sessions=1)


def test_resume_at_every_step(daemon: Daemon) -> None:
    """From the state saved at any step a new process object gives exactly the tail."""
    dataset = _dataset(daemon)
    states, batches = [dataset.state_dict()], []
    for batch in dataset:
        batches.append(batch["cls"].tolist())
        states.append(dataset.state_dict())
    for step in range(len(batches)):
        fresh = _dataset(daemon)
        fresh.load_state_dict(states[step])
        assert [batch["cls"].tolist() for batch in fresh] == batches[step:]
    daemon.wait_idle(sessions=2)


_AUTOSTART = """
import os, sys
from feedd_client import FeedDataset
dataset = FeedDataset("s3://data/train/", batch_size=8, fields={"cls": "int"})
labels = [label for batch in dataset for label in batch["cls"].tolist()]
print(len(labels), os.environ["FEEDD_ADDRESS"], flush=True)
if "die" in sys.argv:
    os.kill(os.getpid(), 9)
"""


def _without_daemon(s3: S3Server, daemon: Daemon, tmp_path: Path) -> dict[str, str]:
    env = os.environ | {
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "FEEDD_CACHE__DIR": str(tmp_path / "cache"),
        "FEEDD_CACHE__SIZE": "64MiB",
        "FEEDD_CACHE__FREE_RESERVE": "1MiB",
        "TMPDIR": str(daemon.home),
    }
    env.pop("XDG_RUNTIME_DIR", None)
    return env


@pytest.mark.parametrize("end", [later("live"), "die"])
def test_no_daemon_needed(s3: S3Server, daemon: Daemon, tmp_path: Path, end: str) -> None:
    """With no address a daemon is started, said in one line, and gone with the process, even one that was killed."""
    env = _without_daemon(s3, daemon, tmp_path)
    done = subprocess.run([sys.executable, "-c", _AUTOSTART, end], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split()[:1] == [str(len(IDS))], done.stderr
    said = [line for line in done.stderr.splitlines() if "feedd" in line]
    assert len(said) == 1, done.stderr
    socket = done.stdout.split()[1].removeprefix("unix://")
    deadline = time.monotonic() + PATIENT_S
    while any(socket in " ".join(command_of(process)) for process in psutil.process_iter()) or Path(socket).exists():
        assert time.monotonic() < deadline, "the started daemon outlived its process tree"
        time.sleep(0.1)


@pytest.mark.nightly  # tests/unit/client/test_client_autostart.py starts a stand-in for it
def test_daemon_of_another_environment(s3: S3Server, daemon: Daemon, tmp_path: Path) -> None:
    """A trainer without the package feedd starts the daemon of another virtual environment, by its command's path."""
    home = tmp_path / "other"
    venv.EnvBuilder(symlinks=True).create(home)
    (packages,) = home.glob("lib/python*/site-packages")
    beside = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "feedd.pth").write_text("\n".join([str(Path(__file__).parents[2]), *beside]))
    executable = home / "bin" / "feedd"
    executable.write_text(f"#!{home}/bin/python\nfrom feedd.cli import main\nmain()\n")
    executable.chmod(0o755)
    env = _without_daemon(s3, daemon, tmp_path) | {"FEEDD_EXECUTABLE": str(executable), "PYTHONPATH": "/nonexistent"}
    script = (
        f"import sys; sys.modules['feedd'] = None\nsys.path[:0] = {[path for path in sys.path if path]!r}\n{_AUTOSTART}"
    )
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split()[:1] == [str(len(IDS))], done.stderr
    assert f"Started with {executable}." in done.stderr


_RANK = """
import json, pathlib, sys, torch.distributed as dist
from feedd_client import FeedDataset
dist.init_process_group("gloo")
dataset = FeedDataset("s3://data/train/", batch_size=8, fields={"cls": "int"}, shuffle=True)
labels = [batch["cls"].tolist() for batch in dataset]
pathlib.Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(labels))
dist.destroy_process_group()
"""


def test_torchrun_two_ranks(daemon: Daemon, tmp_path: Path) -> None:
    """Under torchrun two ranks (gloo) take disjoint batches and end at the same step."""
    script = tmp_path / "rank.py"
    script.write_text(_RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path)],
        env=os.environ | {"FEEDD_ADDRESS": daemon.address, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = {rank: json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)}
    assert len(ranks[0]) == len(ranks[1]) == 5  # 84 samples: 11 batches of 8, the last of 4 is left over
    seen = [label for rank in ranks.values() for batch in rank for label in batch]
    assert len(seen) == len(set(seen)) == 80
    assert set(seen) <= set(IDS)
    daemon.wait_idle()
