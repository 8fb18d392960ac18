"""How busy GPUs are, from a stand-in for the package ``nvidia-ml-py`` with its documented functions."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from feedd.diagnosis.machine import GpuReader


class _Nvml(ModuleType):
    """GPUs by number: their utilisation in percent, or None as with MIG, and the processes that use them."""

    class NVMLError(Exception):
        """NVML's error."""

    def __init__(self, gpus: list[tuple[int | None, list[int]]], *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self._gpus = gpus
        self._driver = driver
        self.opened = 0

    def nvmlInit(self) -> None:  # noqa: N802 - a name of NVML
        if not self._driver:
            raise self.NVMLError("driver not loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802 - see above
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - see above
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802 - see above
        return number

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802 - see above
        share = self._gpus[device][0]
        if share is None:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=share, memory=7)

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:  # noqa: N802 - see above
        return [SimpleNamespace(pid=pid) for pid in self._gpus[device][1]]


def _reader(monkeypatch: pytest.MonkeyPatch, nvml: _Nvml | None) -> GpuReader:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # None: an import fails
    return GpuReader()


def test_the_least_busy_gpu_of_the_trainers_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others' GPUs and those that do not tell are left out."""
    nvml = _Nvml([(90, [1]), (40, [2, 3]), (5, [9]), (None, [1])])
    reader = _reader(monkeypatch, nvml)
    assert reader.busy({1, 2}) == pytest.approx(0.4)
    assert reader.busy({1}) == pytest.approx(0.9)
    assert reader.busy({77}) == pytest.approx(0.05)  # processes of another container are not seen
    assert nvml.opened == 1
    reader.close()
    assert nvml.opened == 0
    assert reader.busy({1}) is None


@pytest.mark.parametrize("nvml", [None, _Nvml([]), _Nvml([(50, [])], driver=False), _Nvml([(None, [1])])])
def test_without_gpus_nothing_is_known(monkeypatch: pytest.MonkeyPatch, nvml: _Nvml | None) -> None:
    """No package, no GPU, no driver, or none that tells."""
    reader = _reader(monkeypatch, nvml)
    assert reader.busy({1}) is None
    reader.close()


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect of ours is no missing GPU."""
    nvml = _Nvml([(50, [1])])
    monkeypatch.setattr(nvml, "nvmlDeviceGetComputeRunningProcesses", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        _reader(monkeypatch, nvml).busy({1})
