"""One channel of a SageMaker job, read from any of the forms in which SageMaker writes it.

A container's ``inputdataconfig.json`` is flat: ``{"TrainingInputMode": "Pipe", "S3DistributionType": ...}``. A request
to the API is nested: ``{"ChannelName": ..., "DataSource": {"S3DataSource": {"S3Uri": ...}}, "InputMode": ...}``. Both
are accepted, with the names of either. Unknown names are ignored, as SageMaker adds new ones.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from feedd.errors import BadRequest, Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping


class DataType(enum.Enum):
    """What the channel's URL names."""

    PREFIX = "S3Prefix"
    MANIFEST = "ManifestFile"
    AUGMENTED = "AugmentedManifestFile"


class Distribution(enum.Enum):
    """Which nodes get which objects."""

    REPLICATED = "FullyReplicated"
    SHARDED = "ShardedByS3Key"


class InputMode(enum.Enum):
    """How the training code reads the channel."""

    FILE = "File"
    FAST_FILE = "FastFile"
    PIPE = "Pipe"


class Compression(enum.Enum):
    """Compression that is removed before the training code reads the data."""

    NONE = "None"
    GZIP = "Gzip"


class RecordWrapper(enum.Enum):
    """What is put around each object, or each attribute of an augmented manifest's line."""

    NONE = "None"
    RECORDIO = "RecordIO"


CHANNELS_MAX: Final = 20
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ATTRIBUTES_MAX: Final = 16
_ATTRIBUTE_CHARS_MAX: Final = 256
_SEED_MIN, _SEED_MAX = -(2**63), 2**63 - 1
_PREFIXES: Final = {DataType.MANIFEST: "manifest+", DataType.AUGMENTED: "augmented+"}
_AMAZON: Final = re.compile(
    r"https://((?P<bucket>[^/]+)\.)?s3([.-][a-z0-9.-]+)?\.amazonaws\.com(\.cn)?/(?P<path>.*)", re.DOTALL | re.IGNORECASE
)

_DISTRIBUTION: Final = ("S3DistributionType", "S3DataDistributionType")
_MODE: Final = ("TrainingInputMode", "InputMode")
_Choice = TypeVar("_Choice", bound=enum.Enum)


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel.

    Attributes:
        name: name of the channel.
        url: ``s3://bucket/prefix``, or the URL of the manifest; empty: not known.
        url_origin: where ``url`` comes from, for messages; empty: nowhere.
        data_type: what ``url`` names.
        distribution: which nodes get which objects.
        input_mode: how the training code reads the channel; None: not said.
        content_type: MIME type; informational.
        compression: compression that is removed in Pipe mode.
        record_wrapper: what is put around objects or attributes in Pipe mode.
        attributes: attributes of an augmented manifest, in the order in which they are sent.
        seed: ``ShuffleConfig.Seed``; None: no shuffling.
        groups: instance groups that get the channel; empty: all.
    """

    name: str
    url: str = ""
    url_origin: str = ""
    data_type: DataType = DataType.PREFIX
    distribution: Distribution = Distribution.REPLICATED
    input_mode: InputMode | None = None
    content_type: str = ""
    compression: Compression = Compression.NONE
    record_wrapper: RecordWrapper = RecordWrapper.NONE
    attributes: tuple[str, ...] = ()
    seed: int | None = None
    groups: tuple[str, ...] = ()

    @property
    def dataset_url(self) -> str:
        """The URL as ``FeedDataset`` takes it: with ``manifest+`` or ``augmented+`` in front of a manifest's URL."""
        return _PREFIXES.get(self.data_type, "") + self.url

    def at(self, url: str, origin: str) -> Channel:
        """Return the channel with a URL; ``manifest+`` and ``augmented+`` in front of the URL choose the data type.

        Args:
            url: URL as ``FeedDataset`` takes it, or as SageMaker takes it.
            origin: where the URL comes from.

        Raises:
            BadRequest: the URL is empty.
        """
        if not url:
            raise _bad(self.name, origin, "expected a URL like s3://bucket/train/, got none")
        for data_type, prefix in _PREFIXES.items():
            if url.startswith(prefix):
                return replace(self, url=s3_url(url.removeprefix(prefix)), url_origin=origin, data_type=data_type)
        return replace(self, url=s3_url(url), url_origin=origin)

    def check(self) -> Channel:
        """Return the channel, if its settings fit together.

        Raises:
            BadRequest: they do not, or the channel has no URL.
        """
        if not self.url:
            raise BadRequest(
                f"expected a URL for channel {self.name!r}, got none: inputdataconfig.json of a container names none",
                hint=(
                    f"write --channel {self.name}=s3://bucket/prefix/, or set the variable"
                    f' FEEDD_CHANNELS=\'{{"{self.name}": "s3://bucket/prefix/"}}\','
                    " or a hyperparameter feedd_channels with the same text"
                ),
                stage="channels",
            )
        augmented = self.data_type is DataType.AUGMENTED
        if augmented and not self.attributes:
            raise _bad(
                self.name,
                self.url,
                "expected AttributeNames for an augmented manifest, got none",
                'name the attributes that the training code reads, in order: "AttributeNames": ["source-ref", "class"]',
            )
        if self.attributes and not augmented:
            raise _bad(
                self.name, self.url, f"expected AttributeNames with AugmentedManifestFile, got {self.data_type.value}"
            )
        return self


