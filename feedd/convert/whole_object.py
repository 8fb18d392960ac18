"""What forms have in common that need the whole object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedd.convert.columnar import loaded
from feedd.convert.wanted_ranges import everything

if TYPE_CHECKING:
    from types import ModuleType

    from feedd.protocols import PartialObject, ShardWriter
    from feedd.values import ByteRange


class WholeObject:
    """The part of ``protocols.ShardConverter`` that says what is wanted: all of the object."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object."""
        del params
        return everything(held)


class TableForm(WholeObject):
    """``protocols.ShardConverter`` of columns that become a table; stateless.

    Its parameters name columns, see ``convert.columnar.params_of``.

    Args:
        name: of the form.
        module: has ``write``, which makes the table; loaded where such data is met.
        extra: what to install where its library is missing.
        more: further arguments of ``write``.
    """

    def __init__(self, name: str, module: str, extra: str, *more: str) -> None:
        self.name = name
        self._module, self._extra, self._more = module, extra, more

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table; see ``ShardConverter.make``."""
        return self._write(held.data, url, params, out)

    def _write(self, data: memoryview, url: str, params: str, out: ShardWriter) -> str:
        format_name: str = self._loaded(url).write(data, url, params, out, *self._more)
        return format_name

    def _loaded(self, url: str) -> ModuleType:
        return loaded(self._module, self._extra, url)
