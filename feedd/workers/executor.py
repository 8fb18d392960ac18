"""Executes the requests of a decode worker. No sockets here: requests in, replies out."""

from __future__ import annotations

import functools
import importlib
import mmap
import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import numpy as np

from feedd.codecs.array import pin_npy
from feedd.codecs.codec_registry import make
from feedd.errors import BadSample, BadShard, CacheUnavailable, FeeddError, Internal
from feedd.flow.file_pipe import FilePipe
from feedd.formats import format_registry as formats
from feedd.formats.framing import limited_index
from feedd.formats.inline_headers import header_reader
from feedd.formats.refused import say_packed
from feedd.recipe.slow_imports import SLOW_MODULES
from feedd.shard_index import IndexLimits
from feedd.tables import registry
from feedd.tables.making import make_shard
from feedd.tables.memory import NO_LIMIT_BYTES, OPTION, at_most, call_limit
from feedd.values import FieldRecipe
from feedd.workers import index_columns as columns
from feedd.workers.bulk import copy_rows
from feedd.workers.column_gather import gather
from feedd.workers.fields import Field
from feedd.workers.fixed_width import has_large_rows, plain_numbers
from feedd.workers.make_messages import answer_of, task_of
from feedd.workers.messages import (
    REASON_CHARS_MAX,
    Answer,
    Decoded,
    DecodeRequest,
    Failed,
    Gathered,
    GatherRequest,
    Indexed,
    IndexRequest,
    MakeRequest,
    Measured,
    MeasureRequest,
    Pinned,
    PinRequest,
    Prepare,
    RequestContext,
    out_of_descriptors,
)
from feedd.workers.shards import MappedFiles, Shard, ShardHeaders, Shards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from feedd.protocols import SampleCodec
    from feedd.shard_index import ShardIndex
    from feedd.workers.fixed_width import Plain
    from feedd.workers.messages import ColumnMessage, FieldMessage


_SHORT_REASON_CHARS: Final = 12
_REASONS_BYTES: Final = 64 << 10  # of the 96 KiB of an answer; short reasons of a thousand rows take 22 KiB
_NO_MEMORY: Final = re.compile(r"\b(re)?alloc|bad_alloc|memory", re.IGNORECASE)  # the words of native libraries
_MEMORY_REASON: Final = f" ({OPTION} limits the memory of a worker)"
_KEPT_BYTES_MAX: Final = 64 << 20  # per answer: the values of further rows are decoded again
_codec_for = functools.lru_cache(maxsize=256)(make)


@runtime_checkable
class Producer(Protocol):
    """A codec of one-dimensional values whose length is known only after decoding."""

    def produce(self, data: memoryview) -> NDArray[Any]:
        """Return the decoded value of a sample.

        Raises:
            BadSample: the sample is not decodable.
        """


class _Reasons:
    """Reasons of a request's bad rows: in full while the answer has room, then shortened."""

    def __init__(self) -> None:
        self._left_bytes = _REASONS_BYTES

    def of(self, error: Exception) -> str:
        """Return the reason for one row's error."""
        text = error.message if isinstance(error, BadSample) else f"{type(error).__name__}: {error}"
        told = _MEMORY_REASON if isinstance(error, MemoryError) or _NO_MEMORY.search(text) else ""
        text = text[: REASON_CHARS_MAX - len(told)] + told
        self._left_bytes -= len(text.encode(errors="replace"))
        if self._left_bytes >= 0:
            return text
        return text[:_SHORT_REASON_CHARS].encode("ascii", "replace").decode()


def _descriptors_of(given: Sequence[int], count: int) -> Sequence[int]:
    """Return the descriptors that came with a request.

    Raises:
        ResourceExhausted: some were lost on the way.
    """
    if len(given) != count:
        raise out_of_descriptors()
    return given


