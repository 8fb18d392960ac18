"""A shard, an arena and a pool around them, for tests that decode in real workers."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from feedd import metrics
from feedd.batching.gather import gather
from feedd.batching.slot_layout import Layout, lay_out
from feedd.recipe.recipe import needs_measure, parse_field, spec_of
from feedd.values import FieldKind
from feedd.workers.pool import DecodePool
from feedd.workers.work import DecodeOptions, DecodeTask, FieldWork
from tests.budget import PATIENT_S
from tests.fakes.fetchers import until
from tests.fakes.tally import TallyRecorder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from feedd.shard_index import ShardIndex
    from feedd.values import ShardFile
    from feedd.workers.work import DecodeResult

ARENA_ID = 3
SLOT_AT = 8192


class Rig:
    """Decodes rows of shards into one slot and returns its bytes."""

    def __init__(self, pool: DecodePool, recorder: TallyRecorder, files: Sequence[ShardFile], size_bytes: int) -> None:
        self.pool = pool
        self.recorder = recorder
        self.files = tuple(files)
        self.indexes: list[ShardIndex] = []
        self.size_bytes = size_bytes
        self.fd = os.memfd_create("test-arena", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size_bytes)
        pool.attach(ARENA_ID, self.fd, size_bytes)

    async def started(self) -> None:
        """Return when a worker has answered for the first time since the call: others are then in the middle."""
        before = self.recorder.total(metrics.DECODE_BUSY)
        await until(lambda: self.recorder.total(metrics.DECODE_BUSY) > before)

    async def task(self, fields: Mapping[str, str], rows: int = 0) -> tuple[DecodeTask, Layout]:
        """Plan the first ``rows`` rows (all: 0), shards interleaved."""
        if not self.indexes:
            self.indexes = [await self.pool.index(file, "tar") for file in self.files]
        pairs = sorted((ordinal, no) for no, i in enumerate(self.indexes) for ordinal in range(i.sample_count))
        pairs = pairs[: rows or None]
        shard_no = np.array([no for _, no in pairs], np.int32)
        ordinal = np.array([ordinal for ordinal, _ in pairs], np.int64)
        recipes = [parse_field(name, text) for name, text in fields.items()]
        resolved = await self.pool.resolve(self.files[0], self.indexes[0], recipes)
        spans = gather(self.indexes, shard_no, ordinal, resolved)
        shapes = {}
        for recipe, span in zip(resolved, spans, strict=True):
            if needs_measure(recipe):
                work = FieldWork(recipe, shard_no, span.start, span.size, span.start)
                shapes[recipe.name] = await self.pool.measure(self.files, work)
            elif spec_of(recipe).kind is not FieldKind.DENSE:
                shapes[recipe.name] = span.size
        layout = lay_out([spec_of(recipe) for recipe in resolved], len(pairs), shapes)
        assert SLOT_AT + layout.size_bytes <= self.size_bytes
        fields_work = tuple(
            FieldWork(recipe, shard_no, span.start, span.size, place.out_at, place.shapes)
            for recipe, span, place in zip(resolved, spans, layout.fields, strict=True)
        )
        seeds = ordinal.astype(np.uint64) * np.uint64(7919)
        return DecodeTask(self.files, ARENA_ID, SLOT_AT, fields_work, seeds), layout

    async def decode(self, fields: Mapping[str, str], rows: int = 0) -> tuple[DecodeResult, dict[str, list[bytes]]]:
        """Decode, and return each field's bytes row by row."""
        task, layout = await self.task(fields, rows)
        os.pwrite(self.fd, b"\xa5" * layout.size_bytes, SLOT_AT)
        result = await self.pool.decode(task)
        return result, self.read(layout)

    def read(self, layout: Layout) -> dict[str, list[bytes]]:
        """Return what the slot holds, row by row."""
        slot = os.pread(self.fd, layout.size_bytes, SLOT_AT)
        read = {}
        for place in layout.fields:
            end = place.region.values_at + place.region.values_bytes
            edges = [*place.out_at.tolist(), end]
            read[place.spec.name] = [slot[a:b] for a, b in pairwise(edges)]
        return read


@asynccontextmanager
async def decoding(files: Sequence[ShardFile], options: DecodeOptions, size_bytes: int = 1 << 22) -> AsyncIterator[Rig]:
    """Run a pool with an attached arena. On a busy machine a worker's start and chunks take minutes."""
    usual = DecodeOptions()
    if options.start_deadline_s == usual.start_deadline_s:
        options = replace(options, start_deadline_s=PATIENT_S)
    if options.task_deadline_s == usual.task_deadline_s:
        options = replace(options, task_deadline_s=PATIENT_S)
    recorder = TallyRecorder()
    async with DecodePool(options, recorder) as pool:
        rig = Rig(pool, recorder, files, size_bytes)
        try:
            yield rig
        finally:
            pool.detach(ARENA_ID)
            os.close(rig.fd)
