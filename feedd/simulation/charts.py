"""Charts of a simulation as a PNG file, drawn with OpenCV, which feedd needs anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import cv2
import numpy as np

from feedd.errors import BadConfig
from feedd.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from feedd.simulation.scenario import JobModel
    from feedd.simulation.simulation_report import SimulationReport

_PANEL_WIDTH, _PANEL_HEIGHT = 800, 450
_LEFT, _RIGHT, _TOP, _BOTTOM = 120, 30, 60, 60  # margins of a panel, around its axes
_BLACK, _GREY = (40, 40, 40), (225, 225, 225)
_BLUE, _ORANGE = (180, 119, 31), (14, 127, 255)  # OpenCV's order is blue, green, red
_FONT: Final = cv2.FONT_HERSHEY_SIMPLEX
_POINTS_MAX: Final = 400  # of a line
_TICKS: Final = 4
_BARS_LABELLED_MAX: Final = 16

Color = tuple[int, int, int]


class _Series(NamedTuple):
    """The y values of a line or of bars."""

    values: NDArray[np.float64]
    color: Color


class _Axes:
    """One panel: a title, a y axis from 0, and room for lines or bars."""

    def __init__(self, title: str, top: float, tick: Callable[[float], str], x_name: str) -> None:
        self.image = np.full((_PANEL_HEIGHT, _PANEL_WIDTH, 3), 255, np.uint8)
        self._top = top or 1.0
        self._text(title, _LEFT, 35, 0.65)
        for number in range(_TICKS + 1):
            value = self._top * number / _TICKS
            y = self._y(value)
            cv2.line(self.image, (_LEFT, y), (_PANEL_WIDTH - _RIGHT, y), _GREY, 1, cv2.LINE_AA)
            self._text(tick(value), 8, y + 5, 0.45)
        self._text(x_name, _PANEL_WIDTH // 2 - 40, _PANEL_HEIGHT - 12, 0.45)

    def line(self, series: _Series) -> None:
        """Draw a line over the whole width."""
        values = _thinned(series.values)
        xs = np.linspace(_LEFT, _PANEL_WIDTH - _RIGHT, max(values.shape[0], 2))
        if values.shape[0] == 1:
            values = np.repeat(values, 2)
        points = np.array([[round(x), self._y(y)] for x, y in zip(xs, values.tolist(), strict=True)], np.int32)
        cv2.polylines(self.image, [points], isClosed=False, color=series.color, thickness=2, lineType=cv2.LINE_AA)

    def bars(self, series: _Series) -> None:
        """Draw a bar for each value, and its number below."""
        count = series.values.shape[0]
        width = (_PANEL_WIDTH - _LEFT - _RIGHT) / count
        for number, value in enumerate(series.values.tolist()):
            left = round(_LEFT + width * (number + 0.15))
            right = max(round(_LEFT + width * (number + 0.85)), left + 1)
            cv2.rectangle(self.image, (left, self._y(value)), (right, self._y(0)), series.color, -1)
            if count <= _BARS_LABELLED_MAX:
                self._text(str(number), (left + right) // 2 - 5, self._y(0) + 20, 0.45)

    def _y(self, value: float) -> int:
        height = _PANEL_HEIGHT - _TOP - _BOTTOM
        return round(_PANEL_HEIGHT - _BOTTOM - height * min(value / self._top, 1.0))

    def _text(self, text: str, x: int, y: int, scale: float) -> None:
        cv2.putText(self.image, text, (x, y), _FONT, scale, _BLACK, 1, cv2.LINE_AA)


def write_charts(path: Path, report: SimulationReport, job: JobModel) -> None:
    """Write four charts: throughput, bytes found in the caches, requests, and bytes of each node.

    Raises:
        BadConfig: the file cannot be written.
    """
    panels = _panels(report, job)
    image = cv2.vconcat([cv2.hconcat(panels[:2]), cv2.hconcat(panels[2:])])
    encoded, data = cv2.imencode(".png", image)
    assert encoded, "OpenCV writes PNG"
    try:
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise BadConfig(f"the charts cannot be written: {error.strerror}", object=str(path), stage="cli") from error


def _panels(report: SimulationReport, job: JobModel) -> list[NDArray[np.uint8]]:
    epochs = report.epochs
    step_samples = report.samples / report.steps
    rates = step_samples / (_means(report.step_waits_s) + job.step_s + 1e-9)
    best = np.full(rates.shape, step_samples / job.step_s) if job.step_s else rates
    top = float(best.max()) if job.step_s else float(rates.max())
    rate = _Axes("samples per second (orange: if no step waited)", 1.1 * top, lambda value: f"{value:,.0f}", "steps")
    rate.line(_Series(best, _ORANGE))
    rate.line(_Series(rates, _BLUE))
    found = _Axes("bytes found in the caches", 1.0, lambda value: f"{100 * value:.0f} %", "epoch")
    found.bars(_Series(np.array([one.hit_rate for one in epochs]), _BLUE))
    requests = np.array([float(one.requests) for one in epochs])
    sent = _Axes("requests of all nodes", 1.1 * float(requests.max()), lambda value: f"{value:,.0f}", "epoch")
    sent.bars(_Series(requests, _BLUE))
    sizes = report.node_bytes.astype(np.float64)
    skew = _Axes("bytes of each node, ascending", 1.1 * float(sizes.max()), format_size, "nodes")
    skew.line(_Series(sizes, _BLUE))
    return [rate.image, found.image, sent.image, skew.image]


def _means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return means of successive values, few enough for a line. The first wait is the open, which is left out."""
    rest = values[1:] if values.shape[0] > 1 else values
    pieces = np.array_split(rest, min(_POINTS_MAX, rest.shape[0]))
    return np.array([piece.mean() for piece in pieces])


def _thinned(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return at most as many values as a line has points."""
    if values.shape[0] <= _POINTS_MAX:
        return values
    return values[np.linspace(0, values.shape[0] - 1, _POINTS_MAX).astype(np.int64)]
