"""``feedd plan``: shows which node gets which keys and bytes, and how well the order mixes. Downloads no data."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from feedd.cli.error_report import log_without_notices, notice_facts, say, say_notices
from feedd.cli.flags import CacheSizeFlag, ConfigFlag, Flags, SetFlag, WorkersFlag
from feedd.cli.plan_flags import (
    BandwidthFlag,
    BatchesFlag,
    BatchSizeFlag,
    BenchFlag,
    ConnectionFlag,
    DecodeTimeFlag,
    EpochsFlag,
    FieldsFlag,
    GetPriceFlag,
    GibPriceFlag,
    JsonFlag,
    KeysFlag,
    LatencyFlag,
    ListPriceFlag,
    NodesFlag,
    OpenTimeFlag,
    PngFlag,
    RanksFlag,
    RequestLimitFlag,
    SampleSizeFlag,
    SeedFlag,
    ShardingFlag,
    ShardSamplesFlag,
    ShardsFlag,
    ShardSizeFlag,
    SimulatedNodesFlag,
    SimulateFlag,
    StepTimeFlag,
    UrlsArgument,
    WindowShardsFlag,
    check_folder,
    refuse_simulation_flags,
    size_of,
)
from feedd.cli.plan_listing import list_for_plan
from feedd.cli.plan_simulation import (
    JobOptions,
    ModelOptions,
    Order,
    SimulatedData,
    SyntheticData,
    listed,
    run_simulation,
)
from feedd.dataset.assignment import Assignment
from feedd.dataset.sharding import SAMPLE, assign_all, check_mode
from feedd.errors import BadConfig, BadRequest
from feedd.notices import notices_of
from feedd.ordering.epoch import EpochOptions
from feedd.ordering.quality import mix
from feedd.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from feedd.config import Config
    from feedd.dataset.listing import Listing
    from feedd.values import ObjectRef

SKEW_WARNED = 0.2  # warn about a node that reads this much more than the mean


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
    table = Table(
        title=f"{format_count(report.objects, 'object')}, {format_size(report.bytes)}, sharding {report.sharding}"
    )
    counted = any(share.samples is not None for share in report.nodes)
    for name in ("node", "objects", "bytes", "share", *(("samples",) if counted else ())):
        table.add_column(name, justify="right")
    for name in ("first key", "last key"):
        table.add_column(name, overflow="fold")
    for share in report.nodes:
        cells = (str(share.node), str(share.objects), format_size(share.bytes), f"{100 * share.share:.1f} %")
        table.add_row(*cells, *((str(share.samples),) if counted else ()), share.first, share.last)
    console = Console()
    console.print(table)
    mixed = report.shuffle
    if mixed is not None:
        samples = f"{mixed.window_samples} samples of {format_size(mixed.sample_bytes)}"
        samples += "" if counted else ", by --sample-size"
        title = f"shards in a batch of {mixed.batch_size}, windows of {mixed.window_shards} shards ({samples})"
        quality = Table(title=title)
        names = ("not shuffled", "feedd's windows", "shuffle buffer of equal size", "full shuffle")
        for name in names:
            quality.add_column(name, justify="right")
        quality.add_row(*(f"{value:.1f}" for value in (mixed.none, mixed.windows, mixed.buffer, mixed.full)))
        console.print(quality)


def _named(listing: Listing, shard: int) -> str:
    """Return the URL of a shard; of a span, with its samples, half-open."""
    span = listing.spans.get(shard)
    url = listing.refs[shard].url
    return url if span is None else f"{url}#samples={span.first}-{span.first + span.count}"


def _show_plan(urls: list[str], fields: str, order: Order, config: Config, *, keys: bool, as_json: bool) -> None:
    """Print which node gets what.

    Raises:
        BadConfig: no URL is named.
        BadRequest: nodes get samples, not shards.
    """
    if not urls:
        raise BadConfig("expected URL, got none", hint="or simulate data: --simulate --shards 1000", stage="cli")
    if order.sharding == SAMPLE:
        raise BadRequest("expected key, size or replicated, got sample, which gives all nodes equal shares of samples")
    log_without_notices()
    found, _ = list_for_plan(urls, fields, config)
    refs, counts = found.refs, found.counts
    per_node = assignments(refs, order.nodes, order.sharding)
    report = summarise(urls, refs, per_node, order.sharding, counts)
    fullest = max(per_node, key=len)
    if len(fullest) and not keys:
        known = _counted(refs, counts)
        fullest_node = _sizes(refs)[fullest], None if known is None else known[fullest]
        asked = order.batch_size, order.window_shards or config.shuffle.window_shards, order.sample_bytes
        report = replace(report, shuffle=shuffled(*fullest_node, *asked))
    notices = notices_of(found.passed_over.reasons)
    if as_json:
        facts = {**asdict(report), "notices": notice_facts(notices)}
        if keys:
            facts["keys"] = [[_named(found, index) for index in indices] for indices in per_node]
        typer.echo(json.dumps(facts, indent=2))
    elif keys:
        for node, indices in enumerate(per_node):
            for index in indices:
                typer.echo(f"{node}\t{_named(found, index)}")
    else:
        _show(report)
    for warning in warnings_of(report):
        say(f"warning: {warning}")
    say_notices(notices)


def _listing(urls: list[str], data: SyntheticData, fields: str, config: Config, sample_bytes: int) -> SimulatedData:
    """Return the data to simulate.

    Raises:
        BadConfig: both URLs and synthetic data are named, or neither.
        BadRequest: the objects are samples, not shards.
    """
    if bool(urls) == bool(data.shards):
        got = "both" if urls else "neither"
        raise BadConfig(f"expected URL or --shards with --simulate, got {got}", object="--simulate", stage="cli")
    if data.shards:
        return SimulatedData(data.listing())
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
    return SimulatedData(listed(found.refs, found.counts, sample_bytes), sidecars)


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
    flags = Flags(config=config, set=set_, cache_size=cache_size, workers=workers)
    order = Order(nodes, sharding, batch_size, window_shards, size_of(sample_size, "--sample-size"))
    if not simulate:
        refuse_simulation_flags(context)
        _show_plan(urls or [], fields, order, flags.load().config, keys=keys, as_json=json_)
        return
    check_folder(png, "--png")
    job = JobOptions(order, ranks, epochs, step_time, fields, prefetch, seed, simulated_nodes, png, json_)
    store = latency, bandwidth, connection_bandwidth, request_limit
    model = ModelOptions(*store, decode_time, open_time, from_bench)
    data = SyntheticData(shards, shard_size, samples_per_shard)
    effective = flags.load()
    found = _listing(urls or [], data, fields, effective.config, order.sample_bytes)
    run_simulation(job, model, (get_price, list_price, gib_price), effective, found)


def register(app: typer.Typer) -> None:
    """Add the ``plan`` command."""
    app.command(epilog="Example: feedd plan s3://bucket/train/ --nodes 8 --sharding size")(plan)
