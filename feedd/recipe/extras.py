"""Libraries that only some kinds of data need."""

from __future__ import annotations

from importlib.util import find_spec

from feedd.errors import Unsupported


def present(*modules: str) -> bool:
    """Whether all of them are installed; imports nothing."""
    return all(find_spec(module) is not None for module in modules)


def require(codec: str, extra: str, *modules: str) -> None:
    """Make sure that what a codec needs is installed; imports nothing.

    Raises:
        Unsupported: it is not; the hint says how to get it.
    """
    missing = [module for module in modules if not present(module)]
    if missing:
        raise Unsupported(
            f"expected {' and '.join(missing)} for {codec!r}, got an installation without",
            object=codec,
            hint=f"install feedd[{extra}]",
            stage="decode",
        )
