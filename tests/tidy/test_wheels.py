"""Both wheels, as an index gets them: what they say of themselves, and what is in them."""

from __future__ import annotations

import configparser
import importlib
import subprocess
import sys
import zipfile
from email import message_from_string
from typing import TYPE_CHECKING

import pytest

from tests.tidy.tree import ROOT, committed

if TYPE_CHECKING:
    from email.message import Message
    from pathlib import Path

pytestmark = pytest.mark.slow
_STUBS = {"feedd_pb2.py", "feedd_pb2.pyi", "feedd_pb2_grpc.py"}


class _Wheel:
    """A wheel that was built from one of the two projects of the tree."""

    def __init__(self, project: Path, folder: Path) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
        done = subprocess.run(command, check=False, cwd=project, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        self.project = project
        (self._path,) = folder.glob("*.whl")
        with zipfile.ZipFile(self._path) as archive:
            self.names = set(archive.namelist())

    def read(self, ending: str) -> bytes:
        """Return the one file in the folder of metadata whose name ends like that."""
        (name,) = [one for one in self.names if ".dist-info/" in one and one.endswith(ending)]
        with zipfile.ZipFile(self._path) as archive:
            return archive.read(name)

    @property
    def metadata(self) -> Message:
        """What pip and an index read."""
        return message_from_string(self.read("METADATA").decode())


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> _Wheel:
    """The wheel of the daemon."""
    return _Wheel(ROOT, tmp_path_factory.mktemp("feedd"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> _Wheel:
    """The wheel of the client."""
    return _Wheel(ROOT / "client", tmp_path_factory.mktemp("client"))


def test_wheels_hold_their_package_and_nothing_else(daemon: _Wheel, client: _Wheel) -> None:
    """Every committed file of the package is in its wheel, without documents; beside it there is only metadata."""
    for wheel, above, package in ((daemon, "", "feedd"), (client, "client/", "feedd_client")):
        tracked = {str(path) for path in committed() if str(path).startswith(f"{above}{package}/")}
        wanted = {path.removeprefix(above) for path in tracked if not path.endswith(".md")}
        assert {name for name in wheel.names if ".dist-info/" not in name} == wanted
        assert {f"{package}/__init__.py", f"{package}/py.typed"} <= wanted
    assert {f"feedd/wire/{name}" for name in _STUBS} <= daemon.names
    assert {f"feedd_client/_wire/{name}" for name in _STUBS} <= client.names


def test_wheels_say_what_they_are(daemon: _Wheel, client: _Wheel) -> None:
    """Name, version, licence, Python and a description for people are in the metadata; no link leads nowhere."""
    versions = {(wheel.metadata["Name"], wheel.metadata["Version"]) for wheel in (daemon, client)}
    assert {name for name, _ in versions} == {"feedd", "feedd-client"}
    assert len({version for _, version in versions}) == 1
    for wheel in (daemon, client):
        metadata = wheel.metadata
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["License-File"] == "LICENSE"
        assert metadata["Requires-Python"] == ">=3.11"
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert metadata.get_payload() == (wheel.project / "README.md").read_text(encoding="utf-8")
        assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= set(metadata.get_all("Classifier", []))
        assert not [url for url in metadata.get_all("Project-URL", []) if "example" in url or ".invalid" in url]


def test_libraries_find_the_file_system(client: _Wheel) -> None:
    """Fsspec looks for feedd:// among these entry points; the class is there."""
    entries = configparser.ConfigParser()
    entries.read_string(client.read("entry_points.txt").decode())
    module, name = entries["fsspec.specs"]["feedd"].split(":")
    assert getattr(importlib.import_module(module), name).protocol == "feedd"


def test_licence_is_in_both_wheels(daemon: _Wheel, client: _Wheel) -> None:
    """Both wheels carry the text of the licence, and it is the repository's."""
    text = (ROOT / "LICENSE").read_bytes()
    assert daemon.read("licenses/LICENSE") == text
    assert client.read("licenses/LICENSE") == text


def test_versions_in_code_and_metadata_are_one(daemon: _Wheel, client: _Wheel) -> None:
    """``__version__`` of both packages is the version of the wheels."""
    for wheel, path in ((daemon, "feedd/__init__.py"), (client, "feedd_client/_version.py")):
        said = (wheel.project / path).read_text(encoding="utf-8")
        assert f'__version__ = "{wheel.metadata["Version"]}"' in said


def test_daemon_has_its_command_and_no_torch(daemon: _Wheel, client: _Wheel) -> None:
    """The daemon's wheel installs the command feedd, and needs torch for the demo and development only."""
    assert b"feedd = feedd.cli:main" in daemon.read("entry_points.txt")
    torch = [line for line in daemon.metadata.get_all("Requires-Dist", []) if line.startswith("torch")]
    assert torch
    assert all("extra ==" in line for line in torch)
    needed = {line.partition(">")[0] for line in client.metadata.get_all("Requires-Dist", [])}
    assert needed == {"grpcio", "numpy", "protobuf", "torch"}
