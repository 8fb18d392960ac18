"""An arena: numbered slots of equal size in one sealed memfd, shared with one trainer and the decode workers.

The file has no name, so the kernel frees it when all its holders have ended. It is allocated before it is used, so a
lack of memory raises an error and never SIGBUS in the middle of a batch. That happens at ``create``. Of a large arena,
``create`` may allocate only the first slot. The others follow while the first batch is decoded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from feedd.errors import Internal, ResourceExhausted
from feedd.flow.memory import HINT, CountedMap, OwnerBudget, available_bytes
from feedd.flow.pools import CPU
from feedd.flow.sink_file import memory_file
from feedd.flow.tasks import run_to_end
from feedd.units import format_size
from feedd.values import SlotRef

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from feedd.flow.memory import ArenaBudget

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_AT_ONCE_BYTES = 256 << 20  # smaller arenas are allocated in less than 0.1 s
_ROOM_LOOK_S = 0.05
_ROOM_WAIT_S = 30.0


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _check_available(size_bytes: int) -> None:
    available = available_bytes()
    if available is not None and size_bytes > available:
        raise ResourceExhausted(
            f"an arena of {format_size(size_bytes)} needs more memory than the {format_size(available)} available",
            hint=HINT,
            stage="serve",
        )


def _unallocated(size_bytes: int, error: OSError) -> ResourceExhausted:
    what = f"the memory for an arena of {format_size(size_bytes)} cannot be allocated: {error.strerror}"
    return ResourceExhausted(what, hint=HINT, stage="serve")


def _allocate(size_bytes: int, first_bytes: int) -> int:
    """Return a sealed memfd whose first bytes are allocated; the machine has memory for all of it."""
    _check_available(size_bytes)
    fd = -1
    try:
        fd = memory_file("feedd-arena")
        os.ftruncate(fd, size_bytes)
        os.posix_fallocate(fd, 0, first_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise _unallocated(size_bytes, error) from error
    return fd


class _LaterSlots:
    """Allocates the slots of an arena after the first, one after another on a thread, once a batch needs a slot.

    Before that, the first batch's shards arrive, and their transfer needs the cores. Used on one event loop.

    Attributes:
        closed: no further slot is needed.
    """

    def __init__(self, slot_count: int, slot_bytes: int) -> None:
        self._slot_bytes = slot_bytes
        self._allocated: list[concurrent.futures.Future[None]] = [
            concurrent.futures.Future() for _ in range(1, slot_count)
        ]
        self._started = self.closed = False

    async def wait(self, fd: int, index: int) -> None:
        """Wait until a slot is allocated.

        Raises:
            ResourceExhausted: the machine has no memory for it.
        """
        if not self._started:
            try:
                own = os.dup(fd)  # a descriptor of its own, because the arena may be closed meanwhile
            except OSError as error:
                raise _unallocated(self._slot_bytes, error) from error
            self._started = True
            CPU.begin(self._run, own)
        if index:
            allocated = self._allocated[index - 1]
            await asyncio.shield(asyncio.wrap_future(allocated))

    def _run(self, fd: int) -> None:
        failure: ResourceExhausted | None = None
        try:
            for number, allocated in enumerate(self._allocated, 1):
                if failure is None and not self.closed:
                    failure = self._allocate(fd, number)
                if failure is None:
                    allocated.set_result(None)
                else:
                    allocated.set_exception(failure)
        finally:
            os.close(fd)

    def _allocate(self, fd: int, number: int) -> ResourceExhausted | None:
        try:
            _check_available(self._slot_bytes)
            os.posix_fallocate(fd, number * self._slot_bytes, self._slot_bytes)
        except ResourceExhausted as error:
            return error
        except OSError as error:
            return _unallocated(self._slot_bytes, error)
        return None


@contextmanager
def _read_only(fd: int) -> Iterator[int]:
    """Yield a descriptor of a memfd that was opened for reading.

    A memfd's mode is 0777, so another user could open it again for writing through /proc. Mode 0400 stops that.
    """
    os.fchmod(fd, 0o400)
    reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield reading
    finally:
        os.close(reading)


class Arena:
    """One session's slots (implements ``Slots``). Slots are taken and given back on one thread only.

    A slot's generation grows at each ``take``. A ``SlotRef`` of an earlier generation is refused everywhere.
    """

    def __init__(
        self,
        slot_count: int,
        slot_bytes: int,
        budget: ArenaBudget | OwnerBudget | None = None,
        *,
        gradual: bool = False,
    ) -> None:
        """Allocate and map; blocks for about 0.2 s per GiB (``create`` does it off the event loop).

        Args:
            slot_count: number of slots, at least 1.
            slot_bytes: minimum size of each slot, rounded up to whole pages.
            gradual: of a large arena, allocate only the first slot now. Callers then wait for each slot with
                ``allocated`` before they write to it.
            budget: bound shared with other arenas. The bytes are returned when neither the daemon nor the client
                maps them.

        Raises:
            ResourceExhausted: the budget, the machine or the control group does not have that much left.
        """
        if slot_count < 1 or slot_bytes < 1:
            raise ValueError(f"expected at least 1 slot of at least 1 byte, got {slot_count} of {slot_bytes}")
        self._slot_bytes = _round_up(slot_bytes)
        self._size_bytes = self._slot_bytes * slot_count
        self._budget = budget
        self._client_count = 0
        self._fd = -1
        gradual = gradual and self._size_bytes > _AT_ONCE_BYTES
        self._later = _LaterSlots(slot_count, self._slot_bytes) if gradual else None
        if budget is not None:
            budget.reserve(self._size_bytes)
        try:
            self._fd = _allocate(self._size_bytes, self._slot_bytes if gradual else self._size_bytes)
            self._map = CountedMap(self._fd, self._size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except BaseException as error:
            if budget is not None:
                budget.release(self._size_bytes)
            if self._fd >= 0:
                os.close(self._fd)
            if isinstance(error, OSError):
                raise ResourceExhausted(
                    f"an arena of {format_size(self._size_bytes)} cannot be mapped: {error.strerror}", stage="serve"
                ) from error
            raise
        whole = memoryview(self._map)
        self._views = [whole[i * self._slot_bytes : (i + 1) * self._slot_bytes] for i in range(slot_count)]
        whole.release()
        self._generations = [0] * slot_count
        self._taken = [False] * slot_count
        self._free = list(
            range(slot_count - 1, -1, -1)
        )  # a stack, because the slot used last may still be in the CPU cache

    @classmethod
    async def create(
        cls,
        slot_count: int,
        slot_bytes: int,
        budget: ArenaBudget | OwnerBudget | None = None,
        *,
        gradual: bool = False,
    ) -> Self:
        """Build an arena on a thread; a cancelled call waits for the thread, so that nothing stays reserved.

        Raises:
            ResourceExhausted: as the constructor.
        """
        job = CPU.begin(cls, slot_count, slot_bytes, budget, gradual=gradual)
        try:
            return await run_to_end(job)
        except asyncio.CancelledError:
            if not job.cancelled() and job.exception() is None:
                job.result().close()
            raise

    @classmethod
    async def create_when_room(cls, size_bytes: int, budget: OwnerBudget) -> Self:
        """Build an arena of one slot for a batch that fits no other; wait while such batches are sent to the client.

        Raises:
            BadConfig: the budget never has that much. ResourceExhausted: there was no room within half a minute.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _ROOM_WAIT_S
        while True:
            try:
                return await cls.create(1, size_bytes, budget)
            except ResourceExhausted:
                if loop.time() >= end_s:
                    raise
            await asyncio.sleep(_ROOM_LOOK_S)

    @property
    def slot_count(self) -> int:
        """Number of slots."""
        return len(self._generations)

    @property
    def slot_bytes(self) -> int:
        """Size of each slot, a multiple of the page size."""
        return self._slot_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the memfd: ``slot_count * slot_bytes``."""
        return self._size_bytes

    @property
    def fd(self) -> int:
        """The memfd, owned by the arena; its users duplicate it. -1 once closed."""
        return self._fd

    @property
    def taken_count(self) -> int:
        """Number of slots in use."""
        return len(self._generations) - len(self._free)

    def take(self) -> SlotRef | None:
        """Return a free slot with a new generation, or None if no slot is free or the arena is closed."""
        if not self._free or self._fd < 0:
            return None
        index = self._free.pop()
        self._taken[index] = True
        self._generations[index] += 1
        return SlotRef(index, self._generations[index])

    def _holds(self, slot: SlotRef) -> bool:
        return (
            0 <= slot.index < len(self._generations)
            and self._taken[slot.index]
            and self._generations[slot.index] == slot.generation
        )

    def give_back(self, slot: SlotRef) -> bool:
        """Free the slot. False: the slot's generation is stale, and nothing happens."""
        if not self._holds(slot):
            return False
        self._taken[slot.index] = False
        self._free.append(slot.index)
        return True

    async def allocated(self, slot: SlotRef) -> None:
        """Wait until the memory of a slot is allocated.

        Raises:
            ResourceExhausted: the machine has no memory for it.
        """
        if self._later is not None and self._fd >= 0:
            await self._later.wait(self._fd, slot.index)

    def view(self, slot: SlotRef) -> memoryview:
        """Return the slot's bytes in this process, writable; borrowed: released by ``close``.

        Raises:
            Internal: the slot's generation is stale.
        """
        if self._fd < 0 or not self._holds(slot):
            raise Internal(
                f"expected a slot in use, got slot {slot.index} of generation {slot.generation}", stage="serve"
            )
        return self._views[slot.index]

    def outliving_view(self, slot: SlotRef) -> memoryview:
        """Return the slot's bytes. They stay valid after ``close``, and the arena counts until all views are collected.

        Raises:
            Internal: the slot's generation is stale.
        """
        view = self.view(slot)[:]
        if self._budget is not None:
            self._budget.release_with(self._map)
            self._budget = None
        return view

    @contextmanager
    def client_mapping(self, *, read_only: bool = False) -> Iterator[int]:
        """Yield the memfd for one client to map. Until the exit the arena's bytes count, even if it is closed.

        Args:
            read_only: other clients read the arena too, so the descriptor is one that nobody can write through.
        """
        assert self._fd >= 0, "an arena for a client was closed"
        self._client_count += 1
        try:
            if read_only:
                with _read_only(self._fd) as fd:
                    yield fd
            else:
                yield self._fd
        finally:
            self._client_count -= 1
            self._settle_budget()

    def _settle_budget(self) -> None:
        """Return the reserved bytes if neither daemon nor client maps the memory."""
        if self._fd < 0 and not self._client_count and self._budget is not None:
            self._budget.release(self._size_bytes)

    def close(self) -> None:
        """Close the memfd and unmap it; idempotent. Clients' mappings stay, and count, until the clients unmap them.

        A buffer made from a view (a numpy array, a slice) keeps the mapping alive until it is collected.
        """
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if self._later is not None:
            self._later.closed = True
        self._settle_budget()
        for view in self._views:
            with contextlib.suppress(BufferError):
                view.release()
        self._views.clear()
        with contextlib.suppress(BufferError):
            self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Arena({self.taken_count}/{self.slot_count} x {format_size(self._slot_bytes)})"
