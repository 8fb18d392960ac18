"""How the trainer's loop spends its time: waits, steps and pauses, as the daemon is told about once a second."""

from __future__ import annotations

from typing import Final

from feedd_client._wire import feedd_pb2 as pb

REPORT_EVERY_S: Final = 1.0
PAUSE_TIMES: Final = 5.0
PAUSE_MIN_S: Final = 0.25
_USUAL_STEPS: Final = 64


class StepTimes:
    """Times of all passes over a dataset. The thread that takes the batches writes them; any thread may read them.

    A pause is a step of at least 0.25 s that takes at least five times as long as the steps before it.

    Attributes:
        steps: batches taken.
        wait_s: seconds that the loop waited for a batch.
        pauses: number of pauses.
        pause_s: seconds of all pauses together.
        due: a second has passed since ``report`` was called.
        device: where a ``DeviceLoader`` takes the batches; empty: there is none.
        unpinned: whether the device copies from memory that is not registered with it.
        copy_s: seconds that the thread of a ``DeviceLoader`` copied to the device. That thread writes it.
    """

    __slots__ = (
        "_began_s",
        "_latest_wait_s",
        "_reported_s",
        "_request_s",
        "_usual_s",
        "copy_s",
        "device",
        "due",
        "pause_s",
        "pauses",
        "steps",
        "unpinned",
        "wait_s",
    )

    def __init__(self) -> None:
        self.steps = self.pauses = 0
        self.wait_s = self.pause_s = self.copy_s = 0.0
        self.device = ""
        self.due = False
        self.unpinned = False
        self._began_s = self._request_s = self._latest_wait_s = self._usual_s = 0.0
        self._reported_s = float("-inf")

    def took(self, request_s: float, wait_s: float) -> None:
        """Record that the loop took a batch.

        Args:
            request_s: when it asked for the batch, on ``time.perf_counter``.
            wait_s: how long it then waited.
        """
        if self.steps:
            step_s = request_s - self._request_s - self._latest_wait_s
            if step_s > PAUSE_MIN_S and self.steps > 1 and step_s > PAUSE_TIMES * self._usual_s:
                self.pauses += 1
                self.pause_s += step_s
            else:
                self._usual_s += (step_s - self._usual_s) / min(self.steps, _USUAL_STEPS)
        else:
            self._began_s = request_s
        self.steps += 1
        self.wait_s += wait_s
        self._request_s = request_s
        self._latest_wait_s = wait_s
        if request_s - self._reported_s >= REPORT_EVERY_S:
            self.due = True

    def report(self) -> pb.TrainerTimes:
        """Return the times until the latest batch; they are due again after a second."""
        now_s = self._request_s + self._latest_wait_s
        self._reported_s = now_s
        self.due = False
        return pb.TrainerTimes(
            wall_s=now_s - self._began_s,
            wait_s=self.wait_s,
            steps=self.steps,
            pauses=self.pauses,
            pause_s=self.pause_s,
            device=self.device,
            unpinned=self.unpinned,
            copy_s=self.copy_s,
        )
