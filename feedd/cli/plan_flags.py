"""The options of ``feedd plan``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from feedd.errors import BadConfig
from feedd.units import parse_duration_s, parse_size

_JOB = "Simulation: the job, for --simulate"
_MODEL = "Simulation: store and machine, for --simulate"
_DATA = "Simulation: data that does not exist, instead of URL"

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
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
SimulateFlag = Annotated[
    bool,
    typer.Option("--simulate", help="Run the whole job in virtual time, and print its figures.", rich_help_panel=_JOB),
]
RanksFlag = Annotated[int, typer.Option("--ranks", min=1, max=1024, help="Ranks per node.", rich_help_panel=_JOB)]
EpochsFlag = Annotated[int, typer.Option("--epochs", min=1, max=1000, help="Number of epochs.", rich_help_panel=_JOB)]
StepTimeFlag = Annotated[
    str, typer.Option("--step-time", help="Time that a trainer works on a batch.", rich_help_panel=_JOB)
]
FieldsFlag = Annotated[
    str,
    typer.Option(
        "--fields",
        metavar="JSON",
        help="What to decode; decides the spans of token files, and the bytes of a simulated batch.",
    ),
]
BatchesFlag = Annotated[
    int,
    typer.Option("--prefetch", min=0, max=1024, help="Batches in advance of a rank; 0: auto.", rich_help_panel=_JOB),
]
SeedFlag = Annotated[int, typer.Option("--seed", min=0, help="Seed of the order.", rich_help_panel=_JOB)]
SimulatedNodesFlag = Annotated[
    int,
    typer.Option(
        "--simulated-nodes",
        min=1,
        help="Nodes that are really simulated: the fullest, the first, the last, others at random.",
        rich_help_panel=_JOB,
    ),
]
PngFlag = Annotated[Path | None, typer.Option("--png", help="Write charts to this file.", rich_help_panel=_JOB)]
LatencyFlag = Annotated[
    str, typer.Option("--latency", help="Time to the first byte of an answer.", rich_help_panel=_MODEL)
]
BandwidthFlag = Annotated[
    str, typer.Option("--bandwidth", help="Bytes per second of a node's network link.", rich_help_panel=_MODEL)
]
ConnectionFlag = Annotated[
    str,
    typer.Option("--connection-bandwidth", help="Bytes per second of one request at most.", rich_help_panel=_MODEL),
]
RequestLimitFlag = Annotated[
    float,
    typer.Option(
        "--request-limit",
        min=0,
        help="Requests per second that the store serves to all nodes together; 0: any number.",
        rich_help_panel=_MODEL,
    ),
]
DecodeTimeFlag = Annotated[
    str, typer.Option("--decode-time", help="CPU time of a worker for one sample.", rich_help_panel=_MODEL)
]
OpenTimeFlag = Annotated[
    str,
    typer.Option("--open-time", help="Time of an open besides requests, shards and batches.", rich_help_panel=_MODEL),
]
GetPriceFlag = Annotated[
    float, typer.Option("--get-price", min=0, help="Price of 1,000 GETs or HEADs.", rich_help_panel=_MODEL)
]
ListPriceFlag = Annotated[
    float, typer.Option("--list-price", min=0, help="Price of 1,000 LISTs.", rich_help_panel=_MODEL)
]
GibPriceFlag = Annotated[
    float, typer.Option("--gib-price", min=0, help="Price of a GiB from the store.", rich_help_panel=_MODEL)
]
BenchFlag = Annotated[
    Path | None,
    typer.Option(
        "--from-bench",
        help="Take both bandwidths from a file with the output of feedd bench ingest --json.",
        rich_help_panel=_MODEL,
    ),
]
ShardsFlag = Annotated[
    int, typer.Option("--shards", min=0, max=10_000_000, help="Number of shards.", rich_help_panel=_DATA)
]
ShardSizeFlag = Annotated[str, typer.Option("--shard-size", help="Bytes of a shard.", rich_help_panel=_DATA)]
ShardSamplesFlag = Annotated[
    int, typer.Option("--samples-per-shard", min=1, help="Samples of a shard.", rich_help_panel=_DATA)
]


_PLAN_ONLY: Final = {
    "urls",
    "nodes",
    "sharding",
    "batch_size",
    "window_shards",
    "sample_size",
    "fields",
    "keys",
    "json_",
    "config",
    "set_",
}


def refuse_simulation_flags(context: typer.Context) -> None:
    """Refuse options that have no effect without ``--simulate``.

    Raises:
        BadConfig: the user gave one of them.
    """
    for name in context.params.keys() - _PLAN_ONLY:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            flag = f"--{name.replace('_', '-')}"
            raise BadConfig(f"expected --simulate with {flag}", object=flag, hint="add --simulate", stage="cli")


def field_texts(text: str) -> tuple[tuple[str, str], ...]:
    """Return name and recipe of each field that ``--fields`` names.

    Raises:
        BadConfig: the text is not a JSON object.
    """
    if not text:
        return ()
    try:
        found = json.loads(text)
        return tuple((name, one if isinstance(one, str) else json.dumps(one)) for name, one in found.items())
    except (ValueError, AttributeError) as error:
        hint = """for example --fields '{"jpg": "image:224x224", "cls": "int"}'"""
        raise BadConfig(f"expected a JSON object, got {text}", object="--fields", hint=hint, stage="cli") from error


def size_of(text: str, flag: str) -> int:
    """Return the bytes that a flag names.

    Raises:
        BadConfig: the text is no size above 0.
    """
    try:
        size_bytes = parse_size(text)
    except ValueError as error:
        raise BadConfig(str(error), object=flag, stage="cli") from error
    if not size_bytes:
        raise BadConfig("expected a size above 0, got 0", object=flag, stage="cli")
    return size_bytes


def seconds_of(text: str, flag: str) -> float:
    """Return the seconds that a flag names.

    Raises:
        BadConfig: the text is no duration.
    """
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise BadConfig(str(error), object=flag, stage="cli") from error


def check_folder(file: Path | None, flag: str) -> None:
    """Refuse a file that could not be written at the end of a long run, because its folder does not exist.

    Raises:
        BadConfig: that is so.
    """
    if file is not None and not file.parent.is_dir():
        message = f"expected a file in a folder that exists, got {file}"
        raise BadConfig(message, object=flag, hint=f"mkdir -p {file.parent}", stage="cli")
