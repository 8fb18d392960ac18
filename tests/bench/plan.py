"""What all benches of one run share: how often, with whom, over which data, from which server."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.dataset import BUCKET, FULL, QUICK, Data, Shape, prepare
from tests.bench.harness import Arm, Row, run_arm
from tests.bench.s3 import BenchServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.bench.peers import Peers

WORKERS = 2
BATCH_SIZE = 256
PREFETCH_FACTOR = 4  # batches ahead per torch worker
PICTURES: Mapping[str, Any] = {
    "bucket": BUCKET,
    "batch_size": BATCH_SIZE,
    "workers": WORKERS,
    "prefetch_factor": PREFETCH_FACTOR,
    "stop_after": 0,
}


@dataclass(slots=True)
class Plan:
    """One run of ``python -m tests.bench``.

    Attributes:
        round_count: counted rounds.
        quick: small data and short times.
        peers: their environment, or None.
        say: prints a line of progress.
        shape: how many pictures; None: as quick says.
        arms: names of those to run; empty: all.
        latency_ms: of the S3 server, before the first byte of each answer.
        tls: whether it serves https.
    """

    round_count: int
    quick: bool
    peers: Peers | None
    say: Callable[[str], None]
    shape: Shape | None = None
    arms: tuple[str, ...] = ()
    latency_ms: float = 0.0
    tls: bool = False
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _data: Data | None = None
    _server: BenchServer | None = None

    @property
    def data(self) -> Data:
        """The pictures; made when first asked for."""
        if self._data is None:
            self.say("pictures: making what is missing")
            self._data = prepare(self.shape or (QUICK if self.quick else FULL), self.peers)
        return self._data

    @property
    def server(self) -> BenchServer:
        """The S3 server over them; started when first asked for."""
        if self._server is None:
            self._server = self._stack.enter_context(BenchServer(self.data.root, self.latency_ms, tls=self.tls))
        return self._server

    @property
    def used_server(self) -> BenchServer | None:
        """The server, if any bench asked for it."""
        return self._server

    def chosen(self, arms: list[Arm]) -> list[Arm]:
        """Return the arms that are to run.

        Raises:
            SystemExit: none of them is among those asked for; its text names them all.
        """
        found = [arm for arm in arms if not self.arms or arm.name in self.arms]
        if arms and not found:
            names = ", ".join(repr(arm.name) for arm in arms)
            raise SystemExit(f"expected --arms to name one of {names}, got {', '.join(map(repr, self.arms))}")
        return found

    def close(self) -> None:
        """Stop the server."""
        self._stack.close()

    def peer_arms(self, **settings: Any) -> list[Arm]:
        """Every peer reading the pictures, look-ahead set generously; none where peers are absent."""
        if self.peers is None:
            return []
        shared = {**PICTURES, "sample_count": self.data.shape.sample_count, **settings}
        shards = {"reader": "http", "shards": self.data.shard_urls(BUCKET), "shard_count": self.data.shape.shard_count}
        own: dict[str, dict[str, Any]] = {
            "mosaicml-streaming": {"predownload": 16 * BATCH_SIZE},
            "litdata": {"max_pre_download": 8},
            "webdataset": {"shuffle_buffer": 1000, **shards},
        }
        modules = {"mosaicml-streaming": "mds"}
        return [
            Arm(
                name,
                f"tests.bench.arms.epoch_{modules.get(name, name)}",
                self.peers.python,
                {**self.peers.environment, **self.server.environment},
                {**shared, **extra},
            )
            for name, extra in own.items()
        ]

    def feedd_arm(self, name: str = "feedd", module: str = "epoch_feedd", **settings: Any) -> Arm:
        """Feedd reading the pictures, with as many batches ahead as the daemon chooses (4 of this size)."""
        shared = {**PICTURES, "sample_count": self.data.shape.sample_count, "prefetch": None}
        shared |= {"daemon": "warm", "cache": "cold", **settings}
        return Arm(name, f"tests.bench.arms.{module}", Path(sys.executable), self.server.environment, shared)

    @property
    def first_round(self) -> int:
        """0: a round to warm up comes first. Where only a glance is wanted, 1."""
        return 1 if self.quick else 0

    def once(self, arm: Arm, round_index: int, timeout_s: float) -> Row:
        """Run a reading arm with empty caches; add what the server sent meanwhile."""
        with empty_folder() as folder:
            (folder / "cache").mkdir()
            before = self.server.sent()
            extra = {"cache_dir": str(folder / "cache"), "run_dir": str(folder)}
            # some peers leave lock files among the temporary files, and slow down by how many there are
            own = replace(arm, environment={**arm.environment, "TMPDIR": str(folder)})
            row = run_arm(own, extra, timeout_s, watch_memory=round_index == self.first_round)
            sent = self.server.sent().since(before)
        row |= {
            "gets": sent.get_count,
            "requests": sent.request_count,
            "sent_bytes": sent.body_bytes,
            "process_samples_per_s": row["samples"] / row["process_s"],
        }
        return row


def run_with_empty_cache(arm: Arm, timeout_s: float, **extra: Any) -> Row:
    """Run an arm once, with an empty cache and a folder for its run, both on tmpfs; ``extra``: further settings."""
    with empty_folder() as folder:
        (folder / "cache").mkdir()
        return run_arm(arm, {"cache_dir": str(folder / "cache"), "run_dir": str(folder), **extra}, timeout_s)


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """A fresh folder on tmpfs, so that no arm waits for a disk; all caches lie in it and go with it."""
    folder = Path(tempfile.mkdtemp(prefix="feedd-bench-", dir="/dev/shm"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
