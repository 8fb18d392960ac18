from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import uvloop

from feedd import metrics
from feedd.codecs.image import decode_image
from feedd.errors import BadRecipe, BadRequest, BadShard, CacheUnavailable, Draining, Internal, Unsupported, WorkerLost
from feedd.recipe.params import params_of
from feedd.recipe.recipe import parse_field
from feedd.recipe.slow_imports import slow_module
from feedd.values import ObjectRef, ShardFile
from feedd.workers.pool import DecodePool
from feedd.workers.work import CHUNK_ROWS_MAX, DecodeOptions
from tests.fakes.decoding import ARENA_ID, decoding
from tests.fakes.fetchers import until
from tests.fakes.tally import TallyRecorder
from tests.fakes.tars import image_samples, shard_file, tar_bytes
from tests.unit.formats.test_strided import safetensors

pytestmark = pytest.mark.slow

FIELDS = {"jpg": "image:48x40:random", "cls": "int", "json": "json"}


@pytest.fixture
def shards(tmp_path: Path) -> list[ShardFile]:
    """Three shards of 20 labelled images each."""
    return [
        shard_file(tmp_path / f"{n}.tar", tar_bytes(image_samples(20, seed=n, height=60, width=80)), data_at=4096)
        for n in range(3)
    ]


async def test_values_arrive_in_their_rows(shards: list[ShardFile]) -> None:
    """Each row of each field holds what a direct decode of that sample gives, whatever shard it came from."""
    samples = [image_samples(20, seed=n, height=60, width=80) for n in range(3)]
    async with decoding(shards, DecodeOptions(workers=2)) as rig:
        result, rows = await rig.decode({"jpg": "image:32x32", "cls": "int", "json": "json"})
    assert result.bad == ()
    assert result.busy_s > 0
    for row in range(60):
        fields = samples[row % 3][row // 3][1]
        assert rows["jpg"][row] == decode_image(fields["jpg"], 32, 32).tobytes()
        assert np.frombuffer(rows["cls"][row], np.int64)[0] == int(fields["cls"])
        assert json.loads(rows["json"][row]) == json.loads(fields["json"])


def _has_loaded(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


async def test_workers_load_what_is_said_to_come(shards: list[ShardFile]) -> None:
    """What codecs are slow to import is there before the first sample, however often it was said."""
    wanted = {"jpg": "image:32x32", "cls": "int"}
    async with decoding(shards, DecodeOptions(workers=2)) as rig:
        pids = rig.pool.worker_pids
        assert not any(_has_loaded(pid, "cv2") for pid in pids)
        rig.pool.prepare([parse_field(*item) for item in wanted.items()] * 10_000)
        await until(lambda: all(_has_loaded(pid, "cv2") for pid in pids))
        result, _ = await rig.decode(wanted)
        assert result.bad == ()
        assert rig.pool.worker_pids == pids


async def test_workers_of_a_standby_load_all_that_is_slow() -> None:
    """A pool that is warmed loads the libraries of images and sound before anybody asks for a field."""
    async with DecodePool(DecodeOptions(workers=2), TallyRecorder()) as pool:
        pool.warm()
        for library in ("cv2", "sndfile"):
            await until(lambda: all(_has_loaded(pid, library) for pid in pool.worker_pids), 30.0)  # noqa: B023 - at once


async def test_workers_load_what_converters_need() -> None:
    """Idle workers load Parquet's library; others follow once, while the first object is fetched."""
    async with DecodePool(DecodeOptions(workers=2), TallyRecorder()) as pool:
        await until(lambda: all(_has_loaded(pid, "libparquet") for pid in pool.worker_pids), 30.0)
        assert not any(_has_loaded(pid, "/_csv.") for pid in pool.worker_pids)
        pool.prepare(converters=("csv",))
        await until(lambda: all(_has_loaded(pid, "/_csv.") for pid in pool.worker_pids), 30.0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool._dispatch, "broadcast", lambda _: pytest.fail("said twice"))
            pool.prepare(converters=("csv",))


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("int", ""),
        ("image:raw", ""),
        ("image:8x8", "image"),
        ("image", "image"),
        ('{"decode": "image", "size": [8, 8], "mode": "gray"}', "picture"),
        ("audio", "audio"),
    ],
)
def test_what_is_slow_to_load(text: str, module: str) -> None:
    """The module that a recipe's codec is in, where its libraries take long to import."""
    assert slow_module(params_of(parse_field("x", text))) == module


