"""What an iterating dataset counts."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd_client._wire import feedd_pb2 as pb

_log: Final = logging.getLogger("feedd_client")
_NOTICES_MAX: Final = 64
_KIND_CHARS_MAX: Final = 64
_TEXT_CHARS_MAX: Final = 2000


@dataclass(slots=True)
class LoaderStats:
    """Counters since the dataset was made, in this process.

    Attributes:
        batches: batches (or samples, where one at a time) handed out.
        samples: samples in them; where the recipe packs several into a row, those that were packed (one at a time, a
            packed row counts as one).
        rows: rows in them: less than samples where they are packed, else as many.
        bytes: payload bytes received.
        bad_samples: samples that could not be decoded and were dropped or replaced, see ``bad_samples=``.
        filtered_samples: samples that ``filter=`` left out.
        wait_s: time spent waiting for the daemon; over wall time, the share of steps that is input-bound.
        time_to_first_batch_s: from the start of the first iteration to its first batch; None before.
        reconnects: streams resumed after they were lost.
        leftover_batches: batches of this rank that ``uneven="join"`` left out, as far as known.
        leftover_samples: samples of this rank that ``uneven="drop"`` left out of the epochs that were seen to their
            end; with DataLoader workers the first of them counts all of the rank's.
        transport: "slot" (shared memory), "inline", or "" before the first batch.
        notices: data that the daemon leaves out or changes, by kind: each has "text", "count" (of objects,
            sample counts or columns), "bytes" and "warns". Those that warn are in the log, too. Empty before the first
            pass.
    """

    batches: int = 0
    samples: int = 0
    rows: int = 0
    bytes: int = 0
    bad_samples: int = 0
    filtered_samples: int = 0
    wait_s: float = 0.0
    time_to_first_batch_s: float | None = None
    reconnects: int = 0
    leftover_batches: int = 0
    leftover_samples: int = 0
    transport: str = ""
    notices: dict[str, dict[str, Any]] = field(default_factory=dict)
    _logged: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take_notices(self, notices: Iterable[pb.Notice], *, log: bool, grown: bool = False) -> None:
        """Take what the daemon said; what it said before is not logged again.

        Args:
            notices: all that are true of the session: others are so no longer.
            log: whether this process is the one of its node that logs them.
            grown: said while batches come: of a kind that is in the log already, only ``notices`` have the new count.
        """
        self.notices = {}
        for notice in tuple(notices)[:_NOTICES_MAX]:
            kind, text = notice.kind[:_KIND_CHARS_MAX], notice.text[:_TEXT_CHARS_MAX]
            told = {"text": text, "count": notice.count, "bytes": notice.size_bytes, "warns": notice.warns}
            known = self._logged.get(kind)
            if log and notice.warns and (known is None if grown else known != told):
                _log.warning("%s", text)
                self._logged[kind] = told
            self.notices[kind] = told

    def as_dict(self) -> dict[str, Any]:
        """Return a plain, JSON-able dict."""
        return {name: value for name, value in asdict(self).items() if name != "_logged"}
