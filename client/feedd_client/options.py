"""The arguments of a FeedDataset: checked once, frozen, picklable."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec

from feedd_client.errors import BadOptionError
from feedd_client.recipe import encode_fields
from feedd_client.values import Shuffle, Source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd_client.policy import SamplePolicy

P = ParamSpec("P")
Mix = Literal["stratified", "sample", "batch", "batch-sample"]
Sharding = Literal["key", "size", "replicated", "sample"]
Uneven = Literal["drop", "pad", "repeat", "join", "allow"]

MIXES: Final = ("stratified", "sample", "batch", "batch-sample")
SHARDINGS: Final = ("key", "size", "replicated", "sample")
UNEVENS: Final = ("drop", "pad", "repeat", "join", "allow")
_NAME_MAX: Final = 256
_URL_SHOWN: Final = 120
# A secret key may have slashes: if there is a colon, all up to the last @ may be one.
_CREDENTIALS: Final = re.compile(r"(?<=://)(?:[^/\s]*|[^\s]*:[^\s]*)@")
_log: Final = logging.getLogger("feedd_client")
SINGLES_BATCH: Final = 64  # batch_size=None: samples travel in batches of 64, to spread the cost of a lease


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The frozen form of a ``Source``; weights as (first epoch, weight), ascending from epoch 0."""

    urls: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    weights: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """The frozen form of FeedDataset's arguments, with the same units and meaning.

    Attributes:
        samples: rules for bad samples, and filters.
        decoded_cache: as in FeedDataset.
        sources: datasets to mix, used instead of ``urls``.
        left_to_channel: arguments that the user left out, which a channel then decides.
    """

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
    copy_bytes: int
    prefetch: int | None
    samples: SamplePolicy
    open_timeout_s: float
    reconnect_timeout_s: float
    stall_timeout_s: float = 120.0
    sources: tuple[SourceOptions, ...] = ()
    mix: str = "stratified"
    samples_per_epoch: int | None = None
    decoded_cache: bool = False
    left_to_channel: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_mix()
        _expect(self.batch_size is None or _count(self.batch_size, 1), "batch_size", "None or >= 1", self.batch_size)
        _expect(_count(self.seed, 0) and self.seed < 2**64, "seed", "an int in [0, 2**64)", self.seed)
        _expect(self.sharding in SHARDINGS, "sharding", f"one of {', '.join(SHARDINGS)}", self.sharding)
        known = self.uneven is None or self.uneven in UNEVENS
        _expect(known, "uneven", f"None or one of {', '.join(UNEVENS)}", self.uneven)
        _expect(self.partitions is None or _count(self.partitions, 1), "partitions", "None or >= 1", self.partitions)
        _expect(self.share is None or 0 < len(self.share) <= _NAME_MAX, "share", "None or a name", self.share)
        _expect(_count(self.replicas, 1), "replicas", "an int >= 1", self.replicas)
        if self.replicas > 1 and self.share is None:
            _log.warning(
                'replicas=%d: each rank of a group decodes the same batches; share="NAME" decodes them once per node',
                self.replicas,
            )
        _expect(self.steps is None or _count(self.steps, 1), "steps", "None or >= 1", self.steps)
        alone = self.steps is None or self.uneven not in {"join", "allow"}
        _expect(alone, "uneven", "None, drop, pad or repeat together with steps=", self.uneven)
        _expect(
            self.prefetch is None or _count(self.prefetch, 1), "prefetch", "a number of batches >= 1", self.prefetch
        )
        _expect(_count(self.copy_bytes, 0), "copy_bytes", "a number of bytes >= 0", self.copy_bytes)
        _expect(isinstance(self.decoded_cache, bool), "decoded_cache", "True or False", self.decoded_cache)
        _expect(self.open_timeout_s > 0, "open_timeout_s", "seconds > 0", self.open_timeout_s)
        _expect(self.reconnect_timeout_s >= 0, "reconnect_timeout_s", "seconds >= 0", self.reconnect_timeout_s)
        _expect(self.stall_timeout_s > 0, "stall_timeout_s", "seconds > 0", self.stall_timeout_s)
        if self.shuffle is not None and self.shuffle.window_shards is not None:
            window = self.shuffle.window_shards
            _expect(_count(window, 1), "shuffle", "window_shards None or >= 1", window)
        if self.shuffle is not None and self.shuffle.window_bytes is not None:
            size, alone = self.shuffle.window_bytes, self.shuffle.window_shards is None
            _expect(_count(size, 1) and alone, "shuffle", "window_bytes >= 1 without window_shards", self.shuffle)
        if self.shuffle is not None and self.shuffle.bucket_by is not None:
            name = self.shuffle.bucket_by
            _expect(isinstance(name, str) and name != "", "shuffle", "bucket_by None or a field", name)

    def _check_mix(self) -> None:
        _expect(self.mix in MIXES, "mix", f"one of {', '.join(MIXES)}", self.mix)
        mixed = bool(self.sources)
        _expect(mixed or self.mix == "stratified", "mix", "a list of Source(...) in url=", self.urls)
        samples = self.samples_per_epoch
        _expect(samples is None or _count(samples, 1), "samples_per_epoch", "None or >= 1", samples)
        alone = samples is None or (mixed and self.steps is None)
        _expect(alone, "samples_per_epoch", "a list of Source(...) in url=, and no steps=", samples)
        for epoch in sorted({epoch for source in self.sources for epoch, _ in source.weights}):
            weights = self.weights(epoch)
            _expect(any(weights), "weight", f"a positive weight in epoch {epoch}", weights)

    def weights(self, epoch: int) -> tuple[float, ...]:
        """Return the weight of each source in an epoch."""
        return tuple([weight for since, weight in source.weights if since <= epoch][-1] for source in self.sources)

    @property
    def all_urls(self) -> tuple[str, ...]:
        """URLs of the dataset, or of all its sources."""
        return self.urls or tuple(url for source in self.sources for url in source.urls)

    @property
    def summary(self) -> str:
        """URL, batch size and number of fields in one line. Credentials inside a URL are left out."""
        urls = self.all_urls
        more = f" and {len(urls) - 1} more" if len(urls) > 1 else ""
        fields = len(self.fields) if self.fields else "by default"
        return f"{_shown(urls[0])!r}{more}, batch_size={self.batch_size}, fields={fields}"

    @property
    def by_batches(self) -> bool:
        """Whether each batch comes from a single source."""
        return bool(self.sources) and self.mix in {"batch", "batch-sample"}

    @property
    def lengths_vary(self) -> bool:
        """Whether one epoch may have more steps than another."""
        fixed = self.steps is not None or self.samples_per_epoch is not None
        return not fixed and any(len(source.weights) > 1 for source in self.sources)

    @property
    def wire_batch_size(self) -> int:
        """Samples per batch on the wire."""
        return SINGLES_BATCH if self.batch_size is None else self.batch_size

    @property
    def bucket_by(self) -> str:
        """Field that groups samples of similar size, in wire form; empty: no grouping."""
        return "" if self.shuffle is None or self.shuffle.bucket_by is None else self.shuffle.bucket_by

    @property
    def window_shards(self) -> int:
        """Shards per shuffle window, in wire form; 0 selects the daemon's default."""
        return 0 if self.shuffle is None or self.shuffle.window_shards is None else self.shuffle.window_shards

    @property
    def window_bytes(self) -> int:
        """Bytes per shuffle window, in wire form; 0: the window is counted in shards."""
        return 0 if self.shuffle is None or self.shuffle.window_bytes is None else self.shuffle.window_bytes