@pytest.mark.parametrize(("workers", "chunk_rows"), [(1, 64), (2, 32), (3, 7), (2, 1)])
async def test_results_do_not_depend_on_workers_or_chunks(
    shards: list[ShardFile], workers: int, chunk_rows: int
) -> None:
    """The slot's bytes are the same for any number of workers and any size of chunks."""
    async with decoding(shards, DecodeOptions(workers=1)) as rig:
        _, expected = await rig.decode(FIELDS)
    async with decoding(shards, DecodeOptions(workers=workers, chunk_rows=chunk_rows)) as rig:
        result, rows = await rig.decode(FIELDS)
    assert (result.bad, rows) == ((), expected)


async def test_ragged_images_are_measured_and_decoded(tmp_path: Path) -> None:
    """Images of their own sizes arrive whole, back to back; those that cannot be read are bad rows with a reason."""
    samples = image_samples(3, height=20, width=30) + image_samples(2, seed=1, height=31, width=17)
    samples[1][1]["jpg"] = b"no image"
    samples = [(f"{n}", fields) for n, (_, fields) in enumerate(samples)]
    async with decoding([shard_file(tmp_path / "a.tar", tar_bytes(samples))], DecodeOptions()) as rig:
        result, rows = await rig.decode({"jpg": "image"})
    assert [len(row) for row in rows["jpg"]] == [1800, 0, 1800, 1581, 1581]
    assert [(bad.row, bad.field) for bad in result.bad] == [(1, "jpg")]
    assert "expected a JPEG, PNG, WebP, TIFF, AVIF, JPEG 2000 or BMP image" in result.bad[0].reason


async def test_npy_fields_are_pinned_by_their_first_sample(tmp_path: Path) -> None:
    """Dtype and ndim come from the first array; one of another dtype is a bad row."""
    samples = []
    for n, array in enumerate((np.arange(6.0).reshape(2, 3), np.ones((1, 4)), np.ones((1, 4), np.int32))):
        buffer = io.BytesIO()
        np.save(buffer, array)
        samples.append((f"{n}", {"npy": buffer.getvalue()}))
    async with decoding([shard_file(tmp_path / "a.tar", tar_bytes(samples))], DecodeOptions()) as rig:
        result, rows = await rig.decode({"npy": "npy"})
        assert (await rig.task({"npy": "npy"}))[0].fields[0].recipe.params == '{"dtype":"float64","ndim":2}'
    assert rows["npy"][:2] == [np.arange(6.0).tobytes(), np.ones(4).tobytes()]
    assert [(bad.row, bad.reason) for bad in result.bad] == [(2, "expected float64 with 2 dimensions, got int32[1, 4]")]


async def test_missing_fields_are_bad_rows(tmp_path: Path) -> None:
    """A sample without a wanted field is reported by row, field and reason; the others are decoded and counted."""
    samples = [("a", {"cls": b"1"}), ("b", {"txt": b"x"}), ("c", {"cls": b"3", "txt": b"y"})]
    async with decoding([shard_file(tmp_path / "a.tar", tar_bytes(samples))], DecodeOptions()) as rig:
        result, rows = await rig.decode({"cls": "int"})
        assert [(bad.row, bad.field) for bad in result.bad] == [(1, "cls")]
        assert [np.frombuffer(rows["cls"][row], np.int64)[0] for row in (0, 2)] == [1, 3]
        assert rig.recorder.total(metrics.DECODE_SAMPLES) == 2
        assert rig.recorder.total(metrics.DECODE_BAD_SAMPLES) == 1
        assert rig.recorder.total(metrics.DECODE_TASKS) == 0
        assert rig.recorder.total(metrics.DECODE_BUSY) > 0
    assert rig.recorder.total(metrics.DECODE_WORKERS) == 0
    assert rig.recorder.total(metrics.DECODE_RESTARTS) == 0


