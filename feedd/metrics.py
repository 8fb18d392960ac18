"""The table of all metrics: name, kind, unit, labels and help text.

Names follow Prometheus: ``feedd_<room>_<what>_<unit>[_total]``. Every gauge that counts held resources (bytes, pins,
slots) returns to zero when nothing is in use; tests check this.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from feedd.notices import NoticeKind


class Kind(enum.Enum):
    """Type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table.

    Attributes:
        values: values of its only label that are shown from the start as 0. Prometheus sees no growth of a series that
            appears with its first count.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_RETRIED = ("bad-response", "store-unavailable", "throttled")

SOURCE_REQUESTS = Metric("feedd_source_requests_total", _C, "", "requests sent to the store", ("op", "outcome"))
SOURCE_BYTES = Metric("feedd_source_bytes_total", _C, "bytes", "object bytes received from the store")
SOURCE_SECONDS = Metric("feedd_source_request_seconds", _H, "seconds", "time of one request, body included", ("op",))
SOURCE_FIRST_BYTE = Metric(
    "feedd_source_first_byte_seconds", _H, "seconds", "time from a ranged GET to the first byte of its body"
)
SOURCE_ROUND_TRIP = Metric(
    "feedd_source_round_trip_seconds",
    _H,
    "seconds",
    "TCP round trip to the store when a ranged GET's connection opened",
)
SOURCE_RETRIES = Metric("feedd_source_retries_total", _C, "", "requests that were retried", ("reason",), _RETRIED)
SOURCE_RETRY_WAIT = Metric(
    "feedd_source_retry_wait_seconds_total",
    _C,
    "seconds",
    "time requests waited before a retry",
    ("reason",),
    (*_RETRIED, "quota"),
)
SOURCE_HEDGES = Metric("feedd_source_hedges_total", _C, "", "second requests for slow parts", ("outcome",))
SOURCE_HEDGED_BYTES = Metric("feedd_source_hedged_bytes_total", _C, "bytes", "object bytes requested a second time")
PEER_FETCHES = Metric(
    "feedd_peer_fetches_total",
    _C,
    "",
    "cache entries that another daemon holds, by what became of the request to it",
    ("outcome",),
    ("read", "refused", "failed"),
)
PEER_READS = Metric(
    "feedd_peer_reads_total",
    _C,
    "",
    "ranges of such entries; all but read came from the store",
    ("outcome",),
    ("read", "gone", "failed", "paused", "damaged"),
)
PEER_READ_BYTES = Metric("feedd_peer_read_bytes_total", _C, "bytes", "object bytes received from other daemons")
PEER_SENT_BYTES = Metric("feedd_peer_sent_bytes_total", _C, "bytes", "object bytes sent to other daemons")
PEER_MEMBERS = Metric("feedd_peer_members", _G, "", "daemons that share their caches, this one included")
PEER_PAUSED = Metric("feedd_peer_paused", _G, "", "daemons that failed and are left alone for a while")
FETCH_BYTES = Metric("feedd_fetch_reserved_bytes", _G, "bytes", "bytes of parts in flight")
FETCH_PARTS = Metric("feedd_fetch_parts", _G, "", "parts in flight")
FETCH_BUSY = Metric("feedd_fetch_busy_seconds_total", _C, "seconds", "time with parts in flight, seen twice a second")
FETCH_TRANSFER_BUSY = Metric(
    "feedd_fetch_transfer_busy_seconds_total", _C, "seconds", "time transfer threads spent on bodies"
)
FETCH_PARTS_MAX = Metric("feedd_fetch_parts_max", _G, "", "parts that may be in flight, as configured")
FETCH_DAMAGED = Metric(
    "feedd_fetch_damaged_bytes_total",
    _C,
    "bytes",
    "bytes that did not match the store's checksum and were fetched again",
)
CACHE_HITS = Metric("feedd_cache_hits_total", _C, "", "shards found in the cache when they were needed")
CACHE_MISSES = Metric(
    "feedd_cache_misses_total", _C, "", "shards that had to be fetched, or whose fetch was still running"
)
CACHE_EVICTIONS = Metric("feedd_cache_evictions_total", _C, "", "shards evicted to make room")
CACHE_BYTES = Metric("feedd_cache_bytes", _G, "bytes", "disk bytes of committed entries")
CACHE_ENTRIES = Metric("feedd_cache_entries", _G, "", "committed entries")
CACHE_RESERVED = Metric("feedd_cache_reserved_bytes", _G, "bytes", "disk bytes reserved by running fills")
CACHE_PINS = Metric("feedd_cache_pins", _G, "", "pins held on entries")
CACHE_ERRORS = Metric(
    "feedd_cache_errors_total",
    _C,
    "",
    "failed cache operations",
    ("reason",),
    ("broken", "disk", "full", "prefetch", "torn", "unflushed", "unreadable", "vanished"),
)
CACHE_DISK_STATE = Metric("feedd_cache_disk_state", _G, "", "1 for the current state of the cache's disk", ("state",))
CACHE_BYPASSED = Metric("feedd_cache_bypassed_total", _C, "", "shards kept in memory because the disk cannot be used")
DECODE_SAMPLES = Metric("feedd_decode_samples_total", _C, "", "samples decoded")
DECODE_BAD_SAMPLES = Metric("feedd_decode_bad_samples_total", _C, "", "samples that could not be decoded")
DECODE_BUSY = Metric("feedd_decode_busy_seconds_total", _C, "seconds", "time workers spent on tasks")
DECODE_WORKERS = Metric("feedd_decode_workers", _G, "", "decode workers alive")
DECODE_TASKS = Metric("feedd_decode_tasks", _G, "", "tasks waiting or running")
DECODE_RESTARTS = Metric("feedd_decode_worker_restarts_total", _C, "", "decode workers replaced after they died")
DECODE_OUTDATED = Metric(
    "feedd_decode_outdated",
    _G,
    "",
    "1: feedd or a library was upgraded while the daemon runs, so new workers are refused",
)
DECODE_START_FAILURES = Metric("feedd_decode_start_failures_total", _C, "", "decode workers that could not be started")
DECODE_WANTED = Metric(
    "feedd_decode_workers_wanted", _G, "", "target number of decode workers: configured, or by demand"
)
DECODE_DEMAND = Metric("feedd_decode_demand_workers", _G, "", "busy decode workers, averaged over the last second")
DECODE_RESIZES = Metric("feedd_decode_resizes_total", _C, "", "changes of the target number of workers", ("direction",))
DECODE_RECYCLED = Metric(
    "feedd_decode_workers_recycled_total", _C, "", "decode workers replaced because of their memory"
)
SERVE_SESSIONS = Metric("feedd_serve_sessions", _G, "", "open sessions")
SERVE_LEASES = Metric("feedd_serve_leases", _G, "", "slots leased to clients or being filled")
SERVE_ARENA_BYTES = Metric("feedd_serve_arena_bytes", _G, "bytes", "memory of all arenas, until clients unmap it")
SERVE_BATCHES = Metric("feedd_serve_batches_total", _C, "", "batches sent", ("transport",))
SERVE_BATCH_BYTES = Metric("feedd_serve_batch_bytes_total", _C, "bytes", "payload of batches sent", ("transport",))
SERVE_RECLAIMED = Metric("feedd_serve_slots_reclaimed_total", _C, "", "slots reclaimed from vanished clients")
SERVE_STALE = Metric("feedd_serve_stale_releases_total", _C, "", "releases refused because of their generation")
SERVE_CREDIT_WAIT = Metric(
    "feedd_serve_credit_wait_seconds_total", _C, "seconds", "time streams waited for the trainer"
)
SERVE_BATCH_WAIT = Metric("feedd_serve_batch_wait_seconds_total", _C, "seconds", "time streams waited for a batch")
TRAINER_SECONDS = Metric(
    "feedd_trainer_seconds_total",
    _C,
    "seconds",
    "time of the trainers' loops, as their clients report",
    ("local_rank",),
)
TRAINER_WAIT = Metric(
    "feedd_trainer_wait_seconds_total",
    _C,
    "seconds",
    "time of the trainers' loops spent waiting for a batch",
    ("local_rank",),
)
QUEUE_ITEMS = Metric("feedd_queue_items", _G, "", "what waits in a queue of the daemon now", ("queue",))
QUEUE_BYTES = Metric("feedd_queue_bytes", _G, "bytes", "size of what waits in a queue now", ("queue",))
QUEUE_NONEMPTY = Metric("feedd_queue_nonempty_seconds_total", _C, "seconds", "time a queue was not empty", ("queue",))
PIPELINE_BATCH_SECONDS = Metric(
    "feedd_pipeline_batch_seconds", _H, "seconds", "time from shards acquired to batch ready"
)
PIPELINE_LISTING = Metric("feedd_pipeline_listing_opens", _G, "", "opens that wait for a listing")
PIPELINE_MADE = Metric("feedd_pipeline_made_shards_total", _C, "", "shards converted from objects", ("conversion",))
PIPELINE_MADE_BYTES = Metric(
    "feedd_pipeline_made_bytes_total", _C, "bytes", "bytes of converted shards", ("conversion",)
)
PIPELINE_MADE_SECONDS = Metric(
    "feedd_pipeline_made_seconds_total", _C, "seconds", "worker time spent on conversions", ("conversion",)
)
PIPELINE_MAKING = Metric(
    "feedd_pipeline_making_bytes", _G, "bytes", "memory of objects being converted and of shards just converted"
)
PIPELINE_EPOCHS = Metric("feedd_pipeline_epochs_total", _C, "", "epochs finished, per session")
PIPELINE_LEFT_OUT = Metric(
    "feedd_pipeline_left_out_samples_total", _C, "", "samples left out of finished epochs to keep steps equal, per rank"
)
PIPELINE_SHARED = Metric(
    "feedd_pipeline_shared_batches_total",
    _C,
    "",
    "batches of job groups, by outcome: made, taken by another job, made again for a slow job",
    ("outcome",),
)
PIPELINE_FILTERED = Metric("feedd_pipeline_filtered_samples_total", _C, "", "samples left out by the recipes' filters")
PIPELINE_QUARANTINED = Metric(
    "feedd_pipeline_quarantined_samples_total", _C, "", "bad samples written to the quarantine file"
)
PIPELINE_NOTICES = Metric(
    "feedd_pipeline_notices_total",
    _C,
    "",
    "objects, sample counts and columns that notices report as left out, not used or changed",
    ("kind",),
    tuple(kind.value for kind in NoticeKind),
)
BUILD_INFO = Metric("feedd_build_info", _G, "", "1, with the versions of feedd and Python", ("version", "python"))
DAEMON_STATE = Metric("feedd_daemon_state", _G, "", "1 for the current state of the daemon", ("state",))
DAEMON_LOOP_LAG = Metric("feedd_daemon_loop_lag_seconds", _G, "seconds", "delay of the event loop's last wake-up")
DAEMON_LOOP_DELAY = Metric(
    "feedd_daemon_loop_delay_seconds", _H, "seconds", "delay of an event loop's wake-ups, twice a second", ("loop",)
)
DAEMON_LOOP_BUSY = Metric(
    "feedd_daemon_loop_busy_seconds_total", _C, "seconds", "processor time of an event loop's thread", ("loop",)
)
LOG_DROPPED = Metric(
    "feedd_log_dropped_total",
    _C,
    "",
    "writes to standard error that failed, so that their lines are missing in the log",
)

TABLE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
