"""Traces of batches, from the GETs of their shards to the return of their slots, as OpenTelemetry exports them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from feedd.batching.assembler import Assembler
from feedd.catalog.bucket_stores import BucketStores
from feedd.clock import SystemClock
from feedd.config import load
from feedd.daemon.wiring import open_pipeline
from feedd.errors import BadConfig
from feedd.fetch.fetch_options import SourceOptions
from feedd.flow import trace_log
from feedd.flow.trace_log import BatchTrace, TraceLog
from feedd.observe import otel_spans
from feedd.observe.recorder import NullRecorder
from feedd.values import ByteRange, Cursor, Produced
from tests.budget import PATIENT_S
from tests.fakes.s3.faults import slow_down
from tests.fakes.s3.server import S3Server
from tests.fakes.specs import open_spec
from tests.fakes.tars import tar_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from feedd.protocols import FeedSession

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_credentials")]
SAMPLES: Final = 8
PAD_BYTES: Final = 50_000


@pytest.fixture
def s3() -> Iterator[S3Server]:
    """A server with two shards; the first GET of one is refused."""
    with S3Server() as server:
        for shard in range(2):
            numbers = range(shard * SAMPLES, (shard + 1) * SAMPLES)
            data = tar_bytes([(f"{n}", {"cls": b"%d" % n, "bin": bytes(PAD_BYTES)}) for n in numbers])
            server.put("data", f"train/{shard}.tar", data)
        server.script("data", "train/1.tar", slow_down(0.01))
        yield server


class Rig:
    """A pipeline whose spans stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.session: FeedSession

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return the spans of that name, in the order in which they began."""
        found = [span for span in self.exporter.get_finished_spans() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    async def take(self, step: int) -> bool:
        """Make the batch of a step and give its slot back; False: the epoch is over."""
        made = await self.session.produce(Cursor(0, step))
        if not isinstance(made, Produced):
            return False
        self.session.release(made.slot)
        return True


@asynccontextmanager
async def running(s3: S3Server, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: str) -> AsyncIterator[Rig]:
    """Open a pipeline and a session over the shards."""
    rig = Rig()
    monkeypatch.setattr(otel_spans, "open_spans", lambda: otel_spans.OtelSpans(rig.provider))
    texts = {"cache.dir": str(folder), "cache.size": "64MiB", "decode.workers": "1", **settings}
    environment = {"FEEDD_S3": json.dumps({"*": {"endpoint_url": s3.url}})}
    config = load({name: (value, "the test") for name, value in texts.items()}, environment).config
    spec = open_spec(urls=("s3://data/train/",), fields=(("cls", "int"),), batch_size=SAMPLES)
    async with open_pipeline(config, NullRecorder(), SystemClock()) as pipeline:
        rig.session = await pipeline.open(spec)
        try:
            yield rig
        finally:
            await rig.session.close()
    rig.provider.shutdown()


def _facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def _ids(spans: list[ReadableSpan]) -> set[int]:
    return {span.context.span_id for span in spans}


async def test_a_batch_leads_to_its_requests(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has its stages as children, and links to the fetches of its shards; a GET sent again shows both."""
    async with running(s3, tmp_path, monkeypatch, **{"trace.sample": "1"}) as rig:
        assert [await rig.take(step) for step in (0, 1, 2, 0)] == [True, True, False, True]
    first, second, again = rig.spans("batch")
    assert [_facts(span)["feedd.step"] for span in (first, second, again)] == [0, 1, 0]
    assert _facts(first)["feedd.samples"] == SAMPLES
    stages = [
        span for span in rig.exporter.get_finished_spans() if span.parent and span.parent.span_id in _ids([first])
    ]
    assert [span.name for span in stages] == ["plan", "wait for shards", "decode", "lease"]
    times = [time for span in stages for time in (span.start_time, span.end_time)]
    assert times == sorted(times, key=lambda time: time or 0), "one stage begins where another ends"
    assert (times[0], times[-1]) == (first.start_time, first.end_time)

    fetches = {str(_facts(span)["url.full"]): span for span in rig.spans("fetch")}
    assert fetches.keys() == {f"s3://data/train/{shard}.tar" for shard in range(2)}
    assert len(rig.spans("fetch")) == 2, "a fetch is exported once"
    for batch, shard in ((first, 0), (second, 1), (again, 0)):
        (wait,) = [one for one in rig.spans("wait for shards") if one.parent and one.parent.span_id in _ids([batch])]
        (link,) = wait.links
        assert link.context.span_id in _ids([fetches[f"s3://data/train/{shard}.tar"]])
    (part,) = [span for span in rig.spans("part") if "1.tar" in str(_facts(span)["url.full"])]
    assert _facts(part)["feedd.attempts"] == 2
    gets = [span for span in rig.spans("GET") if span.parent and span.parent.span_id in _ids([part])]
    assert [_facts(span)["feedd.outcome"] for span in gets] == ["throttled", "ok"]
    assert [_facts(span)["http.request.resend_count"] for span in gets] == [0, 1]
    assert [span.status.is_ok for span in gets] == [False, True]
    size = _facts(part)["feedd.range_end"] - _facts(part)["feedd.range_start"]
    assert _facts(gets[1])["feedd.received_bytes"] == size > SAMPLES * PAD_BYTES
    assert [event.name for event in gets[1].events] == ["first byte"]


