"""What a FeedDataset was asked for: validated once, frozen, picklable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from feedd_client.errors import BadOptionError
from feedd_client.values import Shuffle

if TYPE_CHECKING:
    from collections.abc import Sequence

Sharding = Literal["key", "size", "replicated", "sample"]
Uneven = Literal["drop", "pad", "repeat", "join", "allow"]

SHARDINGS: Final = ("key", "size", "replicated", "sample")
UNEVENS: Final = ("drop", "pad", "repeat", "join", "allow")
_NAME_MAX: Final = 256
SINGLES_BATCH: Final = 64  # batch_size=None: samples travel in batches of this many, amortising the lease


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """The frozen form of FeedDataset's arguments; units and meaning as there."""

    urls: tuple[str, ...]
    batch_size: int | None
    fields: tuple[tuple[str, str], ...]
    shuffle: Shuffle | None
    seed: int
    sharding: str
    uneven: str | None
    partitions: int | None
    steps: int | None
    replicas: int
    share: str | None
    keys: bool
    copy: bool
    prefetch: int | None
    max_bad_samples: int
    open_timeout_s: float
    reconnect_timeout_s: float

    def __post_init__(self) -> None:
        _expect(self.batch_size is None or _count(self.batch_size, 1), "batch_size", "None or >= 1", self.batch_size)
        _expect(_count(self.seed, 0) and self.seed < 2**64, "seed", "an int in [0, 2**64)", self.seed)
        _expect(self.sharding in SHARDINGS, "sharding", f"one of {', '.join(SHARDINGS)}", self.sharding)
        known = self.uneven is None or self.uneven in UNEVENS
        _expect(known, "uneven", f"None or one of {', '.join(UNEVENS)}", self.uneven)
        _expect(self.partitions is None or _count(self.partitions, 1), "partitions", "None or >= 1", self.partitions)
        _expect(self.share is None or 0 < len(self.share) <= _NAME_MAX, "share", "None or a name", self.share)
        _expect(_count(self.replicas, 1), "replicas", "an int >= 1", self.replicas)
        _expect(self.steps is None or _count(self.steps, 1), "steps", "None or >= 1", self.steps)
        alone = self.steps is None or self.uneven not in {"join", "allow"}
        _expect(alone, "uneven", "None, drop, pad or repeat beside steps=", self.uneven)
        _expect(
            self.prefetch is None or _count(self.prefetch, 1), "prefetch", "a number of batches >= 1", self.prefetch
        )
        _expect(_count(self.max_bad_samples, 0), "max_bad_samples", "an int >= 0", self.max_bad_samples)
        _expect(self.open_timeout_s > 0, "open_timeout_s", "seconds > 0", self.open_timeout_s)
        _expect(self.reconnect_timeout_s >= 0, "reconnect_timeout_s", "seconds >= 0", self.reconnect_timeout_s)
        if self.shuffle is not None and self.shuffle.window_shards is not None:
            window = self.shuffle.window_shards
            _expect(_count(window, 1), "shuffle", "window_shards None or >= 1", window)
        if self.shuffle is not None and self.shuffle.window_bytes is not None:
            size, alone = self.shuffle.window_bytes, self.shuffle.window_shards is None
            _expect(_count(size, 1) and alone, "shuffle", "window_bytes >= 1 without window_shards", self.shuffle)

    @property
    def wire_batch_size(self) -> int:
        """Samples per batch on the wire."""
        return SINGLES_BATCH if self.batch_size is None else self.batch_size

    @property
    def window_shards(self) -> int:
        """Shards per shuffle window as the wire says it: 0 is the daemon's default."""
        return 0 if self.shuffle is None or self.shuffle.window_shards is None else self.shuffle.window_shards

    @property
    def window_bytes(self) -> int:
        """Bytes per shuffle window as the wire says it: 0 where a window has so many shards."""
        return 0 if self.shuffle is None or self.shuffle.window_bytes is None else self.shuffle.window_bytes


def parse_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """Return the URLs as a tuple.

    Raises:
        BadOptionError: none, or something that is not text.
    """
    urls = (url,) if isinstance(url, str) else tuple(url)
    if not urls or not all(isinstance(one, str) and one for one in urls):
        raise BadOptionError(f"expected one URL or a list of URLs, got {url!r}", object="url")
    return urls


def parse_shuffle(shuffle: bool | Shuffle) -> Shuffle | None:  # noqa: FBT001 - the public argument is a bool or more
    """Return None for no shuffle, else how.

    Raises:
        BadOptionError: neither a bool nor a Shuffle.
    """
    if isinstance(shuffle, Shuffle):
        return shuffle
    if not isinstance(shuffle, bool):
        raise BadOptionError(f"expected True, False or Shuffle(...), got {shuffle!r}", object="shuffle")
    return Shuffle() if shuffle else None


def _count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _expect(ok: bool, name: str, expected: str, got: object) -> None:  # noqa: FBT001 - an assertion's condition
    if not ok:
        raise BadOptionError(f"expected {expected}, got {got!r}", object=name)
