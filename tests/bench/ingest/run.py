"""The run: every contender once per round in every section, taking turns; files checked after each."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from awscrt.checksums import crc32c

from feedd.errors import BadConfig
from feedd.units import MIB, format_size
from tests.bench.harness import Arm, ArmFailed, Outcome, Row, interleave, run_arm
from tests.bench.ingest.authority import make_certificate
from tests.bench.ingest.contenders import Contender, Lineup, trusting_prefix
from tests.bench.ingest.radosgw import Radosgw
from tests.bench.ingest.store import ServerProcess, find_objects, make_objects
from tests.fakes.s3.draws import Odds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.bench.ingest.options import IngestOptions
    from tests.bench.ingest.store import Place, Server

HTTP, TLS, CLEAN, DELAYED, ERRORS, USERS = "http", "tls", "clean", "delayed", "errors", "url"
RADOSGW_HTTP, RADOSGW_TLS = "radosgw, http", "radosgw, tls"
OVER_TLS = frozenset({TLS, RADOSGW_TLS})
_ARM_TIMEOUT_S = 300.0
_MARGIN_BYTES = 512 * MIB
_ZEROS = bytes(MIB)
_CHECKOUT = Path(__file__).resolve().parents[3]
_ARMS = "tests.bench.ingest.arms"


@dataclass(slots=True)
class Section:
    """One table: the same contenders against one server.

    Attributes:
        name: of the section.
        place: objects and endpoint.
        server: the server; None: the user's store.
        outcomes: by contender, filled by the run.
        left_out: contenders that cannot take part, and why.
    """

    name: str
    place: Place
    server: Server | None
    outcomes: list[Outcome] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Turn:
    section: Section
    contender: Contender


class IngestRun:
    """Opens servers and files, takes turns, closes everything. Used once."""

    def __init__(self, options: IngestOptions, lineup: Lineup, say: Callable[[str], None]) -> None:
        self._options = options
        self._lineup = lineup
        self._say = say
        self._expected: dict[str, int] = {}
        self._stack = contextlib.ExitStack()

    def run(self, done: Callable[[], object]) -> list[Section]:
        """Measure; ``done`` is called after every turn.

        Raises:
            BadConfig: too little room in the folder, or no certificate could be made. What ``find_objects`` raises.
        """
        with self._stack:
            home = Path(self._stack.enter_context(_folder(self._options)))
            imports = home / "imports"
            imports.mkdir()
            for package in ("feedd", "tests"):  # and nothing else of our environment
                (imports / package).symlink_to(_CHECKOUT / package)
            sections = self._sections(home)
            turns = self._turns(sections)
            arms = [self._arm(name, turn, imports) for name, turn in turns.items()]

            def once(arm: Arm, round_index: int) -> Row:
                try:
                    return self._once(arm, turns[arm.name], home, round_index)
                finally:
                    done()

            outcomes = interleave(arms, self._options.round_count, once, self._say)
        for outcome in outcomes:
            turn = turns[outcome.name]
            outcome.name = turn.contender.name
            turn.section.outcomes.append(outcome)
        return sections

    def _sections(self, home: Path) -> list[Section]:
        options = self._options
        if options.url:
            return [Section(USERS, find_objects(options.url, options.size_bytes), None)]
        root = home / "root"
        self._say(f"making {format_size(options.size_bytes)} of objects")
        place = make_objects(root, options.size_bytes, options.shard_bytes)
        self._expected = {key: _checksum(root / place.bucket / key, 0) for key, _ in place.objects}
        if options.server == "radosgw":
            return self._radosgw_sections(home, root, place)
        wanted: dict[str, Odds] = {HTTP: Odds()}
        if options.faulty:
            clean = Odds(options.latency_s, rate_bytes_s=options.connection_bytes_s, seed=options.seed)
            wanted = {CLEAN: clean}
            if options.delayed_share:
                late = replace(clean, delayed_share=options.delayed_share, delay_factor=options.delay_factor)
                wanted[DELAYED] = late
            if options.error_share:
                wanted[ERRORS] = replace(clean, error_share=options.error_share)
        elif options.tls:
            wanted[TLS] = Odds()
        sections = []
        for name, odds in wanted.items():
            made = make_certificate(home) if name == TLS else None
            server = self._stack.enter_context(ServerProcess(root, odds, made))
            ca_file = str(made.authority) if made else ""
            sections.append(Section(name, place.trusting(server.url, ca_file), server))
        return sections

    def _radosgw_sections(self, home: Path, root: Path, place: Place) -> list[Section]:
        made = make_certificate(home) if self._options.tls else None
        folder = home / "ceph"
        folder.mkdir()
        self._say("starting radosgw")
        gateway = self._stack.enter_context(Radosgw(folder, place, made))
        gateway.upload(root)
        shutil.rmtree(root)
        sections = [Section(RADOSGW_HTTP, place.trusting(gateway.plain.url, ""), gateway.plain)]
        if made is not None:
            sections.append(Section(RADOSGW_TLS, place.trusting(gateway.tls.url, str(made.authority)), gateway.tls))
        return sections

    def _turns(self, sections: list[Section]) -> dict[str, _Turn]:
        turns = {}
        for section in sections:
            for contender in self._lineup.contenders:
                if section.name in OVER_TLS and contender.stops_at_plain:
                    continue
                if trusting_prefix(contender, section.place.ca_file) is None:
                    why = "trusts the system's certificates only, and none could be lent to it"
                    section.left_out.append(f"{contender.name}: {why}")
                    continue
                turns[f"{section.name}: {contender.name}"] = _Turn(section, contender)
        return turns

    def _arm(self, name: str, turn: _Turn, imports: Path) -> Arm:
        place, contender = turn.section.place, turn.contender
        return Arm(
            name,
            f"{_ARMS}.{contender.arm}_arm",
            self._lineup.interpreter(contender),
            place.environment,
            {
                "endpoint": place.endpoint,
                "region": place.region,
                "bucket": place.bucket,
                "objects": place.objects,
                "parts_in_flight": contender.parts_in_flight or self._options.parts_in_flight,
                "part_bytes": self._options.part_bytes,
                "ca_file": place.ca_file,
                "recycled": contender.recycled,
                "own": {**contender.own, "prefix": place.prefix},
            },
            imports,
            trusting_prefix(contender, place.ca_file) or (),
        )

    def _once(self, arm: Arm, turn: _Turn, home: Path, round_index: int) -> Row:
        server, size_bytes = turn.section.server, turn.section.place.size_bytes
        with (
            _memory_at_hand(home / "ballast", size_bytes + _MARGIN_BYTES),
            tempfile.TemporaryDirectory(dir=home, prefix="arm-") as folder,
        ):
            before = server.served(reset=True) if server else None
            row = run_arm(arm, {"folder": folder}, _ARM_TIMEOUT_S, watch_resident=round_index == 0)
            if server is not None and before is not None:
                did = server.served().since(before)
                passes = row.get("passes", 2 if turn.contender.recycled else 1)  # those not timed included
                row |= {"gets": did.get_count / passes, "errors": did.error_count, "sent_bytes": did.body_bytes}
                row["server_cpu_per_gb"] = did.cpu_s / (did.body_bytes / 1e9)
            self._check(arm.name, row.pop("files"))
        row |= {"rate": size_bytes / row["wall_s"], "cpu_per_gb": row["cpu_s"] / (size_bytes / 1e9)}
        row["system_per_gb"] = row["system_s"] / (size_bytes / 1e9)
        if "gets" in row:
            row["gets_per_s"] = row["gets"] / row["wall_s"]
        return row

    def _check(self, name: str, files: list[list[Any]]) -> None:
        """Hold every file against the object, byte for byte as far as a CRC tells; of the user's, against the first."""
        for key, path, data_at, *size_bytes in files:
            got = _checksum(Path(path), data_at, *size_bytes)
            if got != self._expected.setdefault(key, got):
                raise ArmFailed(f"{name}: other bytes than expected in {key}")


