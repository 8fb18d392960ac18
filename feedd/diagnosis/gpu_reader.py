"""Reads how busy NVIDIA GPUs are, if the package ``nvidia-ml-py`` is installed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection


class GpuReader:
    """Asks NVML for the utilisation of GPUs: the share of the last 1/6 to 1 s in which a kernel ran."""

    def __init__(self) -> None:
        """Open NVML; without driver or package there are no GPUs."""
        self._nvml: Any = None
        self._devices: list[Any] = []
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._devices = [self._nvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)]
        except ImportError:
            return
        except Exception as error:  # noqa: BLE001 - NVML's own class, known only once it is imported
            self._check(error)

    def busy(self, pids: Collection[int]) -> float | None:
        """Return the utilisation of the least busy GPU that one of ``pids`` uses, from 0 to 1.

        In a container NVML may not see the processes; then all GPUs count. None: no GPU tells its utilisation.
        """
        readings = [reading for device in self._devices if (reading := self._reading(device)) is not None]
        used = [share for share, users in readings if not users.isdisjoint(pids)]
        return min(used or [share for share, _ in readings], default=None)

    def close(self) -> None:
        """Close NVML."""
        if self._devices:
            self._nvml.nvmlShutdown()
            self._devices = []

    def _reading(self, device: Any) -> tuple[float, set[int]] | None:  # noqa: ANN401 - a C pointer
        """Return a GPU's utilisation and the processes that compute on it; None: it does not tell, as with MIG."""
        try:
            share = self._nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100
            return share, {one.pid for one in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)}
        except Exception as error:  # noqa: BLE001 - see __init__
            self._check(error)
            return None

    def _check(self, error: Exception) -> None:
        """Raise an error that is not NVML's."""
        if not isinstance(error, self._nvml.NVMLError):
            raise error
