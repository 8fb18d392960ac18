"""The client's error tree: each class is a decision the training script can take.

``FeedError``

    ├── ``BadOptionError``       an argument that cannot work (also a ``ValueError``)
    │   ├── ``TopologyError``        ranks, nodes and sizes that contradict each other
    │   └── ``StateError``           a ``state_dict`` that belongs to another run
    ├── ``DaemonUnreachable``    no feedd answers
    │   └── ``DaemonStartError``     it was to be started for this process tree and did not start
    ├── ``DaemonVersionError``   client and daemon do not speak the same protocol
    ├── ``ProtocolError``        the daemon broke the contract (lost, repeated or stale messages)
    ├── ``BadRequestError``      the daemon cannot do what was asked; asking again cannot help
    │   ├── ``BadRecipeError``       a field or codec that does not exist
    │   ├── ``BadConfigError``       the daemon's configuration cannot serve this
    │   └── ``UnsupportedError``     understood, and not served by this daemon version
    ├── ``DatasetNotFound``, ``AccessDenied``, ``StoreError``, ``DatasetChanged``
    ├── ``CacheError``
    ├── ``DataError`` ── ``BadShardError``, ``BadSampleError``
    ├── ``ResourceError``        no slots or memory for this now
    ├── ``BatchesHeldError``     the trainer holds more batches than memory was set aside for
    ├── ``Draining``             the daemon is going away
    ├── ``RanksDisagree``        ranks see different data, or stand at different steps
    └── ``DaemonError``          a defect of the daemon
"""

from __future__ import annotations

from typing import ClassVar


class FeedError(Exception):
    """Root of all errors of this package.

    Attributes:
        message: one line: what was expected, what was got.
        object: URL, key, path, address or option at fault; empty where there is none.
        hint: what to do about it; empty where nothing sensible is known.
        stage: the stage that noticed ("source", "cache", "decode", "client", ...).
    """

    reconnect: ClassVar[bool] = False

    def __init__(self, message: str, *, object: str = "", hint: str = "", stage: str = "client") -> None:
        super().__init__(message)
        self.message = message
        self.object = object
        self.hint = hint
        self.stage = stage

    def __str__(self) -> str:
        parts = [self.message]
        if self.object:
            parts.append(f"[{self.object}]")
        if self.hint:
            parts.append(f"- {self.hint}")
        return " ".join(parts)


class BadOptionError(FeedError, ValueError):
    """An argument that cannot work, found before anything was opened."""


class TopologyError(BadOptionError):
    """Ranks, nodes and sizes that contradict each other."""


class StateError(BadOptionError):
    """A ``state_dict`` that belongs to another run, or is damaged."""


class DaemonUnreachable(FeedError):
    """No feedd answers at the address."""

    reconnect = True


class DaemonStartError(DaemonUnreachable):
    """A daemon was to be started for this process tree and did not start."""

    reconnect = False


class DaemonVersionError(FeedError):
    """Client and daemon do not speak the same protocol."""


class ProtocolError(FeedError):
    """The daemon broke the contract."""


class BadRequestError(FeedError):
    """The daemon cannot do what was asked."""


class BadRecipeError(BadRequestError):
    """A field, codec or recipe text that cannot be served."""


class BadConfigError(BadRequestError):
    """The daemon's configuration cannot serve this."""


class UnsupportedError(BadRequestError):
    """Understood, and not served by this version."""


class DatasetNotFound(FeedError):
    """Bucket, key or prefix is not there."""


class AccessDenied(FeedError):
    """Credentials are missing, wrong, expired or not enough."""


class StoreError(FeedError):
    """The object store failed and went on failing while the daemon retried."""


class DatasetChanged(FeedError):
    """An object or the listing is no longer the version the epoch was planned with."""


class CacheError(FeedError):
    """The daemon's cache cannot do what was asked."""


class DataError(FeedError):
    """Bytes arrived and are not what the recipe expects."""


class BadShardError(DataError):
    """The framing of a shard is broken."""


class BadSampleError(DataError):
    """One sample cannot be decoded, and ``bad_samples`` and ``max_bad_samples`` do not let it pass."""


class ResourceError(FeedError):
    """The daemon has no slots, memory or file descriptors for this now."""

    reconnect = True


class BatchesHeldError(FeedError):
    """The trainer holds every slot of shared memory, and as many private copies as ``copy_bytes`` lets it."""


class Draining(FeedError):
    """The daemon is going away; its successor will answer."""

    reconnect = True


class RanksDisagree(FeedError):
    """Ranks see different data, or stand at different steps."""


class DaemonError(FeedError):
    """A defect of the daemon."""


_BY_KIND: dict[str, type[FeedError]] = {
    "bad-request": BadRequestError,
    "bad-recipe": BadRecipeError,
    "bad-config": BadConfigError,
    "version-mismatch": DaemonVersionError,
    "unsupported": UnsupportedError,
    "not-found": DatasetNotFound,
    "permission-denied": AccessDenied,
    "store-unavailable": StoreError,
    "throttled": StoreError,
    "bad-response": StoreError,
    "object-changed": DatasetChanged,
    "cache": CacheError,
    "cache-too-small": CacheError,
    "cache-unavailable": CacheError,
    "data": DataError,
    "bad-shard": BadShardError,
    "bad-sample": BadSampleError,
    "worker-lost": DaemonError,
    "resource-exhausted": ResourceError,
    "draining": Draining,
}


def from_wire(kind: str, message: str, *, object: str = "", hint: str = "", stage: str = "") -> FeedError:
    """Return the error for what the daemon said; kinds of newer daemons become ``DaemonError``."""
    return _BY_KIND.get(kind, DaemonError)(message, object=object, hint=hint, stage=stage)
