"""A SageMaker job as its container sees it: channels, hosts, and where the URLs of channels come from.

A container's ``inputdataconfig.json`` does not name the URLs. They come from the first of these that has one:

1. the flag ``--channel NAME=URL``;
2. ``S3Uri`` in ``inputdataconfig.json``, which only files of other origin have;
3. the variable ``FEEDD_CHANNELS``, a JSON object: a URL for each channel, or an entry as in a request to the API;
4. the hyperparameter ``feedd_channels`` with the same text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from feedd.channels.channel import (
    Channel,
    Compression,
    DataType,
    Distribution,
    RecordWrapper,
    channels_of,
    check_name,
    merged,
)
from feedd.errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONFIG_FOLDER: Final = "input/config"
DATA_FOLDER: Final = "input/data"
URLS_VARIABLE: Final = "FEEDD_CHANNELS"
INPUT_FILE: Final = "inputdataconfig.json"
ADDED_BY: Final = "AddedBy"
"""Key of entries that a command of feedd added for other readers; such entries are no part of the job."""
_CLUSTER_FILE: Final = "resourceconfig.json"
_HYPERPARAMETER_FILE: Final = "hyperparameters.json"
_HYPERPARAMETERS: Final = ("feedd_channels", "feedd-channels")
_FILE_BYTES_MAX: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Cluster:
    """The hosts of a job.

    Attributes:
        hosts: names of all hosts, in the order of their ranks.
        current: name of this host.
        groups: hosts of each instance group.
        origin: where the hosts come from, for messages.
    """

    hosts: tuple[str, ...] = ("localhost",)
    current: str = "localhost"
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    origin: str = "a single node"

    @classmethod
    def numbered(cls, node_count: int, node_rank: int) -> Cluster:
        """Return a cluster of hosts without names.

        Raises:
            BadRequest: the rank is not below the number of nodes.
        """
        if not 0 <= node_rank < node_count:
            raise BadRequest(f"expected --node-rank below --nodes {node_count}, got {node_rank}", stage="channels")
        names = tuple(f"node {rank}" for rank in range(node_count))
        return cls(names, names[node_rank], origin="flag --nodes")

    def node_of(self, channel: Channel) -> tuple[int, int] | None:
        """Return the number of nodes that get a channel and this node's rank; None: this node does not get it.

        Raises:
            BadRequest: the channel names instance groups that the cluster does not have.
        """
        if not channel.groups:
            return len(self.hosts), self.hosts.index(self.current)
        unknown = [group for group in channel.groups if group not in self.groups]
        if unknown:
            known = ", ".join(self.groups) or "none"
            raise BadRequest(
                f"expected instance groups of this job ({known}), got {', '.join(unknown)}",
                object=f"channel {channel.name}, {self.origin}",
                stage="channels",
            )
        members = {host for group in channel.groups for host in self.groups[group]}
        hosts = [host for host in self.hosts if host in members]
        return (len(hosts), hosts.index(self.current)) if self.current in hosts else None


@dataclass(frozen=True, slots=True)
class ChannelFlags:
    """The flags of a command that reads channels; None or empty: not given.

    Attributes:
        urls: ``NAME=URL`` of each ``--channel``.
        sharding: ``key`` or ``replicated``.
        seed: ``ShuffleConfig.Seed``.
        record_wrapper: ``RecordIO`` or ``None``.
        compression: ``Gzip`` or ``None``.
        attributes: attributes of augmented manifests.
    """

    urls: tuple[str, ...] = ()
    sharding: str | None = None
    seed: int | None = None
    record_wrapper: str | None = None
    compression: str | None = None
    attributes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The given settings as fields of ``Channel``.

        Raises:
            BadRequest: a value is unknown.
        """
        found: dict[str, Any] = {}
        if self.sharding is not None:
            modes = {"key": Distribution.SHARDED, "replicated": Distribution.REPLICATED}
            found["distribution"] = _flag("--sharding", self.sharding, modes)
        if self.seed is not None:
            found["seed"] = self.seed
        if self.record_wrapper is not None:
            found["record_wrapper"] = _flag(
                "--record-wrapper", self.record_wrapper, {one.value: one for one in RecordWrapper}
            )
        if self.compression is not None:
            found["compression"] = _flag("--compression", self.compression, {one.value: one for one in Compression})
        return found


