"""Reads what the machine counts: cores, pressure, disks, GPUs, and the threads of daemons and trainers."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_PRESSURE: Final = Path("/proc/pressure/cpu")
_BLOCK_DEVICES: Final = Path("/sys/dev/block")
_MBIT_BYTES: Final = 125_000


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """Counters of one process.

    Attributes:
        main_thread_s: CPU time of its main thread.
        written_bytes: bytes that it wrote, to files, pipes and terminals.
        write_calls: its write calls.
    """

    main_thread_s: float = 0.0
    written_bytes: int = 0
    write_calls: int = 0

    def since(self, earlier: ProcessReading) -> ProcessReading:
        """Return what has been counted since an earlier reading."""
        return ProcessReading(
            self.main_thread_s - earlier.main_thread_s,
            self.written_bytes - earlier.written_bytes,
            self.write_calls - earlier.write_calls,
        )


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Counters of the machine at one moment, as far as they can be read.

    Attributes:
        cores: busy and total seconds of each core that the daemons may use.
        cpu_pressure_s: seconds in which some task waited for a core; None: the kernel does not tell.
        disk_busy_s: seconds in which the cache's disk was busy; None: the cache lies on no disk.
        processes: readings by process id.
        links: bytes sent over each network link, and its rate in bytes per second, if the link tells its rate.
    """

    cores: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    cpu_pressure_s: float | None = None
    disk_busy_s: float | None = None
    processes: Mapping[int, ProcessReading] = field(default_factory=dict)
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class MachineReader:
    """Reads counters of this machine.

    Attributes:
        disk: name of the cache's block device; empty: there is none.
        disk_kind: "EBS", "NVMe", "HDD", or empty if not known.
    """

    def __init__(self, daemons: Iterable[int], cache_dir: str) -> None:
        """Find out which cores and which disk to read.

        Args:
            daemons: process ids of the daemons; those that cannot be seen from here are ignored.
            cache_dir: directory of the cache.
        """
        self.disk, self.disk_kind = _disk_of(cache_dir)
        self._cores: set[int] = set()
        for pid in daemons:
            with suppress(psutil.Error):
                self._cores.update(psutil.Process(pid).cpu_affinity() or ())

    def read(self, pids: Iterable[int]) -> MachineReading:
        """Return the present counters, with those of the processes ``pids`` that can be seen from here."""
        processes = {pid: reading for pid in pids if (reading := _process(pid)) is not None}
        return MachineReading(_core_times(self._cores), _pressure_s(), _disk_busy_s(self.disk), processes, _links())


def _core_times(wanted: set[int]) -> dict[int, tuple[float, float]]:
    found = {}
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        if number in wanted:
            idle_s = times.idle + getattr(times, "iowait", 0.0)
            # guest time is in user time already
            total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
            found[number] = (total_s - idle_s, total_s)
    return found


def _pressure_s() -> float | None:
    """Return the total of the line "some" of the kernel's pressure stall information (Documentation/accounting/psi)."""
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in _PRESSURE.read_text().splitlines() if line.startswith("some"))
        return int(line.rpartition("total=")[2]) / 1e6
    return None


def _links() -> dict[str, tuple[int, int]]:
    speeds = {name: one.speed for name, one in psutil.net_if_stats().items() if one.isup and one.speed}
    counters = psutil.net_io_counters(pernic=True)
    return {name: (counters[name].bytes_sent, mbit * _MBIT_BYTES) for name, mbit in speeds.items() if name in counters}


def _disk_of(directory: str) -> tuple[str, str]:
    """Return name and kind of the block device that a directory lies on."""
    with suppress(OSError):
        device = Path(directory).stat().st_dev
        path = (_BLOCK_DEVICES / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
        disk = path.parent if (path / "partition").exists() else path
        return path.name, _disk_kind(disk)
    return "", ""


def _disk_kind(disk: Path) -> str:
    """Return what a disk's model tells. On EC2, EBS volumes and local disks both appear as NVMe."""
    with suppress(OSError):
        model = (disk / "device" / "model").read_text()
        if "Elastic Block Store" in model:
            return "EBS"
    with suppress(OSError):
        if (disk / "queue" / "rotational").read_text().strip() == "1" and not disk.name.startswith("vd"):
            return "HDD"
    return "NVMe" if disk.name.startswith("nvme") else ""


def _disk_busy_s(disk: str) -> float | None:
    counters: Any = psutil.disk_io_counters(perdisk=True).get(disk) if disk else None
    busy_ms = getattr(counters, "busy_time", None)
    return None if busy_ms is None else busy_ms / 1e3


def _process(pid: int) -> ProcessReading | None:
    try:
        process = psutil.Process(pid)
        threads = process.threads()
    except psutil.Error:
        return None
    main_s = sum(one.user_time + one.system_time for one in threads if one.id == pid)
    try:
        io: Any = process.io_counters()
    except (psutil.Error, OSError):
        return ProcessReading(main_s)
    return ProcessReading(main_s, io.write_chars, io.write_count)


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