async def test_errors_of_workers_arrive_as_they_were_raised(tmp_path: Path) -> None:
    """BadShard, Unsupported, CacheUnavailable and BadRecipe keep class, object and message; the pool goes on."""
    noise = shard_file(tmp_path / "noise.tar", b"noise" * 1000)
    gone = ShardFile(ObjectRef("s3://bucket", "gone.tar", 10, "e"), str(tmp_path / "gone.tar"), 0)
    good = shard_file(tmp_path / "good.tar", tar_bytes([("a", {"cls": b"1"})]))
    async with DecodePool(DecodeOptions(), TallyRecorder()) as pool:
        with pytest.raises(BadShard, match=r"at byte 0.*noise\.tar"):
            await pool.index(noise, "tar")
        with pytest.raises(CacheUnavailable, match=r"gone\.tar"):
            await pool.index(gone, "tar")
        with pytest.raises(Unsupported, match=r"one of the formats .*\btar\b"):
            await pool.index(good, "beton")
        index = await pool.index(good, "tar")
        with pytest.raises(BadRecipe, match="expected one of cls, got png"):
            await pool.resolve(good, index, [parse_field("png", "npy")])


async def test_a_task_that_cannot_be_served_fails_as_a_whole(shards: list[ShardFile]) -> None:
    """An arena that is not attached, or files that are not there, fail the call; later calls are served."""
    async with decoding(shards, DecodeOptions(workers=2, chunk_rows=4)) as rig:
        task, _ = await rig.task(FIELDS)
        rig.pool.detach(ARENA_ID)
        with pytest.raises(Internal, match="attached"):
            await rig.pool.decode(task)
        rig.pool.attach(ARENA_ID, rig.fd, rig.size_bytes)
        assert (await rig.pool.decode(task)).bad == ()
        broken = type(task)(task.files[:2], task.arena_id, task.slot_at, task.fields, task.seeds)
        with pytest.raises(Internal, match="IndexError"):
            await rig.pool.decode(broken)
        assert (await rig.pool.decode(task)).bad == ()


async def test_requests_too_large_for_a_packet_are_divided(tmp_path: Path) -> None:
    """Hundreds of fields make chunks of fewer rows; a single row too large is refused, not sent."""
    fields = {f"f{n:03d}": b"x" for n in range(200)}
    file = shard_file(tmp_path / "a.tar", tar_bytes((f"{n}", fields) for n in range(70)))
    recipes = dict.fromkeys(fields, "bytes")
    async with decoding([file], DecodeOptions(workers=2, chunk_rows=CHUNK_ROWS_MAX)) as rig:
        result, rows = await rig.decode(recipes)
        assert result.bad == ()
        assert all(row == b"x" for name in fields for row in rows[name])
        task, _ = await rig.task(recipes, rows=1)
        huge = type(task)(task.files, task.arena_id, task.slot_at, task.fields * 20, task.seeds)
        with pytest.raises(BadRequest, match="fewer fields"):
            await rig.pool.decode(huge)


async def test_an_index_too_large_for_a_packet_is_an_answer(tmp_path: Path) -> None:
    """Names of very many fields end no worker: they are refused, and the next shard is indexed."""
    tensors = {f"a_rather_long_name_of_a_tensor_{number}": np.ones(1, np.float32) for number in range(4000)}
    wide = shard_file(tmp_path / "wide", safetensors(tensors))
    async with decoding([wide], DecodeOptions(workers=1)) as rig:
        before = rig.pool.worker_pids
        with pytest.raises(BadShard, match="thousands of fields"):
            await rig.pool.index(wide, "safetensors")
        assert rig.pool.worker_pids == before


async def test_several_tasks_share_the_workers(shards: list[ShardFile], no_blocked_loop: None) -> None:
    """Concurrent calls of all kinds finish, each with its own result."""
    async with decoding(shards, DecodeOptions(workers=2, chunk_rows=8)) as rig:
        task, _ = await rig.task(FIELDS)
        async with asyncio.TaskGroup() as group:
            decodes = [group.create_task(rig.pool.decode(task)) for _ in range(6)]
            indexes = [group.create_task(rig.pool.index(shards[n % 3], "tar")) for n in range(6)]
        assert all(call.result().bad == () for call in decodes)
        assert [call.result().sample_count for call in indexes] == [20] * 6


async def test_leaving_ends_all_workers(shards: list[ShardFile]) -> None:
    """After the context no worker process exists, also when its body raised; calls then are refused."""
    async with DecodePool(DecodeOptions(workers=3), TallyRecorder()) as pool:
        pids = pool.worker_pids
        assert len(set(pids)) == 3
        assert all(os.getsid(pid) == pid for pid in pids)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(Draining):
        await pool.index(shards[0], "tar")
    with pytest.raises(ZeroDivisionError):
        async with DecodePool(DecodeOptions(), TallyRecorder()) as pool:
            raise ZeroDivisionError


