"""``feedd plan --simulate``: what a job will do, from its assumptions to its figures."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from feedd.cli.plan_flags import field_texts, seconds_of, size_of
from feedd.errors import BadConfig
from feedd.units import format_count, format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from feedd.config import Effective
    from feedd.dataset.listing import Listing
    from feedd.simulation.scenario import JobModel, Scenario
    from feedd.simulation.simulation_report import SimulationReport
    from feedd.values import ObjectRef

_PAGE_OBJECTS: Final = 1000
_SYNTHETIC_ROOT: Final = "s3://simulated"
_KEY_BYTES: Final = len("00000000.tar")


@dataclass(frozen=True, slots=True)
class Order:
    """Flags about which node reads what, in which order."""

    nodes: int
    sharding: str
    batch_size: int
    window_shards: int
    sample_bytes: int


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Flags about the job and its output, as the user gave them."""

    order: Order
    ranks: int
    epochs: int
    step_time: str
    fields: str
    prefetch: int
    seed: int
    simulated_nodes: int
    png: Path | None
    json: bool


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Flags about store and machine, as the user gave them."""

    latency: str
    bandwidth: str
    connection_bandwidth: str
    request_limit: float
    decode_time: str
    open_time: str
    from_bench: Path | None


@dataclass(frozen=True, slots=True)
class SyntheticData:
    """Flags about data that does not exist."""

    shards: int
    shard_size: str
    samples_per_shard: int

    def listing(self) -> Listing:
        """Return the listing of this data: shards of equal size."""
        from feedd.dataset.listing import Listing  # noqa: PLC0415 - --help needs none of it
        from feedd.dataset.packs import TAG_BYTES  # noqa: PLC0415 - as above
        from feedd.dataset.ref_columns import ObjectColumns, RefColumns  # noqa: PLC0415 - as above

        count, size_bytes = self.shards, size_of(self.shard_size, "--shard-size")
        keys = b"".join(b"%08d.tar" % number for number in range(count))
        columns = ObjectColumns(
            _SYNTHETIC_ROOT,
            "",
            keys,
            range(0, len(keys) + 1, _KEY_BYTES),
            np.full(count, size_bytes),
            bytes(count * TAG_BYTES),
            range(0, count * TAG_BYTES + 1, TAG_BYTES),
        )
        found = Listing.of(RefColumns.of(columns, [None], bytes(count)), 0.0)
        return _counted(found, np.full(count, self.samples_per_shard))


@dataclass(frozen=True, slots=True)
class SimulatedData:
    """The data to simulate.

    Attributes:
        listing: the shards, and the samples of each.
        sidecars: objects from which an open learns the samples.
    """

    listing: Listing
    sidecars: tuple[ObjectRef, ...] = ()


def listed(refs: Sequence[ObjectRef], counts: Mapping[int, int], sample_bytes: int) -> Listing:
    """Return the listing of shards; unknown counts follow from their bytes."""
    from feedd.dataset.listing import Listing  # noqa: PLC0415 - as above

    found = Listing.of(refs, 0.0)
    samples = np.maximum(found.sizes // sample_bytes, 1)
    for shard, count in counts.items():
        samples[shard] = count
    return _counted(found, samples)


def _counted(listing: Listing, samples: NDArray[np.int64]) -> Listing:
    """Give a listing the samples of each shard, in a column."""
    from feedd.dataset.step_counts import CountColumn  # noqa: PLC0415 - as above

    listing.counts, listing.indexed = CountColumn(samples), True
    return listing


def run_simulation(
    job: JobOptions, model: ModelOptions, prices: tuple[float, float, float], effective: Effective, data: SimulatedData
) -> None:
    """Simulate the job, and print its figures.

    Raises:
        BadConfig: a flag is wrong.
        BadRequest: the job cannot run on this data.
        CacheTooSmall: the cache is too small for the job.
    """
    from feedd.simulation.simulated_job import simulate  # noqa: PLC0415 - takes a second to import
    from feedd.simulation.simulation_report import Prices, chosen_nodes, node_loads, report_of  # noqa: PLC0415 - as above

    assumed = _Assumptions(effective, model)
    scenario = _scenario(job, assumed, effective, data)
    loads = node_loads(data.listing, scenario.job)
    scenario = replace(scenario, nodes=chosen_nodes(loads, job.simulated_nodes, job.seed))
    report = report_of(scenario, simulate(scenario), loads, Prices(*prices))
    if job.png is not None:
        from feedd.simulation.charts import write_charts  # noqa: PLC0415 - needs OpenCV

        write_charts(job.png, report, scenario.job)
    if job.json:
        typer.echo(json.dumps(_facts(report, assumed, scenario), indent=2))
    else:
        _show(report, assumed, scenario)


class _Assumptions:
    """The models of store and node, and where each of their values comes from.

    Attributes:
        store: the store.
        node: the node.
        origins: name, value and origin of each.
    """

    def __init__(self, effective: Effective, model: ModelOptions) -> None:
        from feedd.daemon.wiring import workers_max  # noqa: PLC0415 - takes a second to import
        from feedd.simulation.scenario import NodeModel, StoreModel  # noqa: PLC0415 - as above

        config, origins = effective.config, effective.origins
        rates = _measured(model.from_bench, seconds_of(model.latency, "--latency")) if model.from_bench else None
        link_bytes_s, connection_bytes_s = rates or (
            float(size_of(model.bandwidth, "--bandwidth")),
            float(size_of(model.connection_bandwidth, "--connection-bandwidth")),
        )
        self.store = StoreModel(seconds_of(model.latency, "--latency"), connection_bytes_s, model.request_limit)
        self.node = NodeModel(
            link_bytes_s=link_bytes_s,
            cache_bytes=config.cache.size,
            workers=workers_max(config),
            decode_s=seconds_of(model.decode_time, "--decode-time"),
            open_s=seconds_of(model.open_time, "--open-time"),
        )
        workers = "decode.workers_max" if config.decode.workers == "auto" else "decode.workers"
        bandwidth = str(model.from_bench) if model.from_bench else "--bandwidth"
        self.origins: list[tuple[str, str, str]] = [
            ("first byte of an answer", format_duration(self.store.latency_s), "--latency"),
            ("link of a node", f"{format_size(link_bytes_s)}/s", bandwidth),
            (
                "one connection",
                f"{format_size(connection_bytes_s)}/s",
                str(model.from_bench or "--connection-bandwidth"),
            ),
            ("requests served", f"{model.request_limit:g}/s" if model.request_limit else "all", "--request-limit"),
            ("decoding a sample", format_duration(self.node.decode_s), "--decode-time"),
            ("opening, besides requests", format_duration(self.node.open_s), "--open-time"),
            ("decode workers", str(self.node.workers), _origin(origins, workers)),
            ("cache", format_size(self.node.cache_bytes), _origin(origins, "cache.size")),
            ("requests in flight", str(config.fetch.parts_in_flight), _origin(origins, "fetch.parts_in_flight")),
            ("bytes in flight", format_size(config.fetch.bytes_in_flight), _origin(origins, "fetch.bytes_in_flight")),
        ]


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


def _scenario(job: JobOptions, assumed: _Assumptions, effective: Effective, data: SimulatedData) -> Scenario:
    from feedd.daemon.wiring import source_options  # noqa: PLC0415 - takes a second to import
    from feedd.simulation.scenario import JobModel, Scenario  # noqa: PLC0415 - as above

    config, listing = effective.config, data.listing
    model = JobModel(
        node_count=job.order.nodes,
        rank_count=job.ranks,
        epoch_count=job.epochs,
        step_s=seconds_of(job.step_time, "--step-time"),
        batch_size=job.order.batch_size,
        seed=job.seed,
        window_shards=job.order.window_shards,
        sharding=job.order.sharding,
        prefetch=job.prefetch,
    )
    samples = sum(listing.counts.values())
    sample_bytes = int(listing.sizes.sum()) // max(samples, 1)
    model = replace(model, batch_bytes=_batch_bytes(model, job.fields) or model.batch_size * max(sample_bytes, 1))
    return Scenario(
        view=listing.as_listed,
        list_requests=-(-len(listing.refs) // _PAGE_OBJECTS),
        job=model,
        node=assumed.node,
        store=assumed.store,
        fetch=replace(source_options(config), hedge_share=0.0, traced=False),
        window_shards=config.shuffle.window_shards,
        slots_max=config.arena.slots_max,
        sidecars=data.sidecars,
    )


def _batch_bytes(job: JobModel, fields: str) -> int | None:
    """Return the bytes of a batch, if the recipe tells them.

    Raises:
        BadConfig: the fields are not a JSON object.
        BadRecipe: a field or codec does not exist.
    """
    from feedd.catalog.open_request import Request  # noqa: PLC0415 - takes a second to import
    from feedd.sessions.slot_counts import fixed_bytes  # noqa: PLC0415 - as above

    pairs = field_texts(fields)
    if not pairs:
        return None
    spec = job.open_spec((), 0, 0)
    return fixed_bytes(Request.of(replace(spec, data=replace(spec.data, fields=pairs)), 1))


def _facts(report: SimulationReport, assumed: _Assumptions, scenario: Scenario) -> dict[str, Any]:
    """Return the figures and the assumptions for ``--json``."""
    facts = asdict(replace(report, node_bytes=np.zeros(0, np.int64), step_waits_s=np.zeros(0)))
    del facts["node_bytes"], facts["step_waits_s"]
    models = {"job": asdict(scenario.job), "node": asdict(scenario.node), "store": asdict(scenario.store)}
    origins = {name: origin for name, _, origin in assumed.origins}
    return {**facts, "assumptions": {**models, "origins": origins}}


def _show(report: SimulationReport, assumed: _Assumptions, scenario: Scenario) -> None:
    console = Console()
    table = Table(title="assumptions", title_justify="left")
    for name in ("what", "value", "from"):
        table.add_column(name)
    for row in assumed.origins:
        table.add_row(*row)
    console.print(table)
    job = scenario.job
    console.print(
        f"{format_count(report.objects, 'shard')}, {format_size(report.bytes)},"
        f" {report.nodes} nodes with {report.ranks} ranks,"
        f" {report.steps} steps of {job.batch_size} samples and {format_duration(job.step_s)},"
        f" simulated: node {', '.join(str(one.node) for one in report.simulated)}",
        highlight=False,
    )
    rows = [
        ("time to first batch", format_duration(report.first_batch_s)),
        ("time of all epochs", format_duration(report.run_s)),
        ("throughput", f"{report.samples_s:,.0f} samples/s"),
        ("trainers work", f"{100 * report.utilisation:.1f} % of the time"),
        ("found in the caches", f"{100 * report.hit_rate:.1f} % of the bytes"),
        ("requests", f"{report.requests:,}"),
        ("cost of requests and bytes", f"{report.cost:,.4f}"),
        ("fullest node above the mean", f"{100 * report.skew:.1f} %"),
    ]
    figures = Table(show_header=False)
    figures.add_column()
    figures.add_column(justify="right")
    for name, value in rows:
        figures.add_row(name, value)
    console.print(figures)
    _show_epochs(console, report)


def _show_epochs(console: Console, report: SimulationReport) -> None:
    table = Table(title="epochs, all nodes", title_justify="left")
    for name in ("epoch", "time", "samples/s", "found", "fetched", "requests", "refused", "cost"):
        table.add_column(name, justify="right")
    for number, epoch in enumerate(report.epochs):
        found = f"{100 * epoch.hit_rate:.1f} %"
        counts = (f"{count:,}" for count in (epoch.requests, epoch.refused))
        cells = format_duration(epoch.seconds), f"{epoch.samples_s:,.0f}", found, format_size(epoch.fetched_bytes)
        table.add_row(str(number), *cells, *counts, f"{epoch.cost:,.4f}")
    console.print(table)
    nodes = Table(title="simulated nodes", title_justify="left")
    for name in ("node", "shards", "bytes", "fetched", "waits"):
        nodes.add_column(name, justify="right")
    for one in report.simulated:
        sizes = format_size(one.bytes), format_size(one.fetched_bytes)
        nodes.add_row(str(one.node), str(one.shards), *sizes, f"{100 * one.wait_share:.1f} %")
    console.print(nodes)
