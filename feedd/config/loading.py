"""Merges flags, environment and file into one checked configuration; reports all problems, each with its origin."""

from __future__ import annotations

import difflib
import functools
import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from feedd.config.models import Config
from feedd.config.option_list import NAMED_SECTIONS, dotted, options, render, section_of
from feedd.config.toml_lines import line_of
from feedd.config.types import is_open_tcp
from feedd.errors import BadConfig
from feedd.observe.logs import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic_core import ErrorDetails

DEFAULT_FILE = Path("/etc/feedd/feedd.toml")
DEFAULT_ORIGIN = "default"
PROCESS_TREE = "process tree"
"""Origin of values that a daemon of one process tree has where nobody configured anything."""
ENV_PREFIX = "FEEDD_"
ENV_FILE = "FEEDD_CONFIG"
_CLIENTS = {
    "FEEDD_ADDRESS",
    "FEEDD_EPHEMERAL_ADDRESS",
    "FEEDD_EXECUTABLE",
    "FEEDD_TLS_CA",
    "FEEDD_TLS_CERT",
    "FEEDD_TLS_KEY",
}
# Of commands, not of the daemon.
_NOT_OPTIONS = _CLIENTS | {ENV_FILE, "FEEDD_CHANNELS", "FEEDD_DEBUG", "FEEDD_LANE_SUPERVISOR"}
# Kubernetes sets these in every pod that can see a Service named feedd.
_SERVICE_LINK = re.compile(r"FEEDD_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)")

_EXAMPLES = {
    "s3": '{"bucket": {"region": "eu-west-1"}}',
    "owners": '{"1000": {"allow_urls": ["s3://bucket/train/"]}}',
}

REMOVED = {
    "cache.memory": "this option was removed: to keep shards in memory, set cache.dir to a folder on tmpfs, such as "
    "/dev/shm/feedd, and cache.size to the memory that they may take",
    "fetch.transport": "this option was removed: feedd has one reader of S3, so leave the option out",
}
"""Options of earlier versions, and what to write instead."""

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem in a configuration.

    Attributes:
        name: dotted name of the option, or the name that the user wrote if no such option exists.
        value: the value that the user wrote, without secrets.
        origin: ``flag --cache-size``, ``env FEEDD_CACHE__SIZE``, ``/etc/feedd/feedd.toml line 7`` or ``default``.
        expected: what a correct value looks like.
    """

    name: str
    value: str
    origin: str
    expected: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value} ({self.origin}): {self.expected}"


class ConfigProblems(BadConfig):
    """Everything that is wrong with a configuration.

    Attributes:
        problems: at least one.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        count = f"{len(problems)} problems" if len(problems) > 1 else "1 problem"
        lines = "; ".join(str(problem) for problem in problems)
        super().__init__(f"{count} in the configuration: {lines}", stage="config", hint="see feedd check")
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Effective:
    """The configuration in force.

    Attributes:
        origins: where each option of ``render(config)`` came from, by dotted name.
        file: the TOML file read, if any.
    """

    config: Config
    origins: dict[str, str]
    file: Path | None = None


