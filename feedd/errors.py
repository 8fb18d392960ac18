"""The error tree: each class is a decision its caller can take.

``FeeddError``
    ├── ``BadRequest``          the request is impossible; a retry cannot help
    │   ├── ``BadRecipe``           a field or codec that does not exist, a malformed recipe
    │   ├── ``BadConfig``           configuration that cannot be served
    │   ├── ``VersionMismatch``     client and daemon do not speak the same protocol
    │   └── ``Unsupported``         valid, but not supported by this version
    ├── ``NotFound``            bucket, key or prefix does not exist
    ├── ``PermissionDenied``    credentials are missing, wrong or not enough
    ├── ``StoreUnavailable``    transport failed or the server had an error   (retryable)
    │   ├── ``Throttled``           the server asks to slow down, maybe with ``retry_after_s``   (retryable)
    │   └── ``BadResponse``         length, range or checksum does not match the request   (retryable)
    ├── ``ObjectChanged``       the object is no longer the version that was planned
    ├── ``CacheError``
    │   ├── ``CacheTooSmall``       the minimal unit does not fit, now or ever
    │   └── ``CacheUnavailable``    the cache directory cannot be written or read
    ├── ``DataError``           bytes arrived but do not match the recipe
    │   ├── ``BadShard``            framing is broken: the rest cannot be read
    │   └── ``BadSample``           one sample cannot be decoded; the failure budget decides
    ├── ``WorkerLost``          a decode worker died; the span is replayed once
    ├── ``ResourceExhausted``   no slots, no memory, no file descriptors for this now   (retryable)
    ├── ``Draining``            the daemon is stopping; connect to its successor   (retryable)
    └── ``Internal``            a defect of feedd itself

Foreign exceptions are translated once, at the border module, with ``raise … from``.
Messages are one lowercase line: what failed, or for values what was expected and what was got.
"""

from __future__ import annotations

from typing import ClassVar


class FeeddError(Exception):
    """Root of all errors that feedd raises on purpose.

    Attributes:
        message: one line, lowercase: what failed, or for values what was expected and what was got.
        object: URL, key, path or option at fault; empty: none.
        hint: what the user can do about it; empty: unknown.
        stage: the stage that noticed ("source", "cache", "decode", "serve", ...).
    """

    kind: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, object: str = "", hint: str = "", stage: str = "") -> None:
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


class BadRequest(FeeddError):
    """The request is impossible."""

    kind = "bad-request"


class BadRecipe(BadRequest):
    """A field, codec or recipe text that cannot be served."""

    kind = "bad-recipe"


class BadConfig(BadRequest):
    """Configuration that cannot be served."""

    kind = "bad-config"


class VersionMismatch(BadRequest):
    """Client and daemon do not speak the same protocol version."""

    kind = "version-mismatch"


class Unsupported(BadRequest):
    """The request is valid, but this version does not support it."""

    kind = "unsupported"


class NotFound(FeeddError):
    """The bucket, key or prefix does not exist."""

    kind = "not-found"


class PermissionDenied(FeeddError):
    """Credentials are missing, wrong, expired or not enough."""

    kind = "permission-denied"


class StoreUnavailable(FeeddError):
    """The transport failed, or the server had an error."""

    kind = "store-unavailable"
    retryable = True


class Throttled(StoreUnavailable):
    """The server asked to slow down."""

    kind = "throttled"

    def __init__(
        self,
        message: str,
        *,
        object: str = "",
        hint: str = "",
        stage: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, object=object, hint=hint, stage=stage)
        self.retry_after_s = retry_after_s


class BadResponse(StoreUnavailable):
    """Length, range, ETag header or checksum does not match the request."""

    kind = "bad-response"


class ObjectChanged(FeeddError):
    """The object is no longer the version that was planned."""

    kind = "object-changed"


class CacheError(FeeddError):
    """The local cache cannot do the operation."""

    kind = "cache"


class CacheTooSmall(CacheError):
    """The minimal unit does not fit into this cache, now or ever."""

    kind = "cache-too-small"


class CacheUnavailable(CacheError):
    """The cache directory cannot be written or read."""

    kind = "cache-unavailable"


class DataError(FeeddError):
    """The bytes arrived but do not match the recipe."""

    kind = "data"


class BadShard(DataError):
    """Framing is broken: the rest of the shard cannot be read."""

    kind = "bad-shard"


class BadSample(DataError):
    """One sample cannot be decoded, or a requested field is missing."""

    kind = "bad-sample"


class WorkerLost(FeeddError):
    """A decode worker died while it held a span."""

    kind = "worker-lost"
    retryable = True


class ResourceExhausted(FeeddError):
    """No slots, memory or file descriptors are free now."""

    kind = "resource-exhausted"
    retryable = True


class Draining(FeeddError):
    """The daemon is stopping."""

    kind = "draining"
    retryable = True


class Internal(FeeddError):
    """A defect of feedd itself."""

    kind = "internal"