class Executor:
    """Keeps the attached arenas and mapped files; everything else lives for one request.

    Args:
        memory_bytes: private memory that a call may take, see ``tables.memory.call_limit``; 0: no limit.
    """

    def __init__(self, memory_bytes: int = 0) -> None:
        self._memory_bytes = memory_bytes
        self._arenas: dict[int, mmap.mmap] = {}
        self._pages: dict[int, ArenaPages] = {}
        self._files: dict[int, int] = {}  # descriptors of the attached arenas
        self._refused: dict[int, str] = {}  # arena id -> why it could not be mapped
        self._cached_files = MappedFiles()

    @property
    def keeps(self) -> bool:
        """Whether shard files are mapped that ``rest`` would unmap."""
        return bool(self._cached_files)

    def rest(self) -> None:
        """Unmap all shard files, because no request is expected."""
        self._cached_files.drop()

    def attach(self, arena_id: int, fd: int | None, size_bytes: int) -> None:
        """Map an arena read-write; ``fd`` stays the caller's. None: it was lost, because too many files are open.

        Its pages are mapped later, right before rows are written to them (``ArenaPages``).

        If mapping fails, decoding into the arena fails, because a worker that died here would be replaced by one that
        dies too.
        """
        self.detach(arena_id)
        if fd is None:
            self._refused[arena_id] = out_of_descriptors().message
            return
        try:
            arena = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            self._files[arena_id] = os.dup(fd)
        except (OSError, ValueError) as error:
            self._refused[arena_id] = str(error)
            return
        self._arenas[arena_id], self._pages[arena_id] = arena, ArenaPages(arena)

    def detach(self, arena_id: int) -> None:
        """Unmap an arena; unknown ids are ignored."""
        self._refused.pop(arena_id, None)
        self._pages.pop(arena_id, None)
        file = self._files.pop(arena_id, None)
        if file is not None:
            os.close(file)
        arena = self._arenas.pop(arena_id, None)
        if arena is not None:
            # A reference cycle in a codec may still hold a row: the mapping then goes when that is collected.
            with suppress(BufferError):
                arena.close()

    def prepare(self, request: Prepare) -> None:
        """Import modules before a row or a conversion waits for them: OpenCV takes 50 ms, and pyarrow as long."""
        for name in SLOW_MODULES.intersection(request.modules):
            with suppress(Exception):  # decode meets any error again and reports it
                importlib.import_module(f"feedd.codecs.{name}")
        for name in request.converters:
            with suppress(Exception):  # the conversion meets any error again and reports it
                registry.get(name)

    def run(self, request: RequestContext, given: Sequence[int] = ()) -> tuple[Answer, list[int]]:
        """Return the reply and the descriptors to send with it; the caller closes them.

        Args:
            request: the request.
            given: descriptors that came with it; they stay the caller's.
        """
        began_s = time.perf_counter()
        fds: list[int] = []

        def busy_s() -> float:
            return time.perf_counter() - began_s

        answer: Answer
        try:
            match request:
                case DecodeRequest():
                    bad = self._decode(request, given)
                    answer = Decoded(request.id, busy_s(), bad)
                case GatherRequest():
                    undone = self._gather(request, given)
                    answer = Gathered(request.id, busy_s(), undone)
                case MeasureRequest():
                    shapes, retained_rows = self._sizes(request, given, fds)
                    answer = Measured(request.id, busy_s(), shapes, retained_rows)
                case IndexRequest():
                    self._cached_files.drop()  # indexing and converting take long: keep no mapping meanwhile
                    answer = self._index(request, given, fds)
                case MakeRequest():
                    self._cached_files.drop()
                    task = task_of(request, _descriptors_of(given, 2))
                    outcome = make_shard(task, IndexLimits(*request.limits), self._memory_bytes)
                    answer = answer_of(request.id, busy_s(), outcome)
                case PinRequest():
                    with Shard(request.file, given) as shard:
                        params = pin_npy(shard.read(request.start, request.size), header_reader(request.encoding))
                    answer = Pinned(request.id, busy_s(), params)
        except FeeddError as error:
            answer = Failed(
                request.id, busy_s(), error.kind, error.message[:2000], error.object[:4000], error.hint[:2000]
            )
        except Exception as error:  # noqa: BLE001 - a defect must reach the daemon as an answer
            answer = Failed(request.id, busy_s(), Internal.kind, f"{type(error).__name__}: {error}"[:2000], "", "")
        return answer, fds

    def _index(self, request: IndexRequest, given: Sequence[int], fds: list[int]) -> Indexed:
        began_s = time.perf_counter()
        with Shard(request.file, given) as shard:
            call_bytes = call_limit(self._memory_bytes, request.object_bytes)
            try:
                limits = IndexLimits(*request.limits)
                with at_most(NO_LIMIT_BYTES, request.file.url, call_bytes), limited_index(limits):
                    index = columns.packed(_index(shard, request.format_name, request.file.url))
                    limits.check(index.nbytes, index.sample_count, request.file.url)
                    fds.append(columns.pack(index))
            except BadShard as error:
                say_packed(error, shard.text(0, min(8, shard.size_bytes)), request.format_name)
                raise
        return columns.indexed(request.id, time.perf_counter() - began_s, index)

    def _sizes(self, request: MeasureRequest, given: Sequence[int], fds: list[int]) -> tuple[bytes, int]:
        if request.keep:
            return _produce(request, given, fds)
        return self._numbers(request, given) if request.values else self._measure(request, given), 0

    def _measure(self, request: MeasureRequest, given: Sequence[int]) -> bytes:
        codec = _codec(request.field)
        field = Field(request.field, codec)
        ndim = max(1, codec.spec("").ndim)
        shapes = np.full((len(field), ndim), -1, np.int64)
        with Shards(request.files, given) as shards:
            for row in range(len(field)):
                try:
                    shapes[row] = codec.measure(field.data(row, shards))
                except CacheUnavailable:
                    raise
                except Exception:  # noqa: BLE001 - decode meets any error again and reports it with the row
                    shapes[row] = -1
        return shapes.tobytes()

    def _numbers(self, request: MeasureRequest, given: Sequence[int]) -> bytes:
        """Return int64[rows, 2] as bytes: 1 and the number's float64 bits for rows with a number, else -1."""
        codec = _codec(request.field)
        field = Field(request.field, codec)
        found = np.full((len(field), 2), -1, np.int64)
        number = np.zeros((), np.float64)
        with Shards(request.files, given) as shards:
            for row in range(len(field)):
                try:
                    codec.decode(field.data(row, shards), number, 0)
                except CacheUnavailable:
                    raise
                except Exception:  # noqa: BLE001, S112 - after any error the row holds no number
                    continue
                found[row] = 1, number.view(np.int64)
        return found.tobytes()

    def _decode(self, request: DecodeRequest, given: Sequence[int]) -> tuple[tuple[int, int, str], ...]:
        arena = self._arena(request.arena_id)
        codecs = [_codec(message) for message in request.fields]
        large = [has_large_rows(*field) for field in zip(request.fields, codecs, strict=True)]
        for message, maps_nothing in zip(request.fields, large, strict=True):
            if not maps_nothing:
                self._expect(request.arena_id, np.frombuffer(message.out_at, np.int64) + request.slot_at)
        done = self._copy(request, given, arena, large)
        if all(rows is not None and rows.all() for rows in done):
            return ()
        fields = [Field(message, codec) for message, codec in zip(request.fields, codecs, strict=True)]
        seeds: list[int] = np.frombuffer(request.seeds, np.uint64).tolist()
        bad: list[tuple[int, int, str]] = []
        reasons = _Reasons()
        with Shards(request.files, given) as shards:
            left: list[tuple[int, Field, list[bool]]] = []
            for number, field in enumerate(fields):
                copied = done[number]
                if copied is None:
                    copied = (
                        self._copy_large(field, shards, request)
                        if large[number]
                        else field.numbers(shards, arena, request.slot_at)
                    )
                if copied is None or not copied.all():
                    left.append((number, field, [False] * len(seeds) if copied is None else copied.tolist()))
                    field.lay(arena, request.slot_at)
            for row, seed in enumerate(seeds):
                for number, field, ready in left:
                    if ready[row]:
                        continue
                    try:
                        field.decode(row, shards, arena, request.slot_at, seed)
                    except (Internal, CacheUnavailable):
                        raise
                    except Exception as error:  # noqa: BLE001 - one sample must not fail the others
                        bad.append((row, number, reasons.of(error)))
                        break
        return tuple(bad)

    def _gather(self, request: GatherRequest, given: Sequence[int]) -> bytes:
        """Copy the rows of a request; return int32[], as bytes, the rows that were not copied."""
        arena = self._arena(request.arena_id)
        self._expect(request.arena_id, np.frombuffer(request.out_at, np.int64))
        self._cached_files.begin(given)
        undone = gather(request, [_plain(column) for column in request.columns], self._cached_files, arena)
        return undone.astype("<i4").tobytes()

    def _arena(self, arena_id: int) -> mmap.mmap:
        arena = self._arenas.get(arena_id)
        if arena is None:
            why = self._refused.get(arena_id, "an unknown id")
            raise Internal(f"expected an attached arena {arena_id}, got {why}", stage="decode")
        return arena

    def _expect(self, arena_id: int, out_at: NDArray[np.int64]) -> None:
        """Map the pages between the first and the last of these places, because rows will be written there."""
        if len(out_at):
            self._pages[arena_id].expect(int(out_at.min()), int(out_at.max()))

    def _copy(
        self, request: DecodeRequest, given: Sequence[int], arena: mmap.mmap, large: Sequence[bool]
    ) -> list[NDArray[np.bool_] | None]:
        """Copy the fields that are plain copies; return for each field bool[rows], which rows are done, or None."""
        self._cached_files.begin(given)
        target = (arena, request.slot_at)
        plains = [plain_numbers(_recipe(message)) for message in request.fields]
        return [
            None if plain is None or later else copy_rows(plain, message, request.files, self._cached_files, target)
            for plain, message, later in zip(plains, request.fields, large, strict=True)
        ]

    def _copy_large(self, field: Field, shards: Shards, request: DecodeRequest) -> NDArray[np.bool_] | None:
        out = self._files[request.arena_id], len(self._arenas[request.arena_id])
        try:
            pipe = FilePipe()
        except OSError:  # too many files are open
            return None
        with pipe:
            return field.copy_large(shards, pipe, out, request.slot_at)


