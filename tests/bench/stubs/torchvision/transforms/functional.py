"""Stand-in of the one function that is named."""

from __future__ import annotations


def to_tensor(picture: object) -> object:
    """Refuse: a bench that came here would measure something else than it says."""
    raise NotImplementedError(f"expected the benches never to convert a picture this way, got {type(picture)}")
