"""``feedd plan``: which node gets which keys and bytes, how well the order mixes, and what a whole job would do.

It downloads no data.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from feedd.cli.flags import CacheSizeFlag, ConfigFlag, Flags, JsonFlag, SetFlag, WorkersFlag, fields_of, size_of
from feedd.cli.report import log_without_notices, notice_facts, print_json, print_table, say, say_notices
from feedd.cli.running import open_stores, run_async
from feedd.dataset.assignment import Assignment
from feedd.dataset.sharding import SAMPLE, assign_all, check_mode
from feedd.errors import BadConfig, BadRequest
from feedd.notices import notices_of
from feedd.ordering.epoch import EpochOptions
from feedd.ordering.quality import mix
from feedd.units import format_count, format_duration, format_size, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.config import Config, Effective
    from feedd.dataset.listing import Listing
    from feedd.simulation.scenario import JobModel, NodeModel, Scenario, StoreModel
    from feedd.simulation.simulation_report import SimulationReport
    from feedd.values import ObjectRef

    Origins = list[tuple[str, str, str]]

_PAGE_OBJECTS: Final = 1000
_SYNTHETIC_ROOT: Final = "s3://simulated"
_KEY_BYTES: Final = len("00000000.tar")
_JOB = "Simulation: the job, for --simulate"
_MODEL = "Simulation: store and machine, for --simulate"
_DATA = "Simulation: data that does not exist, instead of URL"

_job, _model, _data = (partial(typer.Option, rich_help_panel=panel) for panel in (_JOB, _MODEL, _DATA))

UrlsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="URL", help="s3://bucket/prefix/, objects, manifest+s3://… or augmented+s3://…"),
]
NodesFlag = Annotated[int, typer.Option("--nodes", min=1, max=65536, help="Number of nodes that share the data.")]
ShardingFlag = Annotated[str, typer.Option("--sharding", help="key, size or replicated; with --simulate also sample.")]
BatchSizeFlag = Annotated[int, typer.Option("--batch-size", min=1, help="Samples per step of a rank.")]
WindowShardsFlag = Annotated[
    int,
    typer.Option("--window-shards", min=0, help="Shards per shuffle window; 0: the daemon's shuffle.window_shards."),
]
SampleSizeFlag = Annotated[
    str, typer.Option("--sample-size", help="Mean bytes of a sample, if samples are not counted.")
]
KeysFlag = Annotated[bool, typer.Option("--keys", help="Print node and key of every object instead.")]
SimulateFlag = Annotated[bool, _job("--simulate", help="Run the whole job in virtual time, and print its figures.")]
RanksFlag = Annotated[int, _job("--ranks", min=1, max=1024, help="Ranks per node.")]
EpochsFlag = Annotated[int, _job("--epochs", min=1, max=1000, help="Number of epochs.")]
StepTimeFlag = Annotated[str, _job("--step-time", help="Time that a trainer works on a batch.")]
FieldsFlag = Annotated[
    str,
    typer.Option(
        "--fields",
        metavar="JSON",
        help="What to decode; decides the spans of token files, and the bytes of a simulated batch.",
    ),
]
BatchesFlag = Annotated[int, _job("--prefetch", min=0, max=1024, help="Batches in advance of a rank; 0: auto.")]
SeedFlag = Annotated[int, _job("--seed", min=0, help="Seed of the order.")]
SimulatedNodesFlag = Annotated[
    int,
    _job(
        "--simulated-nodes",
        min=1,
        help="Nodes that are really simulated: the fullest, the first, the last, others at random.",
    ),
]
PngFlag = Annotated[Path | None, _job("--png", help="Write charts to this file.")]
LatencyFlag = Annotated[str, _model("--latency", help="Time to the first byte of an answer.")]
BandwidthFlag = Annotated[str, _model("--bandwidth", help="Bytes per second of a node's network link.")]
ConnectionFlag = Annotated[str, _model("--connection-bandwidth", help="Bytes per second of one request at most.")]
RequestLimitFlag = Annotated[
    float,
    _model(
        "--request-limit", min=0, help="Requests per second that the store serves to all nodes together; 0: any number."
    ),
]
DecodeTimeFlag = Annotated[str, _model("--decode-time", help="CPU time of a worker for one sample.")]
OpenTimeFlag = Annotated[str, _model("--open-time", help="Time of an open besides requests, shards and batches.")]
GetPriceFlag = Annotated[float, _model("--get-price", min=0, help="Price of 1,000 GETs or HEADs.")]
ListPriceFlag = Annotated[float, _model("--list-price", min=0, help="Price of 1,000 LISTs.")]
GibPriceFlag = Annotated[float, _model("--gib-price", min=0, help="Price of a GiB from the store.")]
BenchFlag = Annotated[
    Path | None,
    _model("--from-bench", help="Take both bandwidths from a file with the output of feedd bench ingest --json."),
]
ShardsFlag = Annotated[int, _data("--shards", min=0, max=10_000_000, help="Number of shards.")]
ShardSizeFlag = Annotated[str, _data("--shard-size", help="Bytes of a shard.")]
ShardSamplesFlag = Annotated[int, _data("--samples-per-shard", min=1, help="Samples of a shard.")]


def plan(
    context: typer.Context,
    urls: UrlsArgument = None,
    nodes: NodesFlag = 1,
    sharding: ShardingFlag = "key",
    batch_size: BatchSizeFlag = 256,
    window_shards: WindowShardsFlag = 0,
    sample_size: SampleSizeFlag = "100KiB",
    keys: KeysFlag = False,  # noqa: FBT002 - a flag is a flag
    json_: JsonFlag = False,  # noqa: FBT002 - a flag is a flag
    simulate: SimulateFlag = False,  # noqa: FBT002 - a flag is a flag
    ranks: RanksFlag = 8,
    epochs: EpochsFlag = 2,
    step_time: StepTimeFlag = "100ms",
    fields: FieldsFlag = "",
    prefetch: BatchesFlag = 0,
    seed: SeedFlag = 0,
    simulated_nodes: SimulatedNodesFlag = 4,
    png: PngFlag = None,
    latency: LatencyFlag = "30ms",
    bandwidth: BandwidthFlag = "1.25GB",
    connection_bandwidth: ConnectionFlag = "80MB",
    request_limit: RequestLimitFlag = 5500.0,
    decode_time: DecodeTimeFlag = "1ms",
    open_time: OpenTimeFlag = "100ms",
    from_bench: BenchFlag = None,
    get_price: GetPriceFlag = 0.0004,
    list_price: ListPriceFlag = 0.005,
    gib_price: GibPriceFlag = 0.0,
    shards: ShardsFlag = 0,
    shard_size: ShardSizeFlag = "100MiB",
    samples_per_shard: ShardSamplesFlag = 1000,
    cache_size: CacheSizeFlag = None,
    workers: WorkersFlag = None,
    config: ConfigFlag = None,
    set_: SetFlag = None,
) -> None:
    """Show which node gets which keys and bytes, and how well shuffling mixes. Reads no samples.

    Large files that the daemon reads in spans are listed as spans. Of files of tokens, --fields tells the windows.

    With --simulate, run the whole job in virtual time instead.
    """
    check_mode(sharding)
    if not simulate:
        _refuse_simulation_flags(context)
    from feedd.simulation.scenario import JobModel  # noqa: PLC0415 - for --simulate, and --help needs none of it

    sample_bytes, step_s = size_of(sample_size, "--sample-size"), seconds_of(step_time, "--step-time")
    job = JobModel(nodes, ranks, epochs, step_s, batch_size, window_shards=window_shards, sharding=sharding)
    effective = Flags(config=config, set=set_, cache_size=cache_size, workers=workers).load()
    if not simulate:
        _show_plan(urls or [], fields, job, sample_bytes, effective.config, keys=keys, as_json=json_)
        return
    _check_folder(png, "--png")
    made = (shards, shard_size, samples_per_shard)
    listing, sidecars = _listing(urls or [], made, fields, effective.config, sample_bytes)
    job = _with_batch_bytes(replace(job, seed=seed, prefetch=prefetch), fields, listing)
    rates = bandwidth, connection_bandwidth, request_limit, from_bench
    store, node, origins = _models(effective, rates, latency, decode_time, open_time)
    scenario = _scenario(job, node, store, listing, sidecars, effective.config)
    _simulate(scenario, origins, listing, simulated_nodes, (get_price, list_price, gib_price), png, as_json=json_)


def _refuse_simulation_flags(context: typer.Context) -> None:
    """Refuse options that have no effect without ``--simulate``.

    Raises:
        BadConfig: the user gave one of them.
    """
    for one in context.command.params:
        name = one.name or ""
        simulates = getattr(one, "rich_help_panel", None) in {_JOB, _MODEL, _DATA} or name in {"cache_size", "workers"}
        source = context.get_parameter_source(name)
        if simulates and source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise BadConfig(f"expected --simulate with {flag}", object=flag, hint="add --simulate", stage="cli")


def recipes_of(text: str) -> tuple[tuple[str, str], ...]:
    """Return name and recipe of each field that ``--fields`` names.

    Raises:
        BadConfig: the text is not a JSON object.
    """
    return tuple((name, one if isinstance(one, str) else json.dumps(one)) for name, one in fields_of(text).items())


def seconds_of(text: str, flag: str) -> float:
    """Return the seconds that a flag names.

    Raises:
        BadConfig: the text is no duration.
    """
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise BadConfig(str(error), object=flag, stage="cli") from error


def _check_folder(file: Path | None, flag: str) -> None:
    """Refuse a file that could not be written at the end of a long run, because its folder does not exist.

    Raises:
        BadConfig: that is so.
    """
    if file is not None and not file.parent.is_dir():
        message = f"expected a file in a folder that exists, got {file}"
        raise BadConfig(message, object=flag, hint=f"mkdir -p {file.parent}", stage="cli")


def list_for_plan(urls: list[str], fields: str, config: Config) -> tuple[Listing, tuple[ObjectRef, ...]]:
    """Return the data as the daemon lists it, and the sidecars that tell its counts. Reads headers of large files only.

    Args:
        urls: URLs of the data.
        fields: the recipe as JSON, which decides the windows of token files; empty: there are none.
        config: access, and the size of spans.
    """
    from feedd.catalog.dataset_lister import DatasetLister  # noqa: PLC0415 - slow to import
    from feedd.catalog.learned_counts import Learned  # noqa: PLC0415 - see above
    from feedd.catalog.token_windows import windows_of  # noqa: PLC0415 - see above
    from feedd.clock import SystemClock  # noqa: PLC0415 - see above
    from feedd.recipe.recipe import parse_field  # noqa: PLC0415 - see above

    windows = windows_of([parse_field(name, text) for name, text in recipes_of(fields)])

    async def resolve() -> tuple[Listing, tuple[ObjectRef, ...]]:
        async with open_stores(config) as sources:
            lister = DatasetLister(sources, SystemClock(), Learned())
            found = await lister.list([urls], () if windows is None else (windows,), span_bytes=config.fetch.span_size)
            manifests = {ref.url for ref in found.frozen}
            return found, tuple([await sources.head(url) for url in found.counted_by if url not in manifests])

    return run_async(resolve())


SKEW_WARNED: Final = 0.2  # warn about a node that reads this much more than the mean


@dataclass(frozen=True, slots=True)
class NodePortion:
    """What one node reads per epoch.

    Attributes:
        share: share of all bytes that all nodes read; 0 to 1.
        samples: number of samples, if known: for plain objects, and for shards counted by ``feedd index``.
    """

    node: int
    objects: int
    bytes: int
    share: float
    first: str
    last: str
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The whole assignment.

    Attributes:
        skew: bytes of the fullest node above the mean: 0.25 is 25 % more.
    """

    urls: tuple[str, ...]
    sharding: str
    objects: int
    bytes: int
    skew: float
    nodes: tuple[NodePortion, ...]
    shuffle: ShuffleReport | None = None