def _shown(url: str) -> str:
    """Return a URL for people: without user name, password and signed query, and not longer than a line takes."""
    url = _CREDENTIALS.sub("…@", url.partition("?")[0])
    return url if len(url) <= _URL_SHOWN else f"{url[: _URL_SHOWN - 20]}…{url[-19:]}"


def parse_urls(url: str | Source | Sequence[str] | Sequence[Source]) -> tuple[str, ...]:
    """Return the URLs as a tuple.

    Raises:
        BadOptionError: no URL was given, or an entry is not text.
    """
    urls = [url] if isinstance(url, (str, Source)) else list(url)
    found = tuple(one for one in urls if isinstance(one, str) and one)
    if not found or len(found) != len(urls):
        raise BadOptionError(f"expected one URL or a list of URLs, got {url!r}", object="url")
    return tuple(map(_absolute, found))


def _absolute(url: str) -> str:
    """Make an existing relative path absolute, because the daemon has another working directory."""
    path = Path(url)
    if "://" in url or path.is_absolute() or not path.exists():
        return url
    return f"{path.absolute()}{'/' if url.endswith('/') else ''}"


def parse_sources(url: str | Source | Sequence[str] | Sequence[Source]) -> tuple[SourceOptions, ...]:
    """Return the sources to mix; empty if ``url`` names a single dataset.

    Raises:
        BadOptionError: the list holds both URLs and sources, or a weight is invalid.
        BadRecipeError: a source's fields are invalid.
    """
    if isinstance(url, str):
        return ()
    given = (url,) if isinstance(url, Source) else tuple(url)
    if not any(isinstance(one, Source) for one in given):
        return ()
    sources = []
    for one in given:
        if not isinstance(one, Source):
            raise BadOptionError(f"expected Source(...) for each of the datasets to mix, got {one!r}", object="url")
        weights = dict(one.weight) if isinstance(one.weight, Mapping) else {0: one.weight}
        _expect(0 in weights and all(_count(epoch, 0) for epoch in weights), "weight", "epochs from 0 on", weights)
        for weight in weights.values():
            known = isinstance(weight, (int, float)) and not isinstance(weight, bool)
            _expect(known and math.isfinite(weight) and weight >= 0, "weight", "a number >= 0", weight)
        by_epoch = tuple((epoch, float(weight)) for epoch, weight in sorted(weights.items()))
        sources.append(SourceOptions(parse_urls(one.url), encode_fields(one.fields), by_epoch))
    return tuple(sources)


