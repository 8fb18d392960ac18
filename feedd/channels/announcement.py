"""Tells readers of ``inputdataconfig.json`` about channels that are not in it, while feedd serves them.

``PipeModeDataset`` refuses a channel that the file does not name, or that is not in Pipe mode there.
"""

from __future__ import annotations

import json
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import structlog

from feedd.channels.job import ADDED_BY, CONFIG_FOLDER, INPUT_FILE, is_added, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from feedd.channels.channel import Channel, InputMode

_log = structlog.get_logger(__name__)


@contextmanager
def announced(root: Path, channels: Sequence[Channel], mode: InputMode) -> Iterator[None]:
    """Add channels to ``inputdataconfig.json`` during the body; entries of others stay as they are.

    If the file cannot be changed, or names a channel in another mode, a warning says so.

    Args:
        root: folder that has the role of ``/opt/ml``.
        channels: the served channels.
        mode: the mode in which they are served.
    """
    path = root / CONFIG_FOLDER / INPUT_FILE
    there = read_json(path)
    if there is not None and not isinstance(there, dict):
        yield  # the list of a request to the API, which no other reader of this file understands
        return
    others = {name: entry for name, entry in (there or {}).items() if not is_added(entry)}
    for channel in channels:
        _check_mode(channel.name, others.get(channel.name), mode)
    added = {channel.name: _entry(channel, mode) for channel in channels if channel.name not in others}
    try:
        if added:
            _write(path, {**others, **added})
    except OSError as error:
        _log.warning("channels are not in inputdataconfig.json", channels=sorted(added), reason=str(error))
        added = {}
    try:
        yield
    finally:
        if added:
            _restore(path, None if there is None else others)


def _check_mode(name: str, entry: object, mode: InputMode) -> None:
    """Warn if readers of the file expect another mode."""
    if isinstance(entry, dict):
        got = str(entry.get("TrainingInputMode") or entry.get("InputMode") or "none")
        if got.lower() != mode.value.lower():
            _log.warning("inputdataconfig.json names another input mode", channel=name, expected=mode.value, got=got)


def _entry(channel: Channel, mode: InputMode) -> dict[str, str]:
    return {
        **({"ContentType": channel.content_type} if channel.content_type else {}),
        "RecordWrapperType": channel.record_wrapper.value,
        "S3DistributionType": channel.distribution.value,
        "TrainingInputMode": mode.value,
        ADDED_BY: "feedd",
    }


def _restore(path: Path, entries: dict[str, Any] | None) -> None:
    try:
        if entries is None:
            path.unlink(missing_ok=True)
        else:
            _write(path, entries)
    except OSError as error:
        _log.warning("channels of feedd stay in inputdataconfig.json", reason=str(error))


def _write(path: Path, entries: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