@dataclass(frozen=True, slots=True)
class Job:
    """What a container's files and variables say.

    Attributes:
        root: folder that has the role of ``/opt/ml``.
        known: channels, some of them without a URL.
        cluster: the hosts.
    """

    root: Path
    known: Mapping[str, Channel]
    cluster: Cluster

    @classmethod
    def read(cls, root: Path, env: Mapping[str, str]) -> Job:
        """Read the files below ``root``, or, where a file is missing, the variables of the SageMaker toolkit.

        Raises:
            BadRequest: a file or variable is malformed.
            Unsupported: a channel needs something that feedd does not have.
        """
        folder = root / CONFIG_FOLDER
        known = _channels(folder, env)
        if env.get(URLS_VARIABLE):
            origin = f"${URLS_VARIABLE}"
            known = merged(known, channels_of(_json(env[URLS_VARIABLE], origin), origin))
        known = merged(known, _hyperparameter(folder, env))
        return cls(root, known, _cluster(folder, env))

    def channels(self, flags: ChannelFlags) -> tuple[Channel, ...]:
        """Return the channels to read: those of the flags, or else all that the job has.

        Settings that no flag gives are those of the job's channel of this name, if there is one.

        Raises:
            BadRequest: a flag is malformed, a channel lacks a URL, or its settings do not fit together.
        """
        chosen = dict(self.known)
        settings = flags.settings
        if flags.urls:
            pairs = [_pair(text) for text in flags.urls]
            chosen = {name: self.known.get(name, Channel(name)).at(url, "flag --channel") for name, url in pairs}
            if len(chosen) < len(pairs):
                raise BadRequest(f"expected each --channel once, got {', '.join(flags.urls)}", stage="channels")
        elif settings or flags.attributes:
            raise BadRequest(
                "expected --channel NAME=URL with the flags that describe channels, got none",
                hint=f"{INPUT_FILE} describes its channels itself",
                stage="channels",
            )
        if not chosen:
            raise BadRequest(
                f"expected a channel, got none: {self.root / CONFIG_FOLDER / INPUT_FILE} is missing or empty",
                hint="write --channel train=s3://bucket/train/",
                stage="channels",
            )
        found = []
        for channel in chosen.values():
            named = flags.attributes if channel.data_type is DataType.AUGMENTED else ()
            found.append(replace(channel, **settings, attributes=named or channel.attributes).check())
        return tuple(found)


def _pair(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals or not url:
        raise BadRequest(f"expected --channel NAME=URL, got {text!r}", stage="channels")
    return check_name(name), url


def _flag(name: str, text: str, known: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a value of ``known``
    for word, value in known.items():
        if word.lower() == text.lower():
            return value
    raise BadRequest(f"expected {name} to be one of {', '.join(known)}, got {text!r}", stage="channels")


def _channels(folder: Path, env: Mapping[str, str]) -> dict[str, Channel]:
    path = folder / INPUT_FILE
    config = read_json(path)
    if isinstance(config, dict):
        config = {name: entry for name, entry in config.items() if not is_added(entry)}
    if config is not None:
        return channels_of(config, str(path))
    if env.get("SM_INPUT_DATA_CONFIG"):
        origin = "$SM_INPUT_DATA_CONFIG"
        return channels_of(_json(env["SM_INPUT_DATA_CONFIG"], origin), origin)
    return {}


def is_added(entry: object) -> bool:
    """Whether a command of feedd added an entry to ``inputdataconfig.json``; see ``channels.announcement``."""
    return isinstance(entry, dict) and bool(entry.get(ADDED_BY))


def _hyperparameter(folder: Path, env: Mapping[str, str]) -> dict[str, Channel]:
    path = folder / _HYPERPARAMETER_FILE
    parameters, origin = read_json(path), str(path)
    if parameters is None:
        parameters, origin = _json(env.get("SM_HPS") or "{}", "$SM_HPS"), "$SM_HPS"
    if not isinstance(parameters, dict):
        raise BadRequest(f"expected a JSON object, got {parameters!r}", object=origin, stage="channels")
    for name in _HYPERPARAMETERS:
        value = parameters.get(name)
        origin_of_value = f"hyperparameter {name}"
        for _ in range(2):  # the SDK encodes texts once more
            value = _json(value, origin_of_value) if isinstance(value, str) else value
        if value is not None:
            return channels_of(value, origin_of_value)
    return {}


def _cluster(folder: Path, env: Mapping[str, str]) -> Cluster:
    path = folder / _CLUSTER_FILE
    config, origin = read_json(path), str(path)
    if config is None:
        if not env.get("SM_HOSTS") or not env.get("SM_CURRENT_HOST"):
            return Cluster()
        origin = "$SM_HOSTS"
        config = {"hosts": _json(env["SM_HOSTS"], origin), "current_host": env["SM_CURRENT_HOST"]}
    said: dict[str, Any] = config if isinstance(config, dict) else {}
    hosts, current = said.get("hosts"), said.get("current_host")
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts) or current not in hosts:
        raise BadRequest(
            f"expected hosts and current_host, one of them, got {hosts!r} and {current!r}",
            object=origin,
            hint="without --nodes and --node-rank, this node's rank is the position of current_host among the hosts",
            stage="channels",
        )
    return Cluster(_sorted(hosts), str(current), _groups(said, origin), origin)


def _groups(config: Mapping[str, Any], origin: str) -> dict[str, tuple[str, ...]]:
    try:
        return {
            str(group["instance_group_name"]): _sorted(group["hosts"]) for group in config.get("instance_groups") or ()
        }
    except (KeyError, TypeError) as error:
        message = f"expected instance_groups with instance_group_name and hosts, got {error!r}"
        raise BadRequest(message, object=origin, stage="channels") from error


def _sorted(hosts: Sequence[str]) -> tuple[str, ...]:
    """Sort hosts as the client does: algo-2 goes before algo-10."""
    return tuple(
        sorted(hosts, key=lambda host: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", host)])
    )


def read_json(path: Path) -> Any:  # noqa: ANN401 - any JSON value
    """Return the content of a JSON file; None: there is no file.

    Raises:
        BadRequest: the file cannot be read, is too large, or is no JSON.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"expected a file that can be read, got {error}", object=str(path), stage="channels"
        ) from error
    if len(data) > _FILE_BYTES_MAX:
        raise BadRequest(f"expected at most {_FILE_BYTES_MAX} bytes, got more", object=str(path), stage="channels")
    return _json(text, str(path))


def _json(text: str, origin: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"expected JSON, got {error}", object=origin, stage="channels") from error
