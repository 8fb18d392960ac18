"""Checks for optional libraries, which only some kinds of data need."""

from __future__ import annotations

from importlib.util import find_spec

from feedd.errors import Unsupported


def present(*modules: str) -> bool:
    """Return whether all modules are installed, without importing them."""
    return all(find_spec(module) is not None for module in modules)


def require(codec: str, extra: str, *modules: str) -> None:
    """Check that the modules of a codec are installed, without importing them.

    Raises:
        Unsupported: a module is missing; the hint says how to install it.
    """
    missing = [module for module in modules if not present(module)]
    if missing:
        raise Unsupported(
            f"expected {' and '.join(missing)} to be installed for {codec!r}, got an installation without",
            object=codec,
            hint=f"install feedd[{extra}]",
            stage="decode",
        )
