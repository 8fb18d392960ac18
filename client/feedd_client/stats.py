"""Counters of an iterating dataset."""

from __future__ import annotations

import logging
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from feedd_client.step_times import StepTimes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from feedd_client._wire import feedd_pb2 as pb

_log: Final = logging.getLogger("feedd_client")
_NOTICES_MAX: Final = 64
_KIND_CHARS_MAX: Final = 64
_TEXT_CHARS_MAX: Final = 2000


@dataclass(slots=True)
class LoaderStats:
    """Counters of this process since the dataset was created.

    Attributes:
        batches: batches handed out, or samples if the dataset yields single samples.
        samples: samples in these batches. If the recipe packs several samples into a row, each packed sample counts (a
            packed row counts as one if the dataset yields single samples).
        rows: rows in these batches: fewer than samples if samples are packed, else as many.
        bytes: payload bytes received.
        bad_samples: samples that could not be decoded and were dropped or replaced; see ``bad_samples=``.
        filtered_samples: samples that ``filter=`` left out.
        wait_s: seconds spent waiting for the daemon, ``host_wait_s`` of a ``DeviceLoader``. Divided by wall time: the
            share of time limited by input.
        time_to_first_batch_s: seconds from the start of the first iteration to its first batch; None before.
        reconnects: streams resumed after they were lost.
        leftover_batches: batches of this rank that ``uneven="join"`` left out, as far as known.
        leftover_samples: samples of this rank that ``uneven="drop"`` left out of the epochs that ran to their
            end. With DataLoader workers, the first worker counts all samples of the rank.
        transport: "slot" (shared memory), "inline", or "" before the first batch.
        ranks_compared: whether this rank compared its data with other ranks at the start of a pass. False: there was
            no way to compare, so ranks may read different objects. None: a single rank, or before the first pass.
        notices: data that the daemon leaves out or changes, by kind. Each notice has "text", "count" (of objects,
            sample counts or columns), "bytes" and "warns". Notices with "warns" are also logged. Empty before the
            first pass.
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
    ranks_compared: bool | None = None
    notices: dict[str, dict[str, Any]] = field(default_factory=dict)
    _step_times: StepTimes = field(default_factory=StepTimes)
    _logged: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def step_times(self) -> StepTimes:
        """How the trainer's loop spends its time, for the daemon."""
        return self._step_times

    def received(self, message: pb.Batch, count: int) -> None:
        """Count batches that the message describes."""
        self.bytes += count * message.size_bytes
        self.bad_samples += count * message.bad_samples
        self.filtered_samples += count * message.filtered

    def take_notices(self, notices: Iterable[pb.Notice], *, log: bool, grown: bool = False) -> None:
        """Replace the notices by those the daemon sent; a notice is logged only once.

        Args:
            notices: all notices that hold for the session now; earlier ones no longer hold.
            log: whether this process logs notices for its node.
            grown: the notices came with a batch: the new count of a kind that was logged already is not logged.
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
        """Return the counters as a plain, JSON-able dict."""
        names = (one.name for one in fields(self) if not one.name.startswith("_"))
        return {name: deepcopy(getattr(self, name)) for name in names}
