"""The client's errors: each class stands for one decision that a training script can take.

``FeedError``

    ├── ``BadOptionError``       an argument is invalid (also a ``ValueError``)
    │   ├── ``TopologyError``        ranks, nodes and sizes contradict each other
    │   └── ``StateError``           the ``state_dict`` belongs to another run
    ├── ``DaemonUnreachable``    no feedd answers
    │   └── ``DaemonStartError``     the client could not start a daemon for this job
    ├── ``DaemonVersionError``   client and daemon do not speak the same protocol
    ├── ``ProtocolError``        the daemon broke the contract (lost, repeated or stale messages)
    ├── ``BadRequestError``      the daemon cannot serve the request; a retry cannot help
    │   ├── ``BadRecipeError``       a field or codec that does not exist
    │   ├── ``BadConfigError``       the daemon's configuration cannot serve this
    │   └── ``UnsupportedError``     this version of the daemon does not serve it
    ├── ``DatasetNotFound``, ``AccessDenied``, ``StoreError``, ``DatasetChanged``
    ├── ``CacheError``
    ├── ``DataError`` ── ``BadShardError``, ``BadSampleError``
    ├── ``ResourceError``        the daemon has no free slots or memory now
    ├── ``BatchesHeldError``     the trainer holds more batches than ``copy_bytes`` allows
    ├── ``Draining``             the daemon is shutting down
    ├── ``RanksDisagree``        ranks see different data, or are at different steps
    └── ``DaemonError``          the daemon has a defect
"""

from __future__ import annotations

from typing import ClassVar


class FeedError(Exception):
    """Root of all errors of this package.

    Attributes:
        message: one line with the expected and the actual value.
        object: the URL, key, path, address or option that caused the error; may be empty.
        hint: what to do about the error; may be empty.
        stage: the stage that raised the error ("source", "cache", "decode", "client", ...).
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
    """An argument is invalid; raised before anything is opened."""


class TopologyError(BadOptionError):
    """Ranks, nodes and sizes contradict each other."""


class StateError(BadOptionError):
    """A ``state_dict`` belongs to another run, or is damaged."""


class DaemonUnreachable(FeedError):
    """No feedd daemon answers at the address."""

    reconnect = True


class DaemonStartError(DaemonUnreachable):
    """The client tried to start a daemon for this process tree, and the daemon did not start."""

    reconnect = False


class DaemonVersionError(FeedError):
    """Client and daemon speak different protocol versions."""


class ProtocolError(FeedError):
    """The daemon broke the protocol."""


class BadRequestError(FeedError):
    """The daemon cannot serve the request."""


class BadRecipeError(BadRequestError):
    """A field, codec or recipe cannot be served."""


class BadConfigError(BadRequestError):
    """The daemon's configuration does not allow the request."""


class UnsupportedError(BadRequestError):
    """This daemon version does not serve the request."""


class DatasetNotFound(FeedError):
    """The bucket, key or prefix does not exist."""


class AccessDenied(FeedError):
    """Credentials are missing, wrong, expired or not enough."""


class StoreError(FeedError):
    """The object store failed, and all of the daemon's retries failed too."""


class DatasetChanged(FeedError):
    """An object or the listing changed after the epoch was planned."""


class CacheError(FeedError):
    """The daemon's cache cannot serve the request."""


class DataError(FeedError):
    """The fetched bytes do not fit the recipe."""


class BadShardError(DataError):
    """The framing of a shard is broken."""


class BadSampleError(DataError):
    """One sample cannot be decoded, and ``bad_samples`` and ``max_bad_samples`` do not allow to skip it."""


class ResourceError(FeedError):
    """The daemon has no free slots, memory or file descriptors now."""

    reconnect = True


class BatchesHeldError(FeedError):
    """The trainer holds every slot of shared memory, and private copies up to the limit ``copy_bytes``."""


class Draining(FeedError):
    """The daemon is shutting down; its successor will answer."""

    reconnect = True


class RanksDisagree(FeedError):
    """Ranks see different data, or are at different steps."""


class DaemonError(FeedError):
    """The daemon has a defect."""


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
    """Return the error for a kind sent by the daemon; unknown kinds of newer daemons become ``DaemonError``."""
    return _BY_KIND.get(kind, DaemonError)(message, object=object, hint=hint, stage=stage)