def _checksum(path: Path, data_at: int, size_bytes: int | None = None) -> int:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == data_at:
            return 0
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping,
            memoryview(mapping) as view,
            view[data_at : None if size_bytes is None else data_at + size_bytes] as data,
        ):
            return int(crc32c(data))


@contextlib.contextmanager
def _memory_at_hand(ballast: Path, size_bytes: int) -> Iterator[None]:
    """Free that much memory within, which the machine has really got.

    On a virtual one, a page that was free for long went back to the host, and the first touch of it is several times
    as dear. So pages are held by a file between the turns; written, since allocating alone touches nothing.
    """
    ballast.unlink(missing_ok=True)
    try:
        yield
    finally:
        with ballast.open("wb", buffering=0) as file:
            for _ in range(0, size_bytes, len(_ZEROS)):
                file.write(_ZEROS)


@contextlib.contextmanager
def _folder(options: IngestOptions) -> Iterator[str]:
    """Make a folder for everything.

    Raises:
        BadConfig: there is no such folder, or no room in it.
    """
    if not options.folder.is_dir():
        raise BadConfig(f"expected a folder on tmpfs, got {options.folder}", hint="name one with --dir", stage="bench")
    needed = options.size_bytes * (1 if options.url else 2) + options.size_bytes + _MARGIN_BYTES
    free = shutil.disk_usage(options.folder).free
    if free < needed:
        raise BadConfig(
            f"expected {format_size(needed)} free in {options.folder}, got {format_size(free)}",
            hint="choose a smaller --size, or another --dir",
            stage="bench",
        )
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="feedd-ingest-") as home:
        yield home
