"""Looks at the daemons of a node, and at the machine if they run here."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from feedd.diagnosis.gpu_reader import GpuReader
from feedd.diagnosis.machine_reader import MachineReader, MachineReading
from feedd.errors import FeeddError
from feedd.flow.pools import LOCAL_FILES
from feedd.view.node_model import Look

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feedd.wire import feedd_pb2 as pb


class Observed(Protocol):
    """A daemon that can be looked at: ``AdminClient``, or the daemon itself."""

    async def observe(self) -> pb.ObserveResponse:
        """Return one look at the daemon."""


class NodeReader:
    """Reads one node. Counters of the machine are read in a pool, because ``/proc`` may be slow."""

    def __init__(self, daemons: Sequence[Observed], *, local: bool) -> None:
        """Keep what to ask.

        Args:
            daemons: the daemons of the node, by lane.
            local: the daemons run on this machine, so its counters are theirs.
        """
        self._daemons = daemons
        self._local = local
        self._machine: MachineReader | None = None
        self._gpus: GpuReader | None = None

    async def look(self) -> Look:
        """Return what is to be seen at this moment.

        Raises:
            FeeddError: no daemon of the node answers.
        """
        found = await asyncio.gather(*(one.observe() for one in self._daemons), return_exceptions=True)
        errors = [one for one in found if isinstance(one, BaseException)]
        for error in errors:
            if not isinstance(error, FeeddError) or len(errors) == len(found):
                raise error
        answers = [None if isinstance(one, BaseException) else one for one in found]
        machine, gpu, disk = MachineReading(), None, ""
        if self._local:
            with suppress(OSError):
                machine, gpu, disk = await LOCAL_FILES.run(self._read, [one for one in answers if one is not None])
        return Look(time.monotonic(), answers, machine, gpu, disk, os.uname().nodename if self._local else "")

    def close(self) -> None:
        """Close what was opened to read the machine."""
        if self._gpus is not None:
            self._gpus.close()

    def _read(self, answers: Sequence[pb.ObserveResponse]) -> tuple[MachineReading, float | None, str]:
        daemons = {one.stats.pid for one in answers if one.stats.pid}
        trainers = {pid for one in answers for session in one.sessions for pid in session.pids}
        if self._machine is None or self._gpus is None:
            directory = next((one.stats.cache.directory for one in answers if one.stats.HasField("cache")), "/")
            self._machine, self._gpus = MachineReader(daemons, directory), GpuReader()
        return self._machine.read(daemons | trainers), self._gpus.busy(trainers), self._machine.disk
