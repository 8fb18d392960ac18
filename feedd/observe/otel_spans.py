"""Exports traces with OpenTelemetry. Imported only while tracing is on; needs the extra ``feedd[otel]``."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

import structlog

from feedd import __version__
from feedd.errors import BadConfig

try:
    import requests
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
except ImportError as missing:
    raise BadConfig(
        "trace.sample needs packages that are not installed",
        object="trace.sample",
        hint="pip install 'feedd[otel]', or set trace.sample = 0",
        stage="observe",
    ) from missing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.trace import Link, Span, SpanContext
    from opentelemetry.util.types import AttributeValue

    from feedd.flow.trace_log import AttemptTrace, BatchTrace, FetchTrace, PartTrace, Period

_log = structlog.get_logger(__name__)

QUEUE_MAX: Final = 256
"""Batches that wait for their spans; further ones are left out."""
FLUSH_S: Final = 1.5
"""Longest wait for the collector when the daemon ends. The SDK alone would wait for more than ten seconds."""


class OtelSpans:
    """A ``TraceExporter``. Each chosen batch is a trace; the fetch of a shard is one too, and batches link to it.

    Args:
        provider: makes the spans.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("feedd", __version__)
        # Spans carry dates, and periods are of a clock that never jumps.
        self._offset_ns = time.time_ns() - time.monotonic_ns()  # noqa: TID251 - the date itself
        self._queue: queue.Queue[tuple[BatchTrace, Sequence[FetchTrace]] | None] = queue.Queue(QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="feedd-traces", daemon=True)
        self._thread.start()

    def export(self, batch: BatchTrace, fetches: Sequence[FetchTrace]) -> None:
        """Have the spans made by a thread: those of a fetch with many parts take milliseconds."""
        with contextlib.suppress(queue.Full):  # the thread is behind: this batch is left out
            self._queue.put_nowait((batch, fetches))

    def _run(self) -> None:
        """Make spans until the end, then send what is left; the body of the thread."""
        while (taken := self._queue.get()) is not None:
            try:
                self._make(*taken)
            except Exception:  # noqa: BLE001 - logged; the next batch gets its trace
                _log.exception("the trace of a batch cannot be made")
        self._provider.force_flush()

    def _make(self, batch: BatchTrace, fetches: Sequence[FetchTrace]) -> None:
        """Make the spans of a batch, and of fetches that no earlier batch was linked to."""
        links = [trace.Link(self._fetch(one), {"url.full": one.url}) for one in fetches]
        facts: dict[str, AttributeValue] = {
            "feedd.epoch": batch.epoch,
            "feedd.step": batch.step,
            "feedd.rank": batch.rank,
            "feedd.batches": batch.batch_count,
            "feedd.samples": batch.sample_count,
            "feedd.size_bytes": batch.size_bytes,
            "feedd.shards": len(batch.urls),
        }
        root = self._begin("batch", batch.began_s, facts)
        self._child(root, "plan", batch.began_s, batch.planned_s)
        self._child(root, "wait for shards", batch.planned_s, batch.decoding_s, links=links)
        self._child(root, "decode", batch.decoding_s, batch.made_s)
        self._child(root, "lease", batch.made_s, batch.released_s)
        root.end(self._ns(batch.released_s))

    def close(self) -> None:
        """Send what is left to the collector, for a limited time."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=FLUSH_S)
        self._thread.join(FLUSH_S)

    def _fetch(self, fetch: FetchTrace) -> SpanContext:
        """Return the span of a fetch, made when first asked for."""
        if fetch.exported is None:
            facts: dict[str, AttributeValue] = {
                "url.full": fetch.url,
                "feedd.size_bytes": fetch.size_bytes,
                "feedd.parts": fetch.part_count,
            }
            root = self._begin("fetch", fetch.period.began_s, facts)
            for part in fetch.parts:
                self._part(root, part)
            self._end(root, fetch.period)
            fetch.exported = root.get_span_context()
        context = fetch.exported
        assert isinstance(context, trace.SpanContext)
        return context

    def _part(self, fetch: Span, part: PartTrace) -> None:
        facts: dict[str, AttributeValue] = {
            "url.full": part.url,
            "feedd.range_start": part.span.start,
            "feedd.range_end": part.span.end,
            "feedd.attempts": len(part.attempts),
        }
        span = self._begin("part", part.period.began_s, facts, fetch)
        for number, attempt in enumerate(part.attempts):
            self._attempt(span, number, attempt)
        self._end(span, part.period)

    def _attempt(self, part: Span, number: int, attempt: AttemptTrace) -> None:
        progress = attempt.progress
        facts: dict[str, AttributeValue] = {
            "http.request.method": "GET",
            "http.request.resend_count": number,
            "feedd.received_bytes": progress.filled_bytes,
        }
        span = self._begin("GET", attempt.period.began_s, facts, part, trace.SpanKind.CLIENT)
        if progress.first_byte_s is not None:
            span.add_event("first byte", timestamp=self._ns(progress.first_byte_s))
        self._end(span, attempt.period)

    def _child(self, parent: Span, name: str, began_s: float, ended_s: float, links: Sequence[Link] = ()) -> None:
        self._begin(name, began_s, {}, parent, links=links).end(self._ns(ended_s))

    def _begin(
        self,
        name: str,
        began_s: float,
        facts: dict[str, AttributeValue],
        parent: Span | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> Span:
        context = trace.set_span_in_context(parent or trace.INVALID_SPAN)
        return self._tracer.start_span(name, context, kind, facts, links, self._ns(began_s))

    def _end(self, span: Span, period: Period) -> None:
        span.set_attribute("feedd.outcome", period.outcome)
        if period.outcome not in {"ok", "cancelled", ""}:
            span.set_status(trace.Status(trace.StatusCode.ERROR, period.outcome))
        span.end(self._ns(period.ended_s or period.began_s))

    def _ns(self, at_s: float) -> int:
        return int(at_s * 1e9) + self._offset_ns


def open_spans() -> OtelSpans:
    """Return an exporter to the collector that the standard ``OTEL_*`` variables name."""
    host = socket.gethostname()
    own = {"host.name": host, "service.instance.id": f"{host}-{os.getpid()}", "service.version": __version__}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        own["service.name"] = "feedd"
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(session=_session())))
    return OtelSpans(provider)


def _session() -> requests.Session | None:
    """Return a session that sends only the headers of ``OTEL_EXPORTER_OTLP_HEADERS``, and only to the collector.

    Without ``auth``, requests would send the user's password of ``~/.netrc`` in their place. Proxies and authorities
    come from the environment. None: the operator names a session of his own, by OpenTelemetry's variable.
    """
    if any(name.startswith("OTEL_") and name.endswith("_CREDENTIAL_PROVIDER") for name in os.environ):
        return None
    session = requests.Session()
    session.auth = lambda request: request
    session.max_redirects = 0
    return session