def _index(shard: Shard, format_name: str, url: str) -> ShardIndex:
    spec = formats.find(format_name)
    reader = None if spec is None else spec.header_reader
    if reader is not None:
        return reader.index(ShardHeaders(shard), url)
    return formats.get(format_name).index(shard.whole(), url)


def _produce(request: MeasureRequest, given: Sequence[int], fds: list[int]) -> tuple[bytes, int]:
    """Decode a field's values into a memfd, back to back; return their lengths, and how many rows the memfd covers."""
    codec = _codec(request.field)
    assert isinstance(codec, Producer)
    field = Field(request.field, codec)
    lengths = np.full(len(field), -1, np.int64)
    kept: list[NDArray[Any]] = []
    retained_rows, memory_bytes = len(lengths), _KEPT_BYTES_MAX
    with Shards(request.files, given) as shards:
        for row in range(len(lengths)):
            try:
                values = codec.produce(field.data(row, shards))
            except CacheUnavailable:
                raise
            except Exception:  # noqa: BLE001, S112 - decode meets any error again and reports it with the row
                continue
            lengths[row] = len(values)
            memory_bytes -= values.nbytes
            if memory_bytes < 0:
                retained_rows = min(retained_rows, row)
            else:
                kept.append(values)
    if sum(map(len, kept)):
        fds.append(columns.pack_values(np.concatenate(kept)))
    return lengths.tobytes(), retained_rows


