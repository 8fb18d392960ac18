"""Errors as gRPC statuses: one code per kind, and the whole error in the trailer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import grpc
import structlog

from feedd.errors import FeeddError, Internal
from feedd.wire.feed_messages import error_message

if TYPE_CHECKING:
    from typing import Any

TRAILER = "feedd-error-bin"

_C = grpc.StatusCode
CODES: dict[str, grpc.StatusCode] = {
    "error": _C.UNKNOWN,
    "bad-request": _C.INVALID_ARGUMENT,
    "bad-recipe": _C.INVALID_ARGUMENT,
    "bad-config": _C.INVALID_ARGUMENT,
    "version-mismatch": _C.FAILED_PRECONDITION,
    "unsupported": _C.UNIMPLEMENTED,
    "not-found": _C.NOT_FOUND,
    "permission-denied": _C.PERMISSION_DENIED,
    "store-unavailable": _C.UNAVAILABLE,
    "throttled": _C.RESOURCE_EXHAUSTED,
    "bad-response": _C.UNAVAILABLE,
    "object-changed": _C.ABORTED,
    "cache": _C.FAILED_PRECONDITION,
    "cache-too-small": _C.FAILED_PRECONDITION,
    "cache-unavailable": _C.FAILED_PRECONDITION,
    "data": _C.DATA_LOSS,
    "bad-shard": _C.DATA_LOSS,
    "bad-sample": _C.DATA_LOSS,
    "worker-lost": _C.UNAVAILABLE,
    "resource-exhausted": _C.RESOURCE_EXHAUSTED,
    "draining": _C.UNAVAILABLE,
    "internal": _C.INTERNAL,
}

# In all below 8 KiB: the trailer grows by a third on the wire, and details up to three times.
_MESSAGE_BYTES_MAX, _OBJECT_BYTES_MAX, _HINT_BYTES_MAX, _DETAILS_BYTES_MAX = 1500, 1000, 800, 900

_log = structlog.get_logger(__name__)


def as_feedd_error(error: BaseException, doing: str) -> FeeddError:
    """Return ``error`` if it is a FeeddError; other errors are defects, logged with traceback and sent as ``internal``.

    Args:
        error: the caught error.
        doing: the current operation, for the message ("opening a session").
    """
    if isinstance(error, FeeddError):
        return error
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return as_feedd_error(error.exceptions[0], doing)
    _log.error("internal error", doing=doing, error=repr(error), exc_info=error)
    return Internal(
        f"a defect of feedd while {doing}: {type(error).__name__}",
        hint="the daemon's log has the traceback",
        stage="serve",
    )


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: FeeddError) -> NoReturn:
    """End the call with the error's code, its text, and the error in the trailer; very long texts are cut.

    A client refuses more than 8 KiB of headers, and would get an error of gRPC in place of ours.
    """
    message = error_message(error)
    message.message = _fitting(message.message, _MESSAGE_BYTES_MAX)
    message.object = _fitting(message.object, _OBJECT_BYTES_MAX)
    message.hint = _fitting(message.hint, _HINT_BYTES_MAX)
    trailer = ((TRAILER, message.SerializeToString()),)
    await context.abort(CODES[error.kind], _fitting(str(error), _DETAILS_BYTES_MAX), trailer)
    raise AssertionError("abort always raises")


def _fitting(text: str, bytes_max: int) -> str:
    """Return a text, or its first part with three dots."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode("utf-8", "ignore") + "..."
