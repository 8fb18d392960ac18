"""The base class of all sections of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section: frozen, and refuses names that are not options."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
