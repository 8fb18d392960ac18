"""The log of listed objects that are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from feedd.notices import OBJECTS_EVENT, notices_of

if TYPE_CHECKING:
    from feedd.dataset.passed_over import PassedOver

_TOLD_MOST: Final = 256  # URLs to remember
_log = structlog.get_logger(__name__)


class SkippedLog:
    """Logs skipped objects, once while they stay the same."""

    def __init__(self) -> None:
        self._reported: dict[str, PassedOver] = {}

    def report(self, url: str, passed: PassedOver) -> None:
        """Log the skipped objects of a URL, if there are any that were not logged before."""
        if not passed.count or self._reported.get(url) == passed:
            return
        self._reported.pop(url, None)
        self._reported[url] = passed
        if len(self._reported) > _TOLD_MOST:
            del self._reported[next(iter(self._reported))]
        notices = notices_of(passed.reasons)
        log = _log.warning if any(notice.warns for notice in notices) else _log.info
        why = [notice.text for notice in notices]
        log(OBJECTS_EVENT, url=url, objects=passed.count, first=list(passed.keys), why=why)