@dataclass(frozen=True, slots=True)
class ShuffleReport:
    """How many shards the samples of a batch come from, on the fullest node; see ``ordering.quality.Mix``.

    Attributes:
        sample_bytes: mean bytes of a sample; an assumed value if samples are not counted.
    """

    batch_size: int
    window_shards: int
    sample_bytes: int
    window_samples: int
    windows: float
    buffer: float
    full: float
    none: float


def shuffled(
    sizes: NDArray[np.int64],
    counts: NDArray[np.int64] | None,
    batch_size: int,
    window_shards: int,
    sample_bytes: int,
) -> ShuffleReport:
    """Measure how well the order of a node mixes after epoch 0, whose first windows are smaller.

    Args:
        sizes: int64[shards], bytes of each shard of the node.
        counts: int64[shards], samples of each shard; None: estimated from the bytes.
        batch_size: samples per step of a rank.
        window_shards: shards per shuffle window.
        sample_bytes: mean bytes of a sample, for estimates.
    """
    if counts is None:
        counts = np.maximum(sizes // sample_bytes, 1)
    else:
        sample_bytes = int(sizes.sum()) // max(int(counts.sum()), 1)
    options = EpochOptions(1, 0, shuffle=True, window_shards=window_shards)
    found = mix(Assignment(np.arange(sizes.shape[0], dtype=np.int64)), counts, options, batch_size)
    shape = (batch_size, window_shards, sample_bytes, found.window_samples)
    return ShuffleReport(*shape, found.windows, found.buffer, found.full, found.none)


def assignments(refs: Sequence[ObjectRef], node_count: int, sharding: str) -> list[NDArray[np.int64]]:
    """Return the indices into ``refs`` of each node, ascending.

    Raises:
        BadRequest, Unsupported: the sharding mode is unknown.
    """
    check_mode(sharding)
    return assign_all(_sizes(refs), node_count, sharding)


def _sizes(refs: Sequence[ObjectRef]) -> NDArray[np.int64]:
    return np.fromiter((ref.size_bytes for ref in refs), dtype=np.int64, count=len(refs))


def _counted(refs: Sequence[ObjectRef], counts: Mapping[int, int] | None) -> NDArray[np.int64] | None:
    """Return int64[refs], the samples of each object; None unless all are known."""
    if not counts or len(counts) != len(refs):
        return None
    return np.fromiter((counts[index] for index in range(len(refs))), np.int64, len(refs))


def summarise(
    urls: Sequence[str],
    refs: Sequence[ObjectRef],
    per_node: Sequence[NDArray[np.int64]],
    sharding: str,
    counts: Mapping[int, int] | None = None,
) -> PlanReport:
    """Return what each node reads."""
    sizes, samples = _sizes(refs), _counted(refs, counts)
    same = all(indices is per_node[0] for indices in per_node)  # replicated: count once for all nodes
    loads = [int(sizes[indices].sum()) for indices in (per_node[:1] if same else per_node)]
    loads *= len(per_node) if same else 1
    read = sum(loads)
    mean = read / len(loads)
    nodes = tuple(
        NodePortion(
            node=node,
            objects=len(indices),
            bytes=load,
            share=load / read if read else 0.0,
            first=refs[indices[0]].key if len(indices) else "",
            last=refs[indices[-1]].key if len(indices) else "",
            samples=None if samples is None else int(samples.sum() if same else samples[indices].sum()),
        )
        for node, (indices, load) in enumerate(zip(per_node, loads, strict=True))
    )
    total = int(sizes.sum())
    skew = max(loads) / mean - 1 if mean else 0.0
    return PlanReport(tuple(urls), sharding, len(refs), total, skew, nodes)


def warnings_of(report: PlanReport) -> list[str]:
    """Return warnings about an uneven assignment."""
    found: list[str] = []
    idle = [share.node for share in report.nodes if not share.objects]
    if idle:
        names = ", ".join(map(str, idle[:8])) + (", …" if len(idle) > 8 else "")
        found.append(f"{report.objects} objects for {len(report.nodes)} nodes: nothing for node {names}")
    elif report.skew > SKEW_WARNED:
        hint = "; --sharding size evens it out" if report.sharding == "key" else "; smaller shards would even it out"
        found.append(f"the fullest node reads {100 * report.skew:.0f} % more bytes than the mean{hint}")
    return found


def _show(report: PlanReport) -> None:
    counted = any(share.samples is not None for share in report.nodes)
    rows = []
    for one in report.nodes:
        cells = str(one.node), str(one.objects), format_size(one.bytes), f"{100 * one.share:.1f} %"
        rows.append((*cells, *((str(one.samples),) if counted else ()), one.first, one.last))
    print_table(
        f"{format_count(report.objects, 'object')}, {format_size(report.bytes)}, sharding {report.sharding}",
        (">node", ">objects", ">bytes", ">share", *((">samples",) if counted else ()), "first key", "last key"),
        rows,
    )
    mixed = report.shuffle
    if mixed is not None:
        samples = f"{mixed.window_samples} samples of {format_size(mixed.sample_bytes)}"
        samples += "" if counted else ", by --sample-size"
        print_table(
            f"shards in a batch of {mixed.batch_size}, windows of {mixed.window_shards} shards ({samples})",
            (">not shuffled", ">feedd's windows", ">shuffle buffer of equal size", ">full shuffle"),
            [[f"{value:.1f}" for value in (mixed.none, mixed.windows, mixed.buffer, mixed.full)]],
        )


def _named(listing: Listing, shard: int) -> str:
    """Return the URL of a shard; of a span, with its samples, half-open."""
    span = listing.spans.get(shard)
    url = listing.refs[shard].url
    return url if span is None else f"{url}#samples={span.first}-{span.first + span.count}"


def _show_plan(
    urls: list[str], fields: str, job: JobModel, sample_bytes: int, config: Config, *, keys: bool, as_json: bool
) -> None:
    """Print which node gets what.

    Raises:
        BadConfig: no URL is named.
        BadRequest: nodes get samples, not shards.
    """
    if not urls:
        raise BadConfig("expected URL, got none", hint="or simulate data: --simulate --shards 1000", stage="cli")
    if job.sharding == SAMPLE:
        raise BadRequest("expected key, size or replicated, got sample, which gives all nodes equal shares of samples")
    log_without_notices()
    found, _ = list_for_plan(urls, fields, config)
    refs, counts = found.refs, found.counts
    per_node = assignments(refs, job.node_count, job.sharding)
    report = summarise(urls, refs, per_node, job.sharding, counts)
    fullest = max(per_node, key=len)
    if len(fullest) and not keys:
        known, window_shards = _counted(refs, counts), job.window_shards or config.shuffle.window_shards
        samples = None if known is None else known[fullest]
        report = replace(
            report, shuffle=shuffled(_sizes(refs)[fullest], samples, job.batch_size, window_shards, sample_bytes)
        )
    notices = notices_of(found.passed_over.reasons)
    if as_json:
        facts = {**asdict(report), "notices": notice_facts(notices)}
        if keys:
            facts["keys"] = [[_named(found, index) for index in indices] for indices in per_node]
        print_json(facts)
    elif keys:
        for node, indices in enumerate(per_node):
            for index in indices:
                typer.echo(f"{node}\t{_named(found, index)}")
    else:
        _show(report)
    for warning in warnings_of(report):
        say(f"warning: {warning}")
    say_notices(notices)


def _listing(
    urls: list[str], made: tuple[int, str, int], fields: str, config: Config, sample_bytes: int
) -> tuple[Listing, tuple[ObjectRef, ...]]:
    """Return the data to simulate, with the samples of each shard, and the objects from which an open learns them.

    Args:
        urls: URLs of the data, or none.
        made: without URLs: the number of shards, the size of one as text, and its samples.
        fields: the recipe as JSON; empty: there is none.
        config: access, and the size of spans.
        sample_bytes: mean size of a sample, where the samples of a shard are not counted.

    Raises:
        BadConfig: both URLs and synthetic data are named, or neither.
        BadRequest: the objects are samples, not shards.
    """
    from feedd.dataset.listing import Listing  # noqa: PLC0415 - --help needs none of it
    from feedd.dataset.step_counts import CountColumn  # noqa: PLC0415 - as above

    shard_count, shard_size, samples_per_shard = made
    if bool(urls) == bool(shard_count):
        got = "both" if urls else "neither"
        raise BadConfig(f"expected URL or --shards with --simulate, got {got}", object="--simulate", stage="cli")
    sidecars: tuple[ObjectRef, ...] = ()
    if shard_count:
        listing = _synthetic(shard_count, size_of(shard_size, "--shard-size"))
        samples = np.full(shard_count, samples_per_shard)
    else:
        log_without_notices()
        found, sidecars = list_for_plan(urls, fields, config)
        if found.packs:
            raise BadRequest(
                "expected shards of several samples, got objects that are samples",
                object=" ".join(urls),
                hint="simulate shards that feedd could read instead: --shards, --shard-size, --samples-per-shard",
                stage="plan",
            )
        say_notices(notices_of(found.passed_over.reasons))
        listing = Listing.of(found.refs, 0.0)
        samples = np.maximum(listing.sizes // sample_bytes, 1)
        for shard, count in found.counts.items():
            samples[shard] = count
    listing.counts, listing.indexed = CountColumn(samples), True
    return listing, sidecars


def _synthetic(shard_count: int, size_bytes: int) -> Listing:
    """Return the listing of shards that do not exist, of equal size."""
    from feedd.dataset.listing import Listing  # noqa: PLC0415 - as above
    from feedd.dataset.packs import TAG_BYTES  # noqa: PLC0415 - as above
    from feedd.dataset.ref_columns import ObjectColumns, RefColumns  # noqa: PLC0415 - as above

    keys = b"".join(b"%08d.tar" % number for number in range(shard_count))
    columns = ObjectColumns(
        _SYNTHETIC_ROOT,
        "",
        keys,
        range(0, len(keys) + 1, _KEY_BYTES),
        np.full(shard_count, size_bytes),
        bytes(shard_count * TAG_BYTES),
        range(0, shard_count * TAG_BYTES + 1, TAG_BYTES),
    )
    return Listing.of(RefColumns.of(columns, [None], bytes(shard_count)), 0.0)


def _models(
    effective: Effective, rates: tuple[str, str, float, Path | None], latency: str, decode_time: str, open_time: str
) -> tuple[StoreModel, NodeModel, Origins]:
    """Return the models of store and node, with name, value and origin of each assumption.

    Args:
        effective: the configuration.
        rates: bandwidth of a node's link and of a connection, requests per second, and the file that has both rates.
        latency: time to the first byte.
        decode_time: time of a sample.
        open_time: time of an open.

    Raises:
        BadConfig: a flag is wrong.
    """
    from feedd.daemon.wiring import workers_max  # noqa: PLC0415 - takes a second to import
    from feedd.simulation.scenario import NodeModel, StoreModel  # noqa: PLC0415 - as above

    config, (bandwidth, connection_bandwidth, request_limit, bench) = effective.config, rates
    latency_s = seconds_of(latency, "--latency")
    link_bytes_s, connection_bytes_s = (
        (float(size_of(bandwidth, "--bandwidth")), float(size_of(connection_bandwidth, "--connection-bandwidth")))
        if bench is None
        else _measured(bench, latency_s)
    )
    store = StoreModel(latency_s, connection_bytes_s, request_limit)
    node = NodeModel(
        link_bytes_s=link_bytes_s,
        cache_bytes=config.cache.size,
        workers=workers_max(config),
        decode_s=seconds_of(decode_time, "--decode-time"),
        open_s=seconds_of(open_time, "--open-time"),
    )
    workers = "decode.workers_max" if config.decode.workers == "auto" else "decode.workers"
    options = {
        "decode workers": (str(node.workers), workers),
        "cache": (format_size(node.cache_bytes), "cache.size"),
        "requests in flight": (str(config.fetch.parts_in_flight), "fetch.parts_in_flight"),
        "bytes in flight": (format_size(config.fetch.bytes_in_flight), "fetch.bytes_in_flight"),
    }
    origins: Origins = [
        ("first byte of an answer", format_duration(store.latency_s), "--latency"),
        ("link of a node", f"{format_size(link_bytes_s)}/s", str(bench or "--bandwidth")),
        ("one connection", f"{format_size(connection_bytes_s)}/s", str(bench or "--connection-bandwidth")),
        ("requests served", f"{request_limit:g}/s" if request_limit else "all", "--request-limit"),
        ("decoding a sample", format_duration(node.decode_s), "--decode-time"),
        ("opening, besides requests", format_duration(node.open_s), "--open-time"),
        *((what, value, _origin(effective.origins, name)) for what, (value, name) in options.items()),
    ]
    return store, node, origins


def _origin(origins: Mapping[str, str], name: str) -> str:
    origin = origins.get(name, "default")
    return f"{name}, {'this machine' if origin == 'default' else origin}"


def _measured(path: Path, latency_s: float) -> tuple[float, float]:
    """Return the rates of a link and of a connection, from a file that ``feedd bench ingest --json`` wrote.

    Raises:
        BadConfig: the file has other content.
    """
    try:
        rounds = json.loads(path.read_text())["rounds"]
        link = statistics.median(one["size_bytes"] / one["wall_s"] for one in rounds)
        bodies = [one["size_bytes"] / one["request_count"] / max(one["request_s"] - latency_s, 1e-3) for one in rounds]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError, statistics.StatisticsError) as error:
        raise BadConfig(
            f"expected the output of feedd bench ingest --json, got {type(error).__name__}: {error}",
            object=str(path),
            stage="cli",
        ) from error
    return link, statistics.median(bodies)


def _with_batch_bytes(job: JobModel, fields: str, listing: Listing) -> JobModel:
    """Return the job with the bytes of a batch: as the recipe tells, else as its samples are stored.

    Raises:
        BadConfig: the fields are not a JSON object.
        BadRecipe: a field or codec does not exist.
    """
    from feedd.catalog.open_request import Request  # noqa: PLC0415 - takes a second to import
    from feedd.sessions.slot_counts import fixed_bytes  # noqa: PLC0415 - as above

    sample_bytes = int(listing.sizes.sum()) // max(sum(listing.counts.values()), 1)
    known, pairs = None, recipes_of(fields)
    if pairs:
        spec = job.open_spec((), 0, 0)
        known = fixed_bytes(Request.of(replace(spec, data=replace(spec.data, fields=pairs)), 1))
    return replace(job, batch_bytes=known or job.batch_size * max(sample_bytes, 1))


def _scenario(
    job: JobModel,
    node: NodeModel,
    store: StoreModel,
    listing: Listing,
    sidecars: tuple[ObjectRef, ...],
    config: Config,
) -> Scenario:
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - takes a second to import
    from feedd.simulation.scenario import Scenario  # noqa: PLC0415 - as above

    return Scenario(
        view=listing.as_listed,
        list_requests=-(-len(listing.refs) // _PAGE_OBJECTS),
        job=job,
        node=node,
        store=store,
        fetch=replace(source_options(config), hedge_share=0.0, traced=False),
        window_shards=config.shuffle.window_shards,
        slots_max=config.arena.slots_max,
        sidecars=sidecars,
    )


def _simulate(
    scenario: Scenario,
    origins: Origins,
    listing: Listing,
    node_count: int,
    prices: tuple[float, float, float],
    png: Path | None,
    *,
    as_json: bool,
) -> None:
    """Simulate a job on ``node_count`` of its nodes, and print its figures.

    Raises:
        BadRequest: the job cannot run on this data.
        CacheTooSmall: the cache is too small for the job.
    """
    from feedd.simulation.simulated_job import simulate  # noqa: PLC0415 - takes a second to import
    from feedd.simulation.simulation_report import Prices, chosen_nodes, node_loads, report_of  # noqa: PLC0415 - as above

    loads = node_loads(listing, scenario.job)
    scenario = replace(scenario, nodes=chosen_nodes(loads, node_count, scenario.job.seed))
    report = report_of(scenario, simulate(scenario), loads, Prices(*prices))
    if png is not None:
        from feedd.simulation.charts import write_charts  # noqa: PLC0415 - needs OpenCV

        write_charts(png, report, scenario.job)
    if not as_json:
        _show_simulation(report, origins, scenario)
        return
    facts: dict[str, Any] = asdict(replace(report, node_bytes=np.zeros(0, np.int64), step_waits_s=np.zeros(0)))
    del facts["node_bytes"], facts["step_waits_s"]
    models = {"job": asdict(scenario.job), "node": asdict(scenario.node), "store": asdict(scenario.store)}
    named = {name: origin for name, _, origin in origins}
    print_json({**facts, "assumptions": {**models, "origins": named}})


def _show_simulation(report: SimulationReport, origins: Origins, scenario: Scenario) -> None:
    job = scenario.job
    print_table("assumptions", ("what", "value", "from"), origins)
    typer.echo(
        f"{format_count(report.objects, 'shard')}, {format_size(report.bytes)},"
        f" {report.nodes} nodes with {report.ranks} ranks,"
        f" {report.steps} steps of {job.batch_size} samples and {format_duration(job.step_s)},"
        f" simulated: node {', '.join(str(one.node) for one in report.simulated)}"
    )
    figures = [
        ("time to first batch", format_duration(report.first_batch_s)),
        ("time of all epochs", format_duration(report.run_s)),
        ("throughput", f"{report.samples_s:,.0f} samples/s"),
        ("trainers work", f"{100 * report.utilisation:.1f} % of the time"),
        ("found in the caches", f"{100 * report.hit_rate:.1f} % of the bytes"),
        ("requests", f"{report.requests:,}"),
        ("cost of requests and bytes", f"{report.cost:,.4f}"),
        ("fullest node above the mean", f"{100 * report.skew:.1f} %"),
    ]
    print_table("", ("", ">"), figures)
    epochs = []
    for number, one in enumerate(report.epochs):
        found, counts = f"{100 * one.hit_rate:.1f} %", (f"{count:,}" for count in (one.requests, one.refused))
        cells = format_duration(one.seconds), f"{one.samples_s:,.0f}", found, format_size(one.fetched_bytes)
        epochs.append((str(number), *cells, *counts, f"{one.cost:,.4f}"))
    names = (">epoch", ">time", ">samples/s", ">found", ">fetched", ">requests", ">refused", ">cost")
    print_table("epochs, all nodes", names, epochs)
    nodes = [
        (
            str(one.node),
            str(one.shards),
            format_size(one.bytes),
            format_size(one.fetched_bytes),
            f"{100 * one.wait_share:.1f} %",
        )
        for one in report.simulated
    ]
    print_table("simulated nodes", (">node", ">shards", ">bytes", ">fetched", ">waits"), nodes)


def register(app: typer.Typer) -> None:
    """Add the ``plan`` command."""
    app.command(epilog="Example: feedd plan s3://bucket/train/ --nodes 8 --sharding size")(plan)
