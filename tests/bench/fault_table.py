"""Bench: what becomes of one read when the store or the network misbehaves once, client by client.

Every client reads one object per fault from a scripted server: those that are asked for ranges read one, the others
the whole object in parts. A cell says what came of it, how many GETs it took, and how long. An object whose store keeps
no checksum is not among them: nobody could tell its bytes from others.
"""

from __future__ import annotations

import hashlib
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.arms.faults import BUCKET, MIB
from tests.bench.harness import Arm, ArmFailed, Outcome, run_arm
from tests.bench.report import Column, Result, Verdict
from tests.fakes.s3 import faults
from tests.fakes.s3.checksums import Kept
from tests.fakes.s3.server import S3Server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.bench.plan import Plan
    from tests.fakes.s3.answers import Reply, Request
    from tests.fakes.s3.faults import Fault

_TIMEOUT_S = 300.0
_SIZE_BYTES = 12 * MIB
_START, _END = 1 * MIB, 9 * MIB  # for those who read one range
_CUT_BYTES = 1 * MIB  # into whichever body meets the fault
_FLIP_AT = 3 * MIB
_FULL = Kept("crc64nvme")  # what S3 keeps of every object that is uploaded without another wish
_COMPOSITE = Kept("crc32c", (4 * MIB, 4 * MIB, 4 * MIB))
_REPLACED = "object replaced between parts"
_KINDS = {"exact": "exact bytes", "wrong": "WRONG BYTES", "error": "error"}


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what the coming GETs meet, and what is kept of the object.

    Attributes:
        second: whoever reads in parts meets it with the second one.
        hopeless: nobody can give the bytes that were asked for; an error of the client's own is due.
        parts_only: means nothing to who asks for one range.
    """

    name: str
    met: tuple[Fault | None, ...] = ()
    always: Fault | None = None
    kept: Kept = _FULL
    second: bool = False
    hopeless: bool = False
    parts_only: bool = False


CASES = (
    Case("closes in the body, once", (faults.cut_body(_CUT_BYTES),)),
    Case("closes before the body, always", always=faults.cut_body(0), hopeless=True),
    Case("reset in the body, once", (faults.reset_in_body(_CUT_BYTES),)),
    Case("stalls in the body, once", (faults.hang_in_body(_CUT_BYTES),)),
    Case("200 + whole object instead of 206, once", (faults.whole_object(),), second=True),
    Case("206 + the range one byte on, once", (faults.other_range(),), second=True),
    Case("Content-Range off by one, once", (faults.wrong_content_range(),), second=True),
    Case("one bit flipped, once (CRC64NVME kept)", (faults.flipped_bit(_FLIP_AT),) * 3),
    Case("one bit flipped, once (CRC32C of parts kept)", (faults.flipped_bit(_FLIP_AT),) * 3, kept=_COMPOSITE),
    Case("503 twice", (faults.slow_down(), faults.slow_down())),
    Case(_REPLACED, hopeless=True, parts_only=True),
)


@dataclass(frozen=True, slots=True)
class Client:
    """One column."""

    name: str
    module: str
    ranged: bool = False
    ours: bool = False


CLIENTS = (
    Client("boto3 get_object", "boto3", ranged=True),
    Client("s3transfer", "s3transfer"),
    Client("aiobotocore", "aiobotocore", ranged=True, ours=True),
    Client("obstore get_range", "obstore", ranged=True),
    Client("s3torchconnector", "s3torch"),
    Client("feedd", "feedd", ours=True),
)


@dataclass(frozen=True, slots=True)
class Cell(Column):
    """A column of words instead of figures."""

    digits: int = field(default=0)

    def text(self, outcome: Outcome) -> str:
        """Render the cell of one fault."""
        cell = outcome.rounds[0].get(self.figure) if outcome.rounds else None
        if cell is None:
            return "-"
        what = _KINDS[cell["outcome"]]
        kind = f"\n{cell['error'].rpartition('.')[2]}" if cell["outcome"] == "error" else ""
        return f"{what}\nn={cell['gets']} {cell['seconds']:.1f} s{kind}"


class _Server(S3Server):
    """Replaces one object as soon as a part of it was answered."""

    def __init__(self, before: bytes, after: bytes, *, ranged: bool) -> None:
        super().__init__()
        self._after = after
        answer = self._answers.answer
        for case in CASES:
            self.put(BUCKET, _key(case), before, case.kept)
            met = (None, *case.met) if case.second and not ranged else case.met
            self.script(BUCKET, _key(case), *met, always=case.always)

        def and_replace(request: Request, fault: Fault) -> Reply:
            reply = answer(request, fault)
            if request.op == "GET" and request.key == _replaced_key() and reply.status == 206:
                self._objects.put(BUCKET, request.key, self._after)
            return reply

        self._answers.answer = and_replace  # type: ignore[method-assign]  # the one place where something can be known to happen between two parts

    def get_count(self, case: Case) -> int:
        """GETs of that object."""
        return sum(request.op == "GET" and request.key == _key(case) for request in self.requests)


def _key(case: Case) -> str:
    return f"fault-{CASES.index(case)}"


def _replaced_key() -> str:
    return next(_key(case) for case in CASES if case.name == _REPLACED)


def run(plan: Plan) -> Result:
    """Let every client meet every fault, once: what is counted here does not vary."""
    generator = random.Random(17)
    before, after = generator.randbytes(_SIZE_BYTES), generator.randbytes(_SIZE_BYTES)
    rows: dict[str, dict[str, Any]] = {case.name: {} for case in CASES}
    notes = ["n: GETs sent. Once: one answer is bad; where bits flip, every answer with that byte, up to three."]
    columns = []
    for client in CLIENTS:
        plan.say(f"faults: {client.name}")
        try:
            found = _meet(client, plan, before, after)
        except ArmFailed as failure:
            missing = "ModuleNotFoundError" in str(failure)
            why = str(failure).splitlines()[-1]
            notes.append(f"{client.name} is left out: {'not installed' if missing else why}")
            plan.say(notes[-1])
            if client.name == "feedd":
                rows[CASES[0].name][client.name] = {"outcome": "error", "error": why, "gets": 0, "seconds": 0.0}
            continue
        columns.append(Cell(client.name, client.name))
        for name, cell in found.items():
            rows[name][client.name] = cell
    result = Result("faults", "what a read gives under each fault", columns, [])
    result.outcomes = [Outcome(name, rounds=[cells]) for name, cells in rows.items()]
    _judge(result, rows)
    result.notes = notes
    return result


def _meet(client: Client, plan: Plan, before: bytes, after: bytes) -> Mapping[str, dict[str, Any]]:
    if not client.ours and plan.peers is None:
        raise ArmFailed(f"{client.name}: ModuleNotFoundError: there is no environment of peers")
    python = Path(sys.executable) if client.ours or plan.peers is None else plan.peers.python
    environment = {} if client.ours or plan.peers is None else plan.peers.environment
    cases = [case for case in CASES if not (case.parts_only and client.ranged)]
    with _Server(before, after, ranged=client.ranged) as server:
        good = [hashlib.sha256(data[_START:_END] if client.ranged else data).hexdigest() for data in (before, after)]
        settings = {
            "url": server.url,
            "start": _START,
            "end": _END,
            "good": {_key(case): good if case.name == _REPLACED else good[:1] for case in cases},
        }
        arm = Arm(client.name, f"tests.bench.arms.fault_{client.module}", python, environment, settings)
        row = run_arm(arm, {}, _TIMEOUT_S)
        return {case.name: row[_key(case)] | {"gets": server.get_count(case)} for case in cases}


def _judge(result: Result, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Hold feedd to exact bytes, or to an error of its own where there are none to be had."""
    bad = []
    for case in CASES:
        cell = rows[case.name].get("feedd", {"outcome": "missing"})
        own = cell["outcome"] == "error" and cell["error"].startswith("feedd.errors.")
        if cell["outcome"] != "exact" and not (case.hopeless and own):
            bad.append(f"{case.name}: {cell}")
    share = 1 - len(bad) / len(CASES)
    result.verdicts.append(Verdict("feedd: exact bytes, or its own error where there are none", share, 1.0))
    if bad:
        result.outcomes.append(Outcome("feedd is wrong", failure="; ".join(bad)))