def check_name(name: str) -> str:
    """Return the name of a channel.

    Raises:
        BadRequest: SageMaker takes no such name.
    """
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"expected a channel's name of 1 to 64 letters, digits, dots, dashes and underscores, got {name!r}",
            stage="channels",
        )
    return name


def s3_url(uri: str) -> str:
    """Return an ``https://`` URI of Amazon S3 as ``s3://bucket/key``, and any other URI as it is."""
    match = _AMAZON.fullmatch(uri)
    if match is None:
        return uri
    return f"s3://{match['bucket']}/{match['path']}" if match["bucket"] else f"s3://{match['path']}"


def channels_of(config: object, origin: str) -> dict[str, Channel]:
    """Return the channels in the content of ``inputdataconfig.json``, or in ``InputDataConfig`` of an API request.

    Args:
        config: parsed JSON: an object with an entry for each channel, or a list of entries with ``ChannelName``. An
            entry may also be a text: the channel's URL.
        origin: where the JSON comes from, for messages.

    Raises:
        BadRequest: an entry is malformed, or there are too many.
        Unsupported: an entry needs something that feedd does not have.
    """
    if isinstance(config, list):
        named = {}
        for entry in config:
            name = entry.get("ChannelName") if isinstance(entry, dict) else None
            if not isinstance(name, str) or name in named:
                raise _bad("", origin, f"expected each entry with a ChannelName of its own, got {entry!r}")
            named[name] = entry
        config = named
    if not isinstance(config, dict):
        raise _bad("", origin, f"expected a JSON object keyed by channel, got {type(config).__name__}")
    if len(config) > CHANNELS_MAX:
        raise _bad("", origin, f"expected at most {CHANNELS_MAX} channels, got {len(config)}")
    return {name: channel_of(check_name(name), entry, origin) for name, entry in config.items()}


def channel_of(name: str, entry: object, origin: str) -> Channel:
    """Return the channel that one entry describes; see ``channels_of``."""
    if isinstance(entry, str):
        return Channel(name).at(entry, origin)
    if not isinstance(entry, dict):
        raise _bad(name, origin, f"expected a JSON object, got {type(entry).__name__}")
    return _Entry(name, entry, origin).channel()


def merged(channels: Mapping[str, Channel], urls: Mapping[str, Channel]) -> dict[str, Channel]:
    """Return ``channels`` with the URLs of ``urls``, and the channels that only ``urls`` has.

    A channel that names its URL itself keeps it.
    """
    found = dict(channels)
    for name, given in urls.items():
        known = found.get(name)
        if known is None:
            found[name] = given
        elif not known.url:
            plain = given.data_type is DataType.PREFIX
            found[name] = replace(
                known,
                url=given.url,
                url_origin=given.url_origin,
                data_type=known.data_type if plain else given.data_type,
                attributes=known.attributes or given.attributes,
                seed=known.seed if given.seed is None else given.seed,
            )
    return found


