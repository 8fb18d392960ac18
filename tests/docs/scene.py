"""What stands around a block that is a part of a program."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scene:
    """The rest of a program.

    Attributes:
        before: code that runs before the block, in the same namespace.
        after: code that runs then; it fails if the block did something else than the page says.
        replace: texts of the block, and what stands there instead.
        environment: of the program, on top of that of one rank.
        slow: why it is left to ``make nightly``; empty: it is not.
    """

    before: str = ""
    after: str = ""
    replace: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    slow: str = ""