def parse_order(
    url: object,
    shuffle: bool | Shuffle | None,  # noqa: FBT001 - the public argument is a bool or more
    seed: int | None,
    sharding: str | None,
) -> dict[str, Any]:
    """Return the arguments that say the order, with defaults, and the names of those that are left to a channel.

    Raises:
        BadOptionError: shuffle is neither a bool nor a Shuffle.
    """
    is_channel = isinstance(url, str) and url.startswith("channel://")
    given = {"shuffle": shuffle, "seed": seed, "sharding": sharding}
    return {
        "shuffle": parse_shuffle(shuffle),
        "seed": 0 if seed is None else seed,
        "sharding": "key" if sharding is None else sharding,
        "left_to_channel": tuple(name for name, value in given.items() if is_channel and value is None),
    }


def parse_shuffle(shuffle: bool | Shuffle | None) -> Shuffle | None:  # noqa: FBT001 - the public argument is a bool or more
    """Return None for no shuffle, else the shuffle options.

    Raises:
        BadOptionError: the argument is neither a bool nor a Shuffle.
    """
    if isinstance(shuffle, Shuffle):
        return shuffle
    if not isinstance(shuffle, bool | None):
        raise BadOptionError(f"expected True, False or Shuffle(...), got {shuffle!r}", object="shuffle")
    return Shuffle() if shuffle else None


_ELSEWHERE: Final = (
    "pass a callable to DeviceLoader(dataset, transforms=[...]), which calls it with each batch; decoding of single"
    " samples is configured in fields="
)
_OF_OTHERS: Final = {
    **dict.fromkeys(("transform", "transforms", "target_transform", "preprocess", "map_fn", "collate_fn"), _ELSEWHERE),
    "num_workers": "the daemon decodes, so no workers are needed; DataLoader(dataset, batch_size=None) accepts it",
    "pin_memory": "DeviceLoader(dataset) copies to the device without it",
    "drop_last": 'uneven="drop" leaves out samples that do not fill a step of all ranks',
}


def explain_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """Make FeedDataset's constructor suggest an alternative for each unknown keyword."""
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        for name in kwargs:
            if name not in known:
                near = difflib.get_close_matches(name.replace("_", ""), [one.replace("_", "") for one in known], 1)
                meant = [one for one in known if one.replace("_", "") in near]
                hint = _OF_OTHERS.get(name) or (
                    f"did you mean {meant[0]}?" if meant else f"there are {', '.join(known)}"
                )
                raise TypeError(f"FeedDataset has no argument {name!r}: {hint}")
        init(*args, **kwargs)

    return checked


def _count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _expect(ok: bool, name: str, expected: str, got: object) -> None:  # noqa: FBT001 - an assertion's condition
    if not ok:
        raise BadOptionError(f"expected {expected}, got {got!r}", object=name)
