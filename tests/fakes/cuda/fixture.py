"""The ``cuda`` fixture: what asks for it runs on simulated devices under several schedules, and on a real one."""

from __future__ import annotations

import contextlib
import gc
import importlib
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch

from feedd_client import capture, pinning, streams
from tests.fakes.cuda.device import Cuda
from tests.fakes.cuda.machine import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Iterator

REAL: Final = "real"
REAL_PARAM: Final = pytest.param(
    REAL,
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


class RealCuda:
    """The real device, where there is one."""

    real = True


@contextlib.contextmanager
def simulated(schedule: str, kind: str = "cuda") -> Iterator[tuple[Cuda, pytest.MonkeyPatch]]:
    """Put simulated devices in torch's place; at the end no rule of CUDA's has been broken."""
    importlib.import_module("torch.distributed.tensor")  # torch does so at the first operation: too late then, and slow
    gc.freeze()  # torch makes much at its first uses: the collection below walks what one test has made
    with pytest.MonkeyPatch.context() as patch:
        found = Cuda(schedule, kind)
        found.install(patch)
        patch.setattr(streams, "_copy_streams", {})
        patch.setattr(pinning, "_registered", {})
        patch.setattr(capture, "runtime_function", lambda: found.host.cudaThreadExchangeStreamCaptureMode)
        yield found, patch
        gc.collect()
        found.machine.synchronize()
        assert found.machine.violations == []


def devices(*schedules: str) -> Any:
    """Return a fixture: simulated devices under each schedule, and the real one.

    Those named are part of ``make test``, the others of ``make nightly``.
    """
    params = [pytest.param(name, marks=[] if name in schedules else [pytest.mark.nightly]) for name in SCHEDULES]

    @pytest.fixture(name="cuda", params=[*params, REAL_PARAM])
    def cuda(request: pytest.FixtureRequest, _real_cuda_runs: None) -> Iterator[Any]:
        if request.param == REAL:
            yield RealCuda()
            return
        with simulated(request.param) as (found, _):
            yield found

    return cuda
