"""Requests to open a dataset, from keywords of all their parts."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from feedd.open_spec import DataSpec, OpenSpec, OrderSpec, SessionSpec

_PARTS = {"data": DataSpec, "order": OrderSpec, "session": SessionSpec}


def open_spec(urls: tuple[str, ...] = ("s3://b/",), batch_size: int = 1, **changes: Any) -> OpenSpec:
    """Return a request; what is not named is as the client sends it by default."""
    return changed(OpenSpec(DataSpec(urls), OrderSpec(batch_size)), **changes)


def changed(spec: OpenSpec, **changes: Any) -> OpenSpec:
    """Return a request with some values changed, whichever part has them."""
    parts: dict[str, Any] = {}
    for name, kind in _PARTS.items():
        own = {one.name: changes.pop(one.name) for one in fields(kind) if one.name in changes}
        parts[name] = replace(getattr(spec, name), **own)
    assert not changes, f"no part of a request has {changes}"
    return OpenSpec(**parts)