async def test_a_worker_that_cannot_start_is_an_error_at_entry() -> None:
    """A command that dies, hangs or does not exist makes entering raise WorkerLost, and leaves nothing behind."""
    hangs = ("sh", "-c", "exec sleep 60")  # what the pool appends goes to sh
    commands: list[tuple[tuple[str, ...], float]] = [(("false",), 20.0), (hangs, 0.2), (("/nonexistent/worker",), 20.0)]
    for command, deadline_s in commands:
        with pytest.raises(WorkerLost, match="start"):
            async with DecodePool(DecodeOptions(command=command, start_deadline_s=deadline_s), TallyRecorder()):
                pytest.fail("entered without a worker")


_SECRETS = (
    "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_SAS_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "HTTPS_PROXY",
    "https_proxy",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "DATABASE_URL",
    "MY_PASSPHRASE",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "FEEDD_S3",
    "FEEDD_FETCH__PROXY",
    "SENTRY_DSN",
    "KUBECONFIG",
    "SSH_AUTH_SOCK",
    "LC_PASSWORD",
    "LC_TIME_TOKEN",
    "PYTHON_API_TOKEN",
    "PYTHON_KEYRING_KEY",
    "PATH_TOKEN",
    "HOME_TOKEN",
    "path",
    "RUST_TOKEN",
    "LD_TOKEN",
    "_FEEDD_TOKENIZERS_KEY",
)
_PASSED = (
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "OMP_SCHEDULE",
    "NUMBA_CACHE_DIR",
    "OPENCV_IO_MAX_IMAGE_PIXELS",
    "MALLOC_ARENA_MAX",
    "PYTHONHASHSEED",
    "_FEEDD_TOKENIZERS",
)
_NOTES_ENVIRONMENT = """
import json, os, runpy, sys
with open({path!r}, "w") as file:
    json.dump(dict(os.environ), file)
with open("/proc/self/environ", "rb") as file, open({path!r} + ".proc", "wb") as copy:
    copy.write(file.read())
runpy.run_module("feedd.workers.worker", run_name="__main__", alter_sys=True)
"""


async def test_workers_have_only_the_variables_on_a_list(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker gets no variable of the daemon that may hold a secret, and those that it needs or the operator names."""
    for name in _SECRETS:
        monkeypatch.setenv(name, f"verysecret-{name}")
    for name in _PASSED:
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("MY_MODEL", "/models/a")
    notes = tmp_path / "environment.json"
    command = (sys.executable, "-P", "-c", _NOTES_ENVIRONMENT.format(path=str(notes)))
    async with DecodePool(DecodeOptions(nice=3, environment=("MY_MODEL",), command=command), TallyRecorder()) as pool:
        (pid,) = pool.worker_pids
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 3
    seen = json.loads(notes.read_text())
    assert set(_SECRETS) & set(seen) == set()
    assert "verysecret" not in notes.read_text()
    assert b"verysecret" not in notes.with_suffix(".json.proc").read_bytes()
    assert {name: seen.get(name) for name in _PASSED} == dict.fromkeys(_PASSED, "0")
    assert (seen["MY_MODEL"], seen["ARROW_DEFAULT_MEMORY_POOL"], seen["OMP_NUM_THREADS"]) == (
        "/models/a",
        "system",
        "1",
    )


@pytest.fixture(scope="module")
def _libuv() -> None:
    """Have libuv open the pipe that it keeps for the life of the process before anybody counts descriptors."""
    uvloop.run(asyncio.sleep(0))


@pytest.mark.usefixtures("_libuv")
def test_the_pool_runs_on_uvloop(shards: list[ShardFile]) -> None:
    """The daemon's loop is uvloop: start, decode, a worker's death and close work there too."""

    async def main() -> None:
        async with decoding(shards, DecodeOptions(workers=2, chunk_rows=4)) as rig:
            _, expected = await rig.decode(FIELDS)
            os.kill(rig.pool.worker_pids[0], signal.SIGKILL)
            result, rows = await rig.decode(FIELDS)
            assert (result.bad, rows) == ((), expected)

    uvloop.run(main())
