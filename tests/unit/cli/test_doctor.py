"""What ``feedd doctor`` refuses before it measures, and what it copies for ``--what-if local``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from feedd.cli import doctor
from feedd.cli.doctor import copy_first
from feedd.cli.flags import Flags
from feedd.errors import BadRequest

if TYPE_CHECKING:
    from pathlib import Path

    from feedd.cli.doctor import UrlOptions
    from tests.unit.cli.conftest import Feedd


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("s3://b/", "--fields", "{"), "expected a JSON object, got {"),
        (("s3://b/", "--fields", "[1]"), "expected a JSON object, got [1]"),
        (("s3://b/", "--what-if", "faster"), "expected cached, decoded or local, got 'faster'"),
        (("s3://b/", "--job", "1234"), "expected no URL with --job"),
        (("--what-if", "cached"), "expected a URL with --what-if"),
        (("--fields", "{}"), "expected a URL with --fields"),
        (("--batch-size", "0"), "Invalid value for '--batch-size'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_doctor_refuses_what_it_cannot_do(feedd: Feedd, arguments: tuple[str, ...], message: str) -> None:
    """Exit code 2 and one sentence; nothing is started."""
    outcome = feedd("doctor", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


@pytest.mark.parametrize(("flags", "expected"), [((), "unix:///a.sock"), (("--address", "b:1"), "b:1")])
def test_doctor_of_a_url_uses_the_daemon_that_the_user_names(
    feedd: Feedd, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], expected: str
) -> None:
    """By --address, else by FEEDD_ADDRESS, as for every command."""
    seen = []

    async def measure(options: UrlOptions, flags: Flags) -> None:
        seen.append(options.address)
        raise BadRequest("enough", object=str(flags.config), stage="cli")

    monkeypatch.setattr(doctor, "measure_url", measure)
    monkeypatch.setenv("FEEDD_ADDRESS", "unix:///a.sock")
    assert "enough" in feedd("doctor", "s3://b/", *flags).err
    assert seen == [expected]


async def test_the_first_objects_are_copied(tmp_path: Path) -> None:
    """In the order of the listing, folders included, until there are enough bytes."""
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("a/1.tar", "a/2.tar", "b/3.tar", "c.tar"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(name.encode() * 100)
    await copy_first(f"file://{source}/", 1500, target, Flags())
    copied = {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*.tar")}
    assert copied == {name: name.encode() * 100 for name in ("a/1.tar", "a/2.tar", "b/3.tar")}
    with pytest.raises(BadRequest, match="expected a prefix"):
        await copy_first(f"manifest+file://{source}/list.txt", 1500, target, Flags())