@dataclass
class _Layers:
    """Raw values by path, the strongest layer last, with their origins."""

    values: dict[Path_, Any] = field(default_factory=dict)
    origins: dict[Path_, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def put(self, path: Path_, value: object, origin: str) -> None:
        self.values[path] = value
        self.origins[path] = origin

    def unknown(self, name: str, value: object, origin: str, close: str) -> None:
        hint = f", did you mean {close}?" if close else ""
        removed = REMOVED.get(name.removeprefix(ENV_PREFIX).replace("__", ".").lower())
        self.problems.append(Problem(name, _shown(value), origin, removed or f"there is no such option{hint}"))

    def nested(self) -> dict[str, Any]:
        root: dict[str, Any] = {}
        for path, value in self.values.items():
            at = root
            for part in path[:-1]:
                at = at.setdefault(part, {})
            at[path[-1]] = value
        return root


def _shown(value: object) -> str:
    return redact_text(str(value) if isinstance(value, str | int | float) else json.dumps(value, default=str))


@functools.cache
def _known() -> dict[Path_, str]:
    return {option.path: option.env for option in options()}


def _is_option(path: Path_) -> bool:
    if path[0] in NAMED_SECTIONS and len(path) == 3:
        return path[2] in NAMED_SECTIONS[path[0]][0].model_fields
    return path in _known()


def _closest(name: str, names: Iterator[str]) -> str:
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return found[0] if found else ""


def _flatten(tree: Mapping[str, Any], above: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Yield leaves; an option whose value is a table by itself (none today) would be a leaf too."""
    for key, value in tree.items():
        path = (*above, key)
        if isinstance(value, dict) and not _is_option(path) and (value or len(path) > 1):
            yield from _flatten(value, path)
        elif not (isinstance(value, dict) and not value):
            yield path, value


def _suggest(path: Path_) -> str:
    if path[0] in NAMED_SECTIONS and len(path) == 3:
        return _closest(path[2], iter(NAMED_SECTIONS[path[0]][0].model_fields))
    return _closest(dotted(path), (option.name for option in options()))


def _put_tree(layers: _Layers, tree: Mapping[str, Any], origin: str, text: str = "") -> None:
    for path, value in _flatten(tree):
        line = line_of(text, path) if text else None
        where = f"{origin} line {line}" if line else origin
        info = Config.model_fields.get(path[0])
        whole_section = (
            len(path) == 1 and info is not None and (section_of(info) is not None or path[0] in NAMED_SECTIONS)
        )
        if whole_section:
            layers.problems.append(Problem(path[0], _shown(value), where, f"expected a table [{path[0]}]"))
        elif _is_option(path):
            layers.put(path, value, where)
        else:
            layers.unknown(dotted(path), value, where, _suggest(path))


def _read_file(layers: _Layers, path: Path | None) -> None:
    if path is None:
        return
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        layers.problems.append(Problem("--config", str(path), "flag --config", f"cannot be read: {error}"))
    except tomllib.TOMLDecodeError as error:
        layers.problems.append(Problem("--config", str(path), str(path), f"expected TOML: {error}".lower()))
    else:
        _put_tree(layers, tree, str(path), text)


def _read_env(layers: _Layers, env: Mapping[str, str]) -> None:
    by_variable = {variable: path for path, variable in _known().items() if variable}
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX) or variable in _NOT_OPTIONS or _SERVICE_LINK.fullmatch(variable):
            continue
        origin = f"env {variable}"
        named = variable.removeprefix(ENV_PREFIX).lower()
        if named in NAMED_SECTIONS:
            _read_named(layers, named, env[variable], origin)
        elif variable in by_variable:
            layers.put(by_variable[variable], env[variable], origin)
        else:
            layers.unknown(variable, env[variable], origin, _closest(variable, iter(by_variable)))


def _read_named(layers: _Layers, name: str, text: str, origin: str) -> None:
    try:
        tree = json.loads(text)
    except ValueError:
        tree = None
    if not isinstance(tree, dict) or not all(isinstance(each, dict) for each in tree.values()):
        layers.problems.append(
            Problem(name, redact_text(text), origin, f"expected a JSON object like {_EXAMPLES[name]}")
        )
        return
    _put_tree(layers, {name: tree}, origin)


def _read_flags(layers: _Layers, flags: Mapping[str, tuple[object, str]]) -> None:
    for name, (value, origin) in flags.items():
        try:
            ((path, _),) = _flatten(tomllib.loads(f"{name} = 0"))
        except (tomllib.TOMLDecodeError, ValueError):
            layers.problems.append(Problem(name, _shown(value), origin, "expected a dotted name like cache.size"))
            continue
        if _is_option(path):
            layers.put(path, value, origin)
        else:
            layers.unknown(dotted(path), value, origin, _suggest(path))


def _judged(layers: _Layers, error: ErrorDetails) -> Problem:
    loc = tuple(str(part) for part in error["loc"])
    path = next((loc[:end] for end in range(len(loc), 0, -1) if loc[:end] in layers.origins), None)
    known = path if path is not None else loc[:2]
    value = layers.values.get(known, error["input"])
    expected = error["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    origin = layers.origins.get(known, DEFAULT_ORIGIN)
    return Problem(dotted(known), _shown(value), origin, expected[:1].lower() + expected[1:])


def _cross_checks(config: Config, origins: Mapping[str, str]) -> list[Problem]:
    """Return the problems that concern several options together."""
    found: list[Problem] = []

    def problem(name: str, expected: str) -> None:
        found.append(Problem(name, render(config)[name], origins.get(name, DEFAULT_ORIGIN), expected))

    tls = config.tls
    if (tls.cert is None) != (tls.key is None):
        problem("tls.key" if tls.cert else "tls.cert", "expected tls.cert and tls.key together, got one of them")
    if tls.client_ca and not tls.cert:
        problem("tls.client_ca", "expected tls.cert and tls.key as well: client certificates need TLS")
    beyond = [address for address in config.listen if is_open_tcp(address)]
    if beyond and not tls.cert and not config.security.allow_insecure_tcp:
        problem(
            "listen",
            f"expected TLS for {', '.join(beyond)}, which other machines can reach: set tls.cert and tls.key, "
            "or security.allow_insecure_tcp = true on a network you trust",
        )
    if (
        beyond
        and tls.cert
        and not tls.client_ca
        and not (config.security.allow_anonymous_tcp or config.security.allow_insecure_tcp)
    ):
        problem(
            "listen",
            f"expected tls.client_ca for {', '.join(beyond)}, which other machines can reach: without client "
            "certificates anybody there may read; or set security.allow_anonymous_tcp = true",
        )
    for bucket, s3 in config.s3.items():
        if s3.client_key and not s3.client_certificate:
            expected = f'expected client_certificate in [s3."{bucket}"] as well: a key alone is not shown'
            problem(f's3."{bucket}".client_key', expected)
    found += _peer_checks(config, origins)
    part_size = config.fetch.part_size
    if part_size != "auto" and part_size > config.fetch.bytes_in_flight:
        problem("fetch.part_size", "expected at most fetch.bytes_in_flight: one part would never fit")
    return found


def _peer_checks(config: Config, origins: Mapping[str, str]) -> list[Problem]:
    """Return the problems of the peer cache's options together."""
    peers, expected = config.peers, ""
    if peers.listen is None:
        return []
    if peers.ca is not None and not (config.tls.cert and config.tls.key):
        name, expected = "peers.ca", "expected tls.cert and tls.key as well: daemons show each other a certificate"
    elif peers.ca is None and is_open_tcp(peers.listen) and not config.security.allow_insecure_tcp:
        name = "peers.listen"
        expected = (
            f"expected TLS for {peers.listen}, which other machines can reach: set peers.ca, tls.cert and tls.key, "
            "or security.allow_insecure_tcp = true on a network you trust"
        )
    elif not peers.members and peers.members_file is None:
        name, expected = "peers.members", "expected the other daemons, in peers.members or in peers.members_file"
    return [Problem(name, render(config)[name], origins.get(name, DEFAULT_ORIGIN), expected)] if expected else []


def find_file(flag: Path | None, env: Mapping[str, str]) -> Path | None:
    """Return the file to read: the flag's, else ``$FEEDD_CONFIG``, else ``/etc/feedd/feedd.toml`` if it exists."""
    if flag is not None:
        return flag
    if env.get(ENV_FILE):
        return Path(env[ENV_FILE])
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def load(flags: Mapping[str, tuple[object, str]], env: Mapping[str, str], toml_path: Path | None = None) -> Effective:
    """Merge flag, environment, file and default, the first named strongest, and check the result.

    Args:
        flags: dotted name to (value, origin such as ``flag --cache-size``); only flags that were given.
        env: environment; only ``FEEDD_…`` is looked at.
        toml_path: file to read, from ``find_file``; None: no file.

    Raises:
        ConfigProblems: with every problem found.
    """
    layers = _Layers()
    _read_file(layers, toml_path)
    _read_env(layers, env)
    _read_flags(layers, flags)
    config: Config | None = None
    try:
        config = Config.model_validate(layers.nested())
    except ValidationError as error:
        # A default that depends on an option that is itself wrong is not a second problem.
        layers.problems += [
            _judged(layers, each)
            for each in error.errors(include_url=False)
            if each["type"] != "default_factory_not_called"
        ]
    origins: dict[str, str] = {}
    if config is not None:
        given = {dotted(path): origin for path, origin in layers.origins.items()}
        origins = {name: given.get(name, DEFAULT_ORIGIN) for name in render(config)}
        layers.problems += _cross_checks(config, origins)
    if config is None or layers.problems:
        raise ConfigProblems(tuple(layers.problems))
    return Effective(config, origins, toml_path)
