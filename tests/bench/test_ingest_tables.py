"""Tables and verdicts of ``python -m tests.bench.ingest``, from rows made up."""

from __future__ import annotations

import pytest

from tests.bench.harness import Outcome, Row
from tests.bench.ingest.run import CLEAN, DELAYED, ERRORS, HTTP, TLS, Section
from tests.bench.ingest.store import Place
from tests.bench.ingest.tables import percentile, results

_PLACE = Place("http://127.0.0.1:1", "us-east-1", "bench", "", (("a", 10**9),), {})


def _outcome(name: str, rate: float, cost: float, **more: object) -> Outcome:
    row: Row = {"rate": rate * 1e9, "cpu_per_gb": cost, "peak_resident_bytes": 75_000_000, **more}
    return Outcome(name, rounds=[row, dict(row)], warmup=dict(row))


def _verdicts(section: Section, *others: Section) -> dict[str, tuple[float, bool]]:
    found = results([section, *others])[0].verdicts
    return {verdict.text: (round(verdict.ratio, 3), verdict.met) for verdict in found}


def test_costs_are_held_against_the_cheapest_and_the_fastest() -> None:
    """Each of the peers may be best at something, and the best counts."""
    arms = [_outcome("server's limit", 2.0, 0.1), _outcome("feedd", 1.9, 0.6)]
    arms += [_outcome("obstore", 1.0, 1.0), _outcome("boto3", 1.9, 1.2), _outcome("aiobotocore", 0.5, 2.0)]
    arms.append(_outcome("feedd, 64 parts in flight", 1.9, 0.6))
    assert _verdicts(Section(HTTP, _PLACE, None, arms)) == {
        "CPU per GB over obstore, the cheapest": (0.6, True),
        "CPU per GB over aiobotocore": (0.3, True),
        "GB/s over boto3, the fastest": (1.0, True),
        "GB/s over the server's limit": (0.95, True),
        "peak RSS beyond the cache over 150 MB, 64 parts in flight": (0.5, True),
    }


def test_over_tls_the_target_is_another() -> None:
    """Over TLS feedd may cost what the cheapest costs, and 5 % more."""
    section = Section(TLS, _PLACE, None, [_outcome("feedd", 1.0, 1.06), _outcome("awscrt", 1.0, 1.0)])
    assert _verdicts(section)["CPU per GB over awscrt, the cheapest"] == (1.06, False)


def test_a_peer_that_failed_is_no_measure() -> None:
    """What dropped out is in no ratio, however cheap its rounds were."""
    failed = _outcome("obstore", 9.0, 0.1)
    failed.failure = "exit 1"
    section = Section(HTTP, _PLACE, None, [_outcome("feedd", 1.0, 1.0), failed])
    assert _verdicts(section) == {}


def test_faulty_sections_are_held_against_the_clean_one() -> None:
    """Rate, tail and requests are ratios to the run without faults."""
    parts_s = [0.1] * 98 + [0.15] * 2
    clean = Section(CLEAN, _PLACE, None, [_outcome("feedd", 1.0, 1.0, gets_per_s=100.0)])
    late = Section(DELAYED, _PLACE, None, [_outcome("feedd", 0.97, 1.0, parts_s=parts_s)])
    refused = Section(ERRORS, _PLACE, None, [_outcome("feedd", 0.8, 1.0, gets_per_s=140.0)])
    assert _verdicts(late, clean) == {
        "feedd's GB/s over the clean run's": (0.97, True),
        "feedd's part p99 over p50": (1.5, True),
    }
    assert _verdicts(refused, clean) == {
        "feedd's GB/s over the clean run's": (0.8, False),
        "feedd's GETs/s over the clean run's": (1.4, False),
    }


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentiles_are_values_that_were_seen(share: float, expected: int) -> None:
    """The percentile is the smallest value that so many do not exceed."""
    assert percentile(list(range(100, 0, -1)), share) == expected
