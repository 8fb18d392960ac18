"""The causes that ``feedd doctor`` has to name: what the store, the daemon, the trainer and the machine do.

Each cause draws its figures. The fixed set draws them with the cause's own name as the seed, and differs from run to
run in the noise only. The drawn set draws causes, figures and noise.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLAIN_FIELDS: Final = {"cls": "int"}
PICTURE_FIELDS: Final = {"jpg": "image:224x224", "cls": "int"}
DRAWN_SEED: Final = 20261127
"""The set drawn with the seed 20261126 found defects of two rules, which were mended. So another set counts."""
DRAWN_COUNT: Final = 24


@dataclass(frozen=True, slots=True)
class Scenario:
    """One job with one cause.

    Attributes:
        name: of the cause.
        verdict: what doctor has to say.
        data: name of the data set.
        store: settings of ``arms.doctor_store``.
        trainer: settings of ``arms.doctor_trainer``.
        workers: decode workers.
        cache_size: size of the cache.
        parts: ``fetch.parts_in_flight``; 0: the default.
        far_s: the round trip that connections tell; 0: the real one.
        bound: workers may use one core only.
        gpu: utilisation that the simulated GPU tells.
        disk: kind and utilisation that the simulated disk tells.
        link: share of its rate at which the simulated network link sends.
        opening: the job is measured while it opens.
        turn: what is changed to measure the gain, if doctor names no option.
        turned_warm_s: how long a job with the changed option runs before it is measured.
        alone: the cause lies in the cores, so a run counts only if no other work of the machine takes them.
    """

    name: str
    verdict: str
    data: str
    store: Mapping[str, float] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 2
    cache_size: str = "4GiB"
    parts: int = 0
    far_s: float = 0.0
    bound: bool = False
    gpu: float | None = None
    disk: tuple[str, float] | None = None
    link: float | None = None
    opening: bool = False
    turn: Mapping[str, Any] = field(default_factory=dict)
    turned_warm_s: float = 1.5
    alone: bool = False

    @property
    def is_simulated(self) -> bool:
        """Whether some of its figures come from no real device."""
        device = "copy_bytes_s" in self.trainer
        return bool(device or self.far_s) or any(one is not None for one in (self.gpu, self.disk, self.link))


def _plain(step_s: float, batch_size: int = 4, **more: Any) -> dict[str, Any]:
    return {"fields": PLAIN_FIELDS, "batch_size": batch_size, "step_s": step_s, **more}


def _pictures(step_s: float, batch_size: int = 32, **more: Any) -> dict[str, Any]:
    return {"fields": PICTURE_FIELDS, "batch_size": batch_size, "step_s": step_s, **more}


def _healthy(draws: random.Random) -> Scenario:
    return Scenario("healthy", "healthy", "pictures", trainer=_pictures(draws.uniform(0.06, 0.15)), alone=True)


def _listing(draws: random.Random) -> Scenario:
    store = {"list_s": draws.uniform(0.7, 1.5)}
    return Scenario("listing", "listing", "many", store, _plain(0.01), opening=True)


def _latency(draws: random.Random) -> Scenario:
    store = {"latency_s": draws.uniform(0.2, 0.6)}
    return Scenario("s3_latency", "s3_latency", "plain", store, _plain(0.001), parts=draws.choice((1, 2)))


def _far(draws: random.Random) -> Scenario:
    far_s = draws.uniform(0.12, 0.3)
    store = {"latency_s": far_s + draws.uniform(0.01, 0.05)}
    return Scenario("s3_far", "s3_far", "plain", store, _plain(0.001), parts=draws.choice((1, 2)), far_s=far_s)


def _bandwidth(draws: random.Random) -> Scenario:
    store = {"bytes_s": draws.uniform(8e6, 25e6), "latency_s": draws.uniform(0.0, 0.01)}
    return Scenario("s3_bandwidth", "s3_bandwidth", "plain", store, _plain(draws.uniform(0.001, 0.008)))


def _throttling(draws: random.Random) -> Scenario:
    store = {"refused_share": draws.uniform(0.25, 0.5), "latency_s": draws.uniform(0.01, 0.03), "bytes_s": 40e6}
    return Scenario("s3_throttling", "s3_throttling", "plain", store, _plain(0.001))


def _small_objects(draws: random.Random) -> Scenario:
    store = {"latency_s": draws.uniform(0.05, 0.15)}
    trainer = {"fields": {"jpg": "image:32x32"}, "batch_size": draws.choice((16, 32)), "step_s": 0.001}
    return Scenario("small_objects", "small_objects", "small", store, trainer, alone=True)


def _shard_sizes(draws: random.Random) -> Scenario:
    store = {"bytes_s": draws.uniform(40e6, 80e6)}
    return Scenario("shard_sizes", "shard_sizes", "large", store, _plain(0.01))


def _skewed(draws: random.Random) -> Scenario:
    store = {"bytes_s": draws.uniform(15e6, 30e6)}
    return Scenario("skewed_shards", "skewed_shards", "skewed", store, _plain(0.001))


def _cache(draws: random.Random) -> Scenario:
    store = {"bytes_s": draws.uniform(12e6, 20e6)}
    size = f"{draws.randrange(16, 32)}MiB"
    trainer = _plain(draws.uniform(0.006, 0.012))
    return Scenario("cache_too_small", "cache_too_small", "some", store, trainer, cache_size=size, turned_warm_s=10.0)


def _disk(kind: str) -> Callable[[random.Random], Scenario]:
    def draw(draws: random.Random) -> Scenario:
        store = {"bytes_s": draws.uniform(8e6, 25e6)}
        disk = (kind, draws.uniform(0.93, 1.0))
        return Scenario(f"disk, {kind}", "disk", "plain", store, _plain(0.001), disk=disk)

    return draw


def _decode(draws: random.Random) -> Scenario:
    trainer = _pictures(draws.uniform(0.001, 0.005), draws.choice((32, 64)))
    return Scenario("decode_cpu", "decode_cpu", "pictures", trainer=trainer, turned_warm_s=6.0, alone=True)


def _few(draws: random.Random) -> Scenario:
    trainer = _pictures(draws.uniform(0.001, 0.003), draws.choice((32, 64)))
    return Scenario("too_few_workers", "too_few_workers", "pictures", trainer=trainer, workers=1, alone=True)


def _many(draws: random.Random) -> Scenario:
    trainer = _pictures(draws.uniform(0.001, 0.003), draws.choice((32, 64)))
    workers = draws.randrange(8, 13)
    return Scenario("too_many_workers", "too_many_workers", "pictures", trainer=trainer, workers=workers, alone=True)


def _uneven(draws: random.Random) -> Scenario:
    trainer = _pictures(draws.uniform(0.001, 0.003), draws.choice((32, 64)))
    return Scenario("uneven_cores", "uneven_cores", "pictures", trainer=trainer, bound=True, alone=True)


def _transport(draws: random.Random) -> Scenario:
    trainer = {"fields": {"bin": "bytes"}, "batch_size": draws.choice((32, 48)), "step_s": 0.0005, "apart": True}
    return Scenario("transport", "transport", "some", trainer=trainer, alone=True)


def _device(*, unpinned: bool) -> Callable[[random.Random], Scenario]:
    def draw(draws: random.Random) -> Scenario:
        trainer = _pictures(0.002, 32, copy_bytes_s=draws.uniform(2e7, 6e7), unpinned=unpinned)
        name = "unpinned_memory" if unpinned else "h2d"
        return Scenario(name, name, "pictures", trainer=trainer, gpu=draws.uniform(0.2, 0.6))

    return draw


def _gpu(verdict: str, low: float, high: float, **more: Any) -> Callable[[random.Random], Scenario]:
    def draw(draws: random.Random) -> Scenario:
        trainer = _pictures(draws.uniform(0.07, 0.15), 16, **more)
        return Scenario(verdict, verdict, "pictures", trainer=trainer, gpu=draws.uniform(low, high), alone=bool(more))

    return draw


def _communication(draws: random.Random) -> Scenario:
    trainer = _pictures(draws.uniform(0.06, 0.15))
    gpu, link = draws.uniform(0.9, 1.0), draws.uniform(0.85, 0.98)
    return Scenario("communication", "communication", "pictures", trainer=trainer, gpu=gpu, link=link)


def _straggler(draws: random.Random) -> Scenario:
    trainer = _pictures(
        draws.uniform(0.08, 0.12), 8, ranks=3, slow_rank=draws.uniform(1.8, 3.0), options={"uneven": "allow"}
    )
    return Scenario("straggler", "straggler", "pictures", trainer=trainer)


def _pauses(verdict: str, checkpoint_bytes: int) -> Callable[[random.Random], Scenario]:
    def draw(draws: random.Random) -> Scenario:
        pause_s, step_s = draws.uniform(0.5, 0.9), draws.uniform(0.04, 0.06)
        habits = {"pause_every": draws.randrange(10, 16), "pause_s": pause_s, "checkpoint_bytes": checkpoint_bytes}
        trainer = _pictures(step_s, 16, **habits)
        return Scenario(verdict, verdict, "pictures", trainer=trainer, turn={"pause_every": 0})

    return draw


def _logging(draws: random.Random) -> Scenario:
    trainer = _pictures(draws.uniform(0.05, 0.1), 16, log_calls=draws.randrange(8, 30))
    return Scenario("logging", "logging", "pictures", trainer=trainer)


CAUSES: Final[Mapping[str, Callable[[random.Random], Scenario]]] = {
    "healthy": _healthy,
    "listing": _listing,
    "s3_latency": _latency,
    "s3_far": _far,
    "s3_bandwidth": _bandwidth,
    "s3_throttling": _throttling,
    "small_objects": _small_objects,
    "shard_sizes": _shard_sizes,
    "skewed_shards": _skewed,
    "cache_too_small": _cache,
    "disk, EBS": _disk("EBS"),
    "disk, NVMe": _disk("NVMe"),
    "decode_cpu": _decode,
    "too_few_workers": _few,
    "too_many_workers": _many,
    "uneven_cores": _uneven,
    "transport": _transport,
    "h2d": _device(unpinned=False),
    "unpinned_memory": _device(unpinned=True),
    "compute_bound": _gpu("compute_bound", 0.93, 1.0),
    "small_batch": _gpu("small_batch", 0.15, 0.6),
    "host_compute": _gpu("host_compute", 0.15, 0.6, spins=True),
    "communication": _communication,
    "straggler": _straggler,
    "checkpointing": _pauses("checkpointing", 20_000_000),
    "evaluation": _pauses("evaluation", 0),
    "logging": _logging,
}


def fixed(name: str) -> Scenario:
    """Return the scenario of a cause in the fixed set."""
    return CAUSES[name](random.Random(name))


def drawn(seed: int = DRAWN_SEED) -> list[Scenario]:
    """Return the scenarios of a drawn set."""
    draws = random.Random(seed)
    return [CAUSES[draws.choice(list(CAUSES))](draws) for _ in range(DRAWN_COUNT)]