class _Entry:
    """Reads one entry."""

    def __init__(self, name: str, entry: Mapping[str, Any], origin: str) -> None:
        self._name, self._origin = name, origin
        source = entry.get("DataSource")
        if isinstance(source, dict) and "S3DataSource" not in source:
            raise Unsupported(
                f"expected an S3DataSource, got {', '.join(source) or 'none'}",
                object=f"channel {name}, {origin}",
                hint="feedd reads objects: of a mounted file system, give the path as URL",
                stage="channels",
            )
        nested = source.get("S3DataSource") if isinstance(source, dict) else None
        if nested is not None and not isinstance(nested, dict):
            raise _bad(name, origin, f"expected S3DataSource to be a JSON object, got {nested!r}")
        self._values: dict[str, Any] = {**entry, **(nested or {})}

    def channel(self) -> Channel:
        """Return the channel.

        Raises:
            BadRequest: a value is malformed.
        """
        url = self._text(("S3Uri",))
        found = Channel(
            self._name,
            data_type=self._choice(("S3DataType",), DataType, DataType.PREFIX),
            distribution=self._choice(_DISTRIBUTION, Distribution, Distribution.REPLICATED),
            input_mode=self._choice(_MODE, InputMode, None),
            content_type=self._text(("ContentType",)),
            compression=self._choice(("CompressionType",), Compression, Compression.NONE),
            record_wrapper=self._choice(("RecordWrapperType",), RecordWrapper, RecordWrapper.NONE),
            attributes=self._names("AttributeNames", _ATTRIBUTES_MAX),
            seed=self._seed(),
            groups=self._names("InstanceGroupNames", 5),
        )
        return found.at(url, self._origin) if url else found

    def _value(self, names: tuple[str, ...]) -> Any:  # noqa: ANN401 - any JSON value
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def _text(self, names: tuple[str, ...]) -> str:
        value = self._value(names)
        if value is not None and not isinstance(value, str):
            raise _bad(self._name, self._origin, f"expected {names[0]} to be a text, got {value!r}")
        return value or ""

    def _choice(self, names: tuple[str, ...], kind: type[_Choice], default: _Choice | Any) -> _Choice | Any:  # noqa: ANN401 - the default's type
        text = self._text(names)
        if not text:
            return default
        for one in kind:
            if one.value.lower() == text.lower():
                return one
        expected = ", ".join(one.value for one in kind)
        raise _bad(self._name, self._origin, f"expected {names[0]} to be one of {expected}, got {text!r}")

    def _names(self, name: str, count_max: int) -> tuple[str, ...]:
        value = self._value((name,))
        if value is None:
            return ()
        texts = isinstance(value, list) and all(
            isinstance(one, str) and 1 <= len(one) <= _ATTRIBUTE_CHARS_MAX for one in value
        )
        if not texts or len(value) > count_max:
            expected = f"up to {count_max} texts of 1 to {_ATTRIBUTE_CHARS_MAX} letters"
            raise _bad(self._name, self._origin, f"expected {name} to be {expected}, got {value!r}")
        return tuple(value)

    def _seed(self) -> int | None:
        config = self._value(("ShuffleConfig",))
        if config is None:
            return None
        seed = config.get("Seed") if isinstance(config, dict) else None
        if not isinstance(seed, int) or isinstance(seed, bool) or not _SEED_MIN <= seed <= _SEED_MAX:
            raise _bad(
                self._name, self._origin, f'expected ShuffleConfig to be {{"Seed": a 64-bit integer}}, got {config!r}'
            )
        return seed


def _bad(name: str, origin: str, message: str, hint: str = "") -> BadRequest:
    about = f"channel {name}, {origin}" if name else origin
    return BadRequest(message, object=about, hint=hint, stage="channels")
