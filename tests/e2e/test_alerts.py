"""The alerts that feedd ships, each fired by a fault of a real daemon, and none by a healthy one.

Each fault lies between two scrapes. ``promtool test rules`` gets both as series and judges them by the rule files.
"""

from __future__ import annotations

import functools
import http.client
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from feedd_client import FeedDataset
from tests.budget import PATIENT_S
from tests.e2e.shards import jpeg, numbered, tar
from tests.fakes.nobody import let_permissions_bind
from tests.fakes.promtool import Window, firing, promtool
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.faults import flipped_bit, hang, internal_error, late, slow_down

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

LIMIT_S = 30.0
SAMPLES = 8
PAD_BYTES = 100_000


class Scene:
    """A daemon, its store, and what was scraped so far.

    Attributes:
        windows: the scrapes around each fault.
        wanted: the alerts that each fault must fire.
    """

    def __init__(self, daemon: Daemon, s3: S3Server) -> None:
        self.daemon = daemon
        self.s3 = s3
        self.windows: dict[str, Window] = {}
        self.wanted: dict[str, set[str]] = {}

    def scrape(self) -> str:
        """Return the text of the daemon's metrics; empty: it does not answer."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.daemon.status_port, timeout=PATIENT_S)
            return _ask(connection)
        except OSError:
            return ""
        finally:
            connection.close()

    @contextmanager
    def fault(self, name: str, *alerts: str, once: bool = False) -> Iterator[None]:
        """Scrape before and after what happens meanwhile; it must fire ``alerts`` and no others."""
        before = self.scrape()
        yield
        self.add(name, Window(before, self.scrape(), once=once), *alerts)

    def add(self, name: str, window: Window, *alerts: str) -> None:
        """Add a fault that must fire ``alerts`` and no others."""
        self.windows[name], self.wanted[name] = window, set(alerts)

    def put(self, prefix: str, shards: int = 1, kept: Kept | None = None) -> None:
        """Upload shards of 800 kB."""
        for shard in range(shards):
            self.s3.put("data", f"{prefix}/{shard}.tar", numbered(shard, SAMPLES, pad_bytes=PAD_BYTES), kept)

    def dataset(self, prefix: str, **options: Any) -> FeedDataset:
        """Return a dataset of one field that is read in batches of a shard."""
        settings = {"batch_size": SAMPLES, "fields": {"cls": "int"}, "prefetch": 2, **options}
        return FeedDataset(f"s3://data/{prefix}/", address=self.daemon.address, **settings)

    def read(self, prefix: str, step_s: float = 0.0, **options: Any) -> int:
        """Read a dataset, with a pause after each batch; return the number of its samples."""
        count = 0
        dataset = self.dataset(prefix, **options)
        for batch in dataset:
            count += len(batch["cls"])
            time.sleep(step_s)
        dataset.close()
        return count

    def total(self, name: str) -> float:
        """Return a metric, summed over labels."""
        return self.daemon.metrics()[name]

    def until(self, met: Callable[[], bool]) -> None:
        """Wait."""
        deadline = time.monotonic() + LIMIT_S
        while not met():
            assert time.monotonic() < deadline, self.daemon.log.read_text()[-3000:]
            time.sleep(0.02)


def _ask(connection: http.client.HTTPConnection) -> str:
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


@pytest.fixture
def _promtool() -> None:
    promtool()


@pytest.mark.usefixtures("_promtool")
def test_faults_of_store_and_data_fire_their_alerts(
    s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    """A store that refuses, fails, hangs or damages, wrong data and a small cache: each fires its own alert."""
    scene = Scene(daemons(cache_size="14MiB"), s3)
    _damaged_cache(scene)
    scene.put("warm", 4)
    warm = scene.dataset("warm")
    assert sum(len(batch["cls"]) for batch in warm) == 4 * SAMPLES
    _healthy(scene, warm)
    warm.close()
    _store_faults(scene)
    _data_faults(scene)
    with scene.fault("cache too small", "FeeddCacheTooSmall"):
        scene.put("large", 20)
        dataset = scene.dataset("large")
        for _ in range(2):
            assert sum(len(batch["cls"]) for batch in dataset) == 20 * SAMPLES
        dataset.close()
    fired = firing(scene.windows, tmp_path)
    for name in fired.keys() - {"healthy", "the store is slow"}:
        fired[name].discard("FeeddTrainersWait")  # a loop that does nothing with its batches waits for each
    assert fired == scene.wanted


def _healthy(scene: Scene, warm: FeedDataset) -> None:
    """Read slowly out of the cache. A machine that is busy with other work may need another try."""
    for _ in range(5):
        waited_s, all_s = scene.total("feedd_trainer_wait_seconds_total"), scene.total("feedd_trainer_seconds_total")
        with scene.fault("healthy"):
            for _ in warm:
                time.sleep(0.5)
        waited_s = scene.total("feedd_trainer_wait_seconds_total") - waited_s
        if waited_s < 0.08 * (scene.total("feedd_trainer_seconds_total") - all_s):
            return


def _store_faults(scene: Scene) -> None:
    s3 = scene.s3
    for name, fault, alert in (
        ("the store asks to slow down", slow_down(0.1), "FeeddStoreThrottles"),
        ("the store fails", internal_error(), "FeeddStoreFails"),
    ):
        scene.put(alert)
        s3.script("data", f"{alert}/0.tar", fault)
        with scene.fault(name, alert):
            assert scene.read(alert) == SAMPLES
    scene.put("slow", 3)
    for shard in range(3):
        s3.script("data", f"slow/{shard}.tar", always=late(1.1))
    with scene.fault("the store is slow", "FeeddStoreSlow", "FeeddTrainersWait"):
        assert scene.read("slow", step_s=0.1) == 3 * SAMPLES
    scene.put("hung", 3)
    s3.script("data", "hung/2.tar", always=hang())
    reading = threading.Thread(target=scene.read, args=("hung",), kwargs={"stall_timeout_s": 2.0})
    reading.start()
    scene.until(lambda: scene.total("feedd_fetch_parts") > 0)
    _wait_longer(scene)
    with scene.fault("the store hangs", "FeeddNoBatches"):
        _wait_longer(scene)
    s3.calm()
    s3.hang_up()
    reading.join(LIMIT_S)
    assert not reading.is_alive()
    scene.put("damaged", kept=Kept("crc32c"))
    s3.script("data", "damaged/0.tar", flipped_bit(5000))
    with scene.fault("bytes arrive damaged", "FeeddDamagedData", once=True):
        assert scene.read("damaged") == SAMPLES


def _wait_longer(scene: Scene) -> None:
    """Wait until a stream has waited longer than it has by now."""
    name = "feedd_serve_batch_wait_seconds_total"
    waited_s = scene.total(name)
    scene.until(lambda: scene.total(name) > waited_s)


def _data_faults(scene: Scene) -> None:
    good = {"jpg": jpeg(1), "cls": b"1"}
    scene.s3.put("data", "bad/0.tar", tar([("0", good), ("1", {"jpg": b"not a picture", "cls": b"2"})]))
    fields = {"jpg": "image:16x16", "cls": "int"}
    with scene.fault("a bad sample", "FeeddBadSamples", once=True):
        assert scene.read("bad", fields=fields, batch_size=2, bad_samples="skip", max_bad_samples=9) == 1
    scene.put("strange")
    scene.s3.put("data", "strange/.hidden/1.tar", numbered(1, SAMPLES))
    with scene.fault("a hidden shard", "FeeddDataLeftOut", once=True):
        assert scene.read("strange") == SAMPLES


def _damaged_cache(scene: Scene) -> None:
    """Change a byte of a cached shard while the daemon is stopped."""
    scene.put("cached")
    assert scene.read("cached") == SAMPLES
    assert scene.daemon.stop() == 0
    for path in (scene.daemon.home / "cache").rglob("*.shard"):
        with path.open("r+b") as file:
            file.seek(SAMPLES * PAD_BYTES // 2)
            file.write(b"damaged")
    scene.daemon.start()
    with scene.fault("a cached file is damaged", "FeeddCacheErrors", once=True):
        assert scene.read("cached") == SAMPLES


@pytest.mark.usefixtures("_promtool")
def test_faults_of_the_daemon_fire_their_alerts(
    s3: S3Server, daemons: Callable[..., Daemon], short_dir: Path, tmp_path: Path
) -> None:
    """Dead workers, a stopped process, an upgrade and a drain of a daemon whose cache cannot be written."""
    upgraded = tmp_path / "upgraded"
    (short_dir / "d" / "cache").mkdir(parents=True, mode=0o500)
    before = functools.partial(_prepare, str(upgraded))
    scene = Scene(daemons(workers=2, settings=("drain.grace=60s",), before=before), s3)
    disk = "FeeddCacheDisk"
    with scene.fault("the cache's folder is read-only", disk):
        pass
    process = psutil.Process(scene.daemon.process.pid)  # type: ignore[union-attr]  # it was started
    with scene.fault("the process stands still", disk, "FeeddLoopBlocked"):
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.8)
        process.send_signal(signal.SIGCONT)
        scene.until(lambda: scene.total("feedd_daemon_loop_lag_seconds") < 1)
    with scene.fault("a worker dies", disk, "FeeddWorkersDie", once=True):
        _kill_a_worker(scene, workers_after=2)
    _without_descriptors(scene, process, disk)
    upgraded.touch()
    with scene.fault("an upgrade below the daemon", disk, "FeeddOutdated", "FeeddWorkersDie"):
        _kill_a_worker(scene, workers_after=1)
        scene.until(lambda: scene.total("feedd_decode_outdated") == 1)
    with scene.fault("the daemon drains", disk, "FeeddOutdated", "FeeddNotReady"):
        scene.put("held", 4)
        batches = iter(scene.dataset("held"))
        next(batches)
        scene.daemon.process.terminate()  # type: ignore[union-attr]  # it was started
        scene.until(lambda: not scene.daemon.healthy())
    with scene.fault("the daemon is gone", "FeeddDown"):
        scene.daemon.kill()
    del batches
    assert firing(scene.windows, tmp_path) == scene.wanted


def _prepare(upgraded: str) -> None:
    """Prepare the daemon's process: its cache cannot be written, and a file stands for an upgrade of feedd."""
    from feedd.workers import supervisor  # noqa: PLC0415 - in the daemon's process only

    let_permissions_bind()
    real = vars(supervisor)["build_digest"]
    vars(supervisor)["build_digest"] = lambda: "another" if Path(upgraded).exists() else real()