def _recipe(message: FieldMessage) -> FieldRecipe:
    return FieldRecipe(message.name, (), message.codec, message.params, message.encoding)


def _plain(message: ColumnMessage) -> Plain:
    plain = plain_numbers(FieldRecipe(message.name, (), message.codec, message.params, message.encoding))
    if plain is None:
        raise Internal(f"expected a plain copy of numbers, got field {message.name!r}", stage="decode")
    return plain


def _codec(message: FieldMessage) -> SampleCodec:
    return _codec_for(_recipe(message))


_MADV_POPULATE_WRITE: Final = 23  # missing in the mmap module
_BLOCK_BYTES: Final = 1 << 20


class ArenaPages:
    """Knows which blocks of one mapped arena have pages in this process.

    A first touch in the middle of decoding costs 70 us per 224x224 image, and ``madvise`` for all rows of a request
    about half of that. All pages are not mapped when the arena is attached: in that moment the first shard arrives, and
    its transfer needs the cores.
    """

    def __init__(self, arena: mmap.mmap) -> None:
        """Take over an arena none of whose pages are mapped yet."""
        self._arena = arena
        self._mapped = bytearray(-(-len(arena) // _BLOCK_BYTES))

    def expect(self, low: int, high: int) -> None:
        """Map the blocks from byte ``low`` to byte ``high``, the last one included, if they are not mapped yet.

        Bytes outside the arena, and kernels before 5.14, are left to whoever touches the pages.
        """
        last = min(high // _BLOCK_BYTES, len(self._mapped) - 1)
        block = max(0, low // _BLOCK_BYTES)
        while block <= last:
            if self._mapped[block]:
                block += 1
                continue
            end = self._mapped.find(1, block, last + 1)
            end = last + 1 if end < 0 else end
            self._map(block, end)
            block = end

    def _map(self, first: int, end: int) -> None:
        self._mapped[first:end] = b"\1" * (end - first)
        start = first * _BLOCK_BYTES
        try:
            self._arena.madvise(_MADV_POPULATE_WRITE, start, min(end * _BLOCK_BYTES, len(self._arena)) - start)
        except OSError:
            return  # the kernel does not know the advice, or is out of memory, as the first touch will report
