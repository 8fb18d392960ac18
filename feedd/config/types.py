"""Types of option values: sizes, durations, addresses, and lists that may be written as one text."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field

from feedd.access import completed
from feedd.config.machine_cores import auto_lanes, parse_cores
from feedd.config.machine_defaults import gpu_count, usable_cores, usable_cpus
from feedd.units import GIB, KIB, format_size, is_loopback, parse_duration_s, parse_host_port, parse_size

if TYPE_CHECKING:
    from collections.abc import Collection

OFF = "off"
UNIX_PREFIX = "unix://"
_PART_LEAST, _PART_MOST = 64 * KIB, 4 * GIB
_UNIX_PATH_MAX = 101  # bytes: sockaddr_un has 108 with the terminating zero, and the arena's socket appends ".arena"


LANES_MAX = 64
LANE_PORTS = 100  # from the TCP port of one lane to that of the next; the status page has a port close to the first


class SizeUnit:
    """Marks a field as bytes, to be shown as ``64MiB``."""


class DurationUnit:
    """Marks a field as seconds, to be shown as ``30s``."""


class CpuSet:
    """Marks a field as cores, to be shown as ``8-15,20``."""


def _size(value: Any) -> int:  # noqa: ANN401 - the user may write any type
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"expected a size like 64MiB, got {value!r}")  # noqa: TRY004 - pydantic collects ValueError only
    return parse_size(value)


def _part_size(value: Any) -> str | int:  # noqa: ANN401 - the user may write any type
    if value == "auto":
        return "auto"
    size = _size(value)
    if not _PART_LEAST <= size <= _PART_MOST:
        raise ValueError(f"expected auto, or a size from {format_size(_PART_LEAST)} to {format_size(_PART_MOST)}")
    return size


def _duration(value: Any) -> float:  # noqa: ANN401 - the user may write any type
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"expected a duration like 30s, got {value!r}")  # noqa: TRY004 - pydantic collects ValueError only
    return parse_duration_s(value)


def split_pairs(value: Any) -> Any:  # noqa: ANN401 - the user may write any type
    """Accept ``name=value, name=value`` for a table, because a variable holds a table as one text."""
    if not isinstance(value, str):
        return value
    if value.strip() == "-":  # how an empty table is shown
        return {}
    pairs = [item.strip().rpartition("=") for item in value.split(",") if item.strip()]
    if not all(name for name, _, _ in pairs):
        raise ValueError(f"expected URL=SIZE pairs with commas between them, got {value!r}")
    return {name.strip(): size.strip() for name, _, size in pairs}


def _quota_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    if scheme not in {"s3", "file"} or not rest:
        raise ValueError(f"expected a URL like s3://bucket/prefix/, got {url!r}")
    return url


def split_list(value: Any) -> Any:  # noqa: ANN401 - the user may write any type
    """Accept ``a, b`` for a list, because a variable holds a list as one text."""
    if isinstance(value, str):
        return [item.strip() for item in value.split(",") if item.strip()]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


def check_listen(value: str) -> str:
    """Return an address to listen at, ``unix:///path`` or ``host:port``.

    Raises:
        ValueError: it is neither, or the path is too long for a socket.
    """
    if value.startswith(UNIX_PREFIX):
        path = value.removeprefix(UNIX_PREFIX)
        if not path.startswith("/") or path.endswith("/"):
            raise ValueError(f"expected unix:///absolute/path.sock, got {value!r}")
        if len(os.fsencode(path)) > _UNIX_PATH_MAX:
            raise ValueError(f"expected a socket path of at most {_UNIX_PATH_MAX} bytes, got {len(os.fsencode(path))}")
        return value
    if "://" in value:
        raise ValueError(f"expected unix:///path or host:port, got {value!r}")
    try:
        parse_host_port(value)
    except ValueError as error:
        raise ValueError(f"expected unix:///path.sock or host:port like 0.0.0.0:7070, got {value!r}") from error
    return value


def is_unix(address: str) -> bool:
    """Return whether ``address`` is a Unix socket."""
    return address.startswith(UNIX_PREFIX)


def is_open_tcp(address: str) -> bool:
    """Return whether other machines can reach ``address``."""
    return not is_unix(address) and not is_loopback(parse_host_port(address)[0])


def _status(value: Any) -> Any:  # noqa: ANN401 - the user may write any type
    if value is None or (isinstance(value, str) and value.strip().lower() in {OFF, "none", ""}):
        return None
    if isinstance(value, str):
        parse_host_port(value)
    return value


def _workers(value: Any) -> Any:  # noqa: ANN401 - the user may write any type
    text = str(value).strip().lower()
    if text == "auto":
        return "auto"
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise ValueError(f"expected auto or 1 to 1024 worker processes, got {value!r}")
    return int(text)


def _lanes(value: Any) -> Any:  # noqa: ANN401 - the user may write any type
    text = str(value).strip().lower()
    if text == "auto":
        return auto_lanes(gpu_count(), usable_cores())
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= LANES_MAX:
        raise ValueError(f"expected auto or 1 to {LANES_MAX} lanes, got {value!r}")
    return int(text)


def lane_address(address: str, lane: int) -> str:
    """Return where lane ``lane`` of a node listens, whose lane 0 listens at ``address``.

    The client computes the same (``feedd_client.transport``).
    """
    if lane == 0:
        return address
    if is_unix(address):
        return f"{address}.lane{lane}"
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + LANE_PORTS * lane}"


def _cpus(value: Any) -> Any:  # noqa: ANN401 - the user may write any type
    """Parse ``8-15,20``, the kernel's notation for sets of cores; a core that does not exist is an error."""
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f'expected cores like "8-15,20", got {value!r}')  # noqa: TRY004 - pydantic collects ValueError only
    parts = [part for part in str(value).split(",") if part.strip() != "-"]  # "-": how an empty set is shown
    try:
        found = parse_cores(",".join(parts))
    except ValueError:
        raise ValueError(f'expected cores like "8-15,20", got {value!r}') from None
    usable = usable_cpus() if found else found
    if not found <= usable:
        raise ValueError(f"expected some of the cores {format_cpus(usable)} that this process may use, got {value!r}")
    return tuple(sorted(found))