async def test_decoding_begins_when_the_shards_are_there(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for shards ends before the slot is filled, and decoding lasts until it is."""
    began_s: list[float] = []
    fill = Assembler.fill

    async def noted(self: Assembler, *arguments: Any, **options: Any) -> Any:
        began_s.append(time.monotonic())
        return await fill(self, *arguments, **options)

    monkeypatch.setattr(Assembler, "fill", noted)
    batches: list[BatchTrace] = []
    monkeypatch.setattr(otel_spans.OtelSpans, "export", lambda _, batch, fetches: batches.append(batch))
    async with running(s3, tmp_path, monkeypatch, **{"trace.sample": "1"}) as rig:
        assert await rig.take(0)
    (batch,) = batches
    assert batch.planned_s <= batch.decoding_s <= began_s[-1] <= batch.made_s <= batch.released_s


async def test_a_share_of_the_batches_is_exported(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that are not chosen leave no span, and neither do fetches that only they used."""
    monkeypatch.setattr(TraceLog, "wants", lambda _, epoch, step: step == 1)
    async with running(s3, tmp_path, monkeypatch, **{"trace.sample": "0.5"}) as rig:
        assert [await rig.take(step) for step in range(2)] == [True, True]
    assert [_facts(span)["feedd.step"] for span in rig.spans("batch")] == [1]
    assert [_facts(span)["url.full"] for span in rig.spans("fetch")] == ["s3://data/train/1.tar"]


def test_the_same_steps_are_chosen_everywhere() -> None:
    """The choice depends on epoch and step only, and meets the share."""
    none, some, every = (TraceLog(share, exporter=None) for share in (0.0, 0.1, 1.0))  # type: ignore[arg-type]  # unused
    steps = [(epoch, step) for epoch in range(4) for step in range(2500)]
    assert not any(none.wants(*at) for at in steps)
    assert all(every.wants(*at) for at in steps)
    assert sum(some.wants(*at) for at in steps) == pytest.approx(1000, rel=0.15)
    assert [some.wants(*at) for at in steps] == [TraceLog(0.1, exporter=None).wants(*at) for at in steps]  # type: ignore[arg-type]  # unused


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old fetches are forgotten, and of a large fetch the parts beyond a limit are only counted."""
    monkeypatch.setattr(trace_log, "FETCHES_MAX", 3)
    monkeypatch.setattr(trace_log, "PARTS_MAX", 2)
    log = TraceLog(1.0, exporter=None)  # type: ignore[arg-type]  # unused
    for number in range(9):
        with log.fetching(f"s3://data/{number}", 10):
            for _ in range(5):
                with trace_log.part_traced("s3://data/x", ByteRange(0, 10)):
                    pass
    assert list(log._fetches) == ["s3://data/6", "s3://data/7", "s3://data/8"]
    assert {(len(one.parts), one.part_count) for one in log._fetches.values()} == {(2, 5)}


async def test_stores_are_wrapped_only_while_it_is_on() -> None:
    """Reads are noted above and below the wrappers that retry, or not at all."""
    for traced, count in ((False, 0), (True, 2)):
        stores = BucketStores(SourceOptions(traced=traced), NullRecorder(), SystemClock())
        assert repr(stores.of("s3://data")).count("TracingStore(") == count
        await stores.close()


def test_nothing_is_imported_while_it_is_off() -> None:
    """A daemon without traces loads neither OpenTelemetry nor a module of its own for them."""
    code = """
import asyncio, sys
import feedd.daemon.life
from feedd.daemon.wiring import _tracing
async def main():
    async with _tracing(0.0) as traces:
        assert traces is None
asyncio.run(main())
print([name for name in sys.modules if "opentelemetry" in name or (name.startswith("feedd") and "trac" in name)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def _batch() -> BatchTrace:
    now_s = time.monotonic()
    return BatchTrace(0, 7, 0, [], now_s, now_s, now_s, now_s, released_s=now_s)


def test_the_standard_variables_name_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans go by HTTP to the endpoint of OTEL_EXPORTER_OTLP_ENDPOINT, before the daemon ends."""
    posts: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        spans = otel_spans.open_spans()
        spans.export(_batch(), [])
        spans.close()
        spans._provider.shutdown()
        server.shutdown()
        serving.join()
    ((path, body),) = posts
    assert path == "/v1/traces"
    for text in (b"wait for shards", b"feedd.step", b"deployment.environment", b"service.version"):
        assert text in body


def test_a_collector_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be sent in time is given up."""
    monkeypatch.setattr(otel_spans, "FLUSH_S", 0.05)
    answers = threading.Event()
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(provider, "force_flush", answers.wait)
    spans = otel_spans.OtelSpans(provider)
    spans.close()
    assert spans._thread.is_alive()
    answers.set()
    spans._thread.join()


def test_spans_are_made_by_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who hands over a batch never waits: batches are left out while the thread is behind, and it survives errors."""
    monkeypatch.setattr(otel_spans, "QUEUE_MAX", 2)
    began, goes_on = threading.Event(), threading.Event()
    made: list[str] = []

    def make(_: otel_spans.OtelSpans, batch: BatchTrace, fetches: object) -> None:
        made.append(threading.current_thread().name)
        began.set()
        goes_on.wait()
        raise ValueError("an error of one batch")

    monkeypatch.setattr(otel_spans.OtelSpans, "_make", make)
    spans = otel_spans.OtelSpans(TracerProvider(shutdown_on_exit=False))
    spans.export(_batch(), [])
    assert began.wait(PATIENT_S)
    for _ in range(9):
        spans.export(_batch(), [])
    goes_on.set()
    spans.close()
    spans._thread.join()  # close waits for so long only, and a log line with its stack takes a busy machine longer
    assert made == ["feedd-traces"] * 3


def test_without_the_packages_the_option_is_refused() -> None:
    """The error names the option and the extra to install."""
    code = "import sys; sys.modules['opentelemetry'] = None; import feedd.observe.otel_spans"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENT_S, check=False)
    assert BadConfig.__name__ in done.stderr
    assert "trace.sample needs packages that are not installed" in done.stderr
