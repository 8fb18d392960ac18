"""Arrow IPC, files and streams, and text that pyarrow reads: CSV and TSV. Tables of it need the whole object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.convert.columnar import is_head
from feedd.convert.wanted_ranges import everything, lacking
from feedd.convert.whole_object import TableForm
from feedd.values import ByteRange

if TYPE_CHECKING:
    from feedd.protocols import PartialObject, ShardWriter

_SCHEMA_BYTES: Final = 1 << 20
"""How much of an object tells its columns, unless they are very many."""

TYPES: Final = "types"
"""Parameters of a form of text that makes no table, but tells which columns there are and their types."""

DELIMITER: Final = "DELIMITER"
"""What the types say of the sign between values, where it is not the form's own: names are in lower case there."""

_TYPES_BYTES: Final = 8 << 20
"""How much of an object tells its columns' types, where it is longer and rows end within it."""


class ArrowForm(TableForm):
    """``protocols.ShardConverter`` of Arrow IPC; stateless. Its first bytes tell its columns."""

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; where its columns are all that is asked for, its start, if that is enough."""
        if not is_head(params):
            return super().wanted(held, params)
        head = ByteRange(0, min(held.size_bytes, _SCHEMA_BYTES))
        missing = lacking(held, head)
        if missing or not lacking(held, ByteRange(0, held.size_bytes)):
            return missing
        enough: bool = self._loaded("").tells_columns(held.data[: head.end])
        return () if enough else everything(held)

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table, or only which there are."""
        if not is_head(params):
            return super().make(held, url, params, out)
        whole = not lacking(held, ByteRange(0, held.size_bytes))
        with held.data[: held.size_bytes if whole else _SCHEMA_BYTES] as head:
            name: str = self._loaded(url).write_head(head, url, params, out)
        return name


class DelimitedForm(TableForm):
    """``protocols.ShardConverter`` of CSV and its like; stateless.

    Its parameters name columns and their types, see ``convert.columnar.typed_params``; or are ``TYPES``.
    """

    def wanted(self, held: PartialObject, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object; for ``TYPES``, and for a head, its start, where that is enough."""
        if params != TYPES and not is_head(params):
            return super().wanted(held, params)
        head = ByteRange(0, min(held.size_bytes, _TYPES_BYTES))
        missing = lacking(held, head)
        if missing or not lacking(held, ByteRange(0, held.size_bytes)):
            return missing
        enough: bool = self._loaded("").tells_types(held.data[: head.end], *self._more)
        return () if enough else everything(held)

    def make(self, held: PartialObject, url: str, params: str, out: ShardWriter) -> str:
        """Write the wanted columns as a table, or for ``TYPES`` the types of all as JSON."""
        if params != TYPES and not is_head(params):
            return super().make(held, url, params, out)
        size = held.size_bytes
        whole = not lacking(held, ByteRange(0, size))
        with held.data[: size if whole else _TYPES_BYTES] as head:
            if params == TYPES:
                self._loaded(url).write_types(head, url, out, *self._more, whole=whole)
                return TYPES
            with head if whole else self._loaded(url).whole_rows(head) as rows:
                return self._write(rows, url, params, out)


_TEXT: Final = "feedd.convert.delimited_file"

ARROW_FORM: Final = ArrowForm("arrow", "feedd.convert.arrow_file", "parquet")
CSV_FORM: Final = DelimitedForm("csv", _TEXT, "parquet", ",")
TSV_FORM: Final = DelimitedForm("tsv", _TEXT, "parquet", "\t")
SEMICOLON_FORM: Final = DelimitedForm("csv-semicolon", _TEXT, "parquet", ";")
PIPE_FORM: Final = DelimitedForm("csv-pipe", _TEXT, "parquet", "|")
