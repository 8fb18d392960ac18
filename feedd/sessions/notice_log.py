"""Logs and counts for the operator which data sessions leave out; the client tells the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from feedd import metrics
from feedd.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.notices import Amount, NoticeKind
    from feedd.protocols import Recorder

_TOLD_MAX: Final = 256  # datasets
_URLS_SHOWN: Final = 3
_log = structlog.get_logger(__name__)


class NoticeLog:
    """Counts the notices of every session and logs a dataset's notices once while they stay the same.

    Args:
        recorder: counts notices.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._sidecar_counts: dict[tuple[str, ...], frozenset[Notice]] = {}

    def note(self, urls: tuple[str, ...], notices: Sequence[Notice]) -> None:
        """Count and log the notices of a session that opens."""
        for notice in notices:
            self._recorder.count(metrics.PIPELINE_NOTICES, notice.amount.count, kind=notice.kind.value)
        known = self._sidecar_counts.pop(urls, frozenset())
        for notice in notices:
            if notice.warns and notice not in known:
                _warn(urls, notice)
        self._keep(urls, frozenset(notices))

    def log_more(self, urls: tuple[str, ...], kind: NoticeKind, amount: Amount, more_count: int) -> None:
        """Count and log a notice that grew while a session was read; each kind is logged once.

        Args:
            urls: the session's URLs.
            kind: the kind that grew.
            amount: its total.
            more_count: the increase of its count.
        """
        notice = Notice(kind, amount)
        self._recorder.count(metrics.PIPELINE_NOTICES, more_count, kind=kind.value)
        known = self._sidecar_counts.pop(urls, frozenset())
        if notice.warns and all(one.kind is not kind for one in known):
            _warn(urls, notice)
        self._keep(urls, frozenset(one for one in known if one.kind is not kind) | {notice})

    def _keep(self, urls: tuple[str, ...], notices: frozenset[Notice]) -> None:
        self._sidecar_counts[urls] = notices
        if len(self._sidecar_counts) > _TOLD_MAX:
            del self._sidecar_counts[next(iter(self._sidecar_counts))]


def _warn(urls: tuple[str, ...], notice: Notice) -> None:
    _log.warning(
        "data is left out or changed",
        kind=notice.kind.value,
        count=notice.amount.count,
        size_bytes=notice.amount.size_bytes,
        text=notice.text,
        urls=list(urls[:_URLS_SHOWN]),
    )