def format_cpus(cpus: Collection[int]) -> str:
    """Return cores in the kernel's notation: ``0-3,8``."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def _readable_file(path: Path) -> Path:
    if not path.is_file() or not os.access(path, os.R_OK):
        raise ValueError(f"expected a readable file, got {str(path)!r}")
    return path


def _folder(path: Path) -> Path:
    if not path.is_absolute() or not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
        raise ValueError(f"expected the absolute path of a readable folder, got {str(path)!r}")
    return path


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"expected an http:// or https:// URL, got {text!r}")
    return text


def _host_port(text: str) -> str:
    parse_host_port(text)
    return text


def _role_arn(text: str) -> str:
    if not text.startswith("arn:") or ":role/" not in text:
        raise ValueError(f"expected arn:aws:iam::ACCOUNT:role/NAME, got {text!r}")
    return text


def _socket_mode(value: Any) -> str:  # noqa: ANN401 - the user may write any type
    text = str(value)
    # A plain 660 in TOML or YAML would be decimal; only a text is unambiguously octal.
    if not isinstance(value, str) or not re.fullmatch(r"0?[0-7]{3}", text):
        raise ValueError(f'expected three octal digits in quotes like "0660", got {value!r}')
    return text.zfill(4)


def _absolute(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_absolute():
        raise ValueError(f"expected an absolute path, got {str(path)!r}")
    return path


def _url_rules(value: Any) -> Any:  # noqa: ANN401 - the user may write any type
    value = split_list(value)
    if not isinstance(value, list):
        return value
    return [one for rule in value for one in (completed(rule) if isinstance(rule, str) else (rule,))]


Size = Annotated[int, BeforeValidator(_size), SizeUnit]
UrlRules = Annotated[list[str], BeforeValidator(_url_rules)]
PartSize = Annotated[Literal["auto"] | int, BeforeValidator(_part_size), SizeUnit]
Quotas = Annotated[
    dict[Annotated[str, AfterValidator(_quota_url)], Annotated[Size, Field(gt=0)]], BeforeValidator(split_pairs)
]
Duration = Annotated[float, BeforeValidator(_duration), DurationUnit]
Listen = Annotated[str, BeforeValidator(lambda value: check_listen(value) if isinstance(value, str) else value)]
Status = Annotated[str | None, BeforeValidator(_status)]
Workers = Annotated[Literal["auto"] | int, BeforeValidator(_workers)]
Lanes = Annotated[int, BeforeValidator(_lanes)]
Cpus = Annotated[tuple[int, ...], BeforeValidator(_cpus), CpuSet]
ReadableFile = Annotated[Path, BeforeValidator(lambda value: _readable_file(Path(value).expanduser()))]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Folder = Annotated[Path, BeforeValidator(lambda value: _folder(Path(value).expanduser()))]
AbsolutePath = Annotated[Path, BeforeValidator(lambda value: _absolute(Path(value)))]
SocketMode = Annotated[str, BeforeValidator(_socket_mode)]
HostPort = Annotated[str, AfterValidator(_host_port)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
RoleArn = Annotated[str, AfterValidator(_role_arn)]