def _kill_a_worker(scene: Scene, workers_after: int) -> None:
    died = scene.total("feedd_decode_worker_restarts_total")
    scene.daemon.decode_workers()[0].kill()
    scene.until(lambda: scene.total("feedd_decode_worker_restarts_total") > died)
    scene.until(lambda: scene.total("feedd_decode_workers") == workers_after)


def _without_descriptors(scene: Scene, process: psutil.Process, *others: str) -> None:
    """Kill the workers while the daemon may open no file; it answers on a connection that is already open."""
    connection = http.client.HTTPConnection("127.0.0.1", scene.daemon.status_port, timeout=PATIENT_S)
    before, limits = _ask(connection), process.rlimit(psutil.RLIMIT_NOFILE)
    process.rlimit(psutil.RLIMIT_NOFILE, (3, limits[1]))
    try:
        for worker in scene.daemon.decode_workers():
            worker.kill()
        scene.until(lambda: "\nfeedd_decode_workers 0.0\n" in _ask(connection))
        window = Window(before, _ask(connection))
    finally:
        process.rlimit(psutil.RLIMIT_NOFILE, limits)
        connection.close()
    scene.add("no worker can be started", window, "FeeddNoWorkers", "FeeddWorkersDie", *others)
    scene.until(lambda: scene.total("feedd_decode_workers") == 2)


@pytest.mark.nightly
@pytest.mark.usefixtures("_promtool")
def test_a_lane_that_is_down_fires_its_alert(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """A killed lane is down until its supervisor has started it again."""
    scene = Scene(daemons(settings=("lanes=2",)), s3)
    lanes = psutil.Process(scene.daemon.process.pid).children()  # type: ignore[union-attr]  # it was started
    with scene.fault("a lane is killed", "FeeddLaneDown"):
        lanes[0].kill()
        scene.until(lambda: scene.total("feedd_lane_up") == 1)
    assert firing(scene.windows, tmp_path) == scene.wanted
    scene.until(lambda: scene.total("feedd_lane_up") == 2)
