"""Arrow IPC, files and streams, and text that pyarrow reads: CSV and TSV. All need the whole object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from feedd.decode.forms.columns import needs
from feedd.decode.forms.ranges import everything

if TYPE_CHECKING:
    from feedd.protocols import Held, Out
    from feedd.values import ByteRange


class ArrowForm:
    """``protocols.ShardForm`` of Arrow IPC; stateless. Its parameters name columns, see ``columns.params_of``."""

    @property
    def name(self) -> str:
        """``arrow``."""
        return "arrow"

    def wanted(self, held: Held, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object."""
        del params
        return everything(held)

    def make(self, held: Held, url: str, params: str, out: Out) -> str:
        """Write the wanted columns as a table; see ``ShardForm.make``."""
        try:
            from feedd.decode.forms import arrow_file  # noqa: PLC0415 - loaded where such data is met
        except ImportError as error:
            raise needs("parquet", url, error) from error
        return arrow_file.write(held.data, url, params, out)


class DelimitedForm:
    """``protocols.ShardForm`` of CSV and its like; stateless. Its parameters name columns, see ``columns.params_of``.

    Args:
        name: of the form.
        delimiter: between values.
    """

    def __init__(self, name: str, delimiter: str) -> None:
        self._name, self._delimiter = name, delimiter

    @property
    def name(self) -> str:
        """Name in the registry."""
        return self._name

    def wanted(self, held: Held, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object."""
        del params
        return everything(held)

    def make(self, held: Held, url: str, params: str, out: Out) -> str:
        """Write the wanted columns as a table; see ``ShardForm.make``."""
        try:
            from feedd.decode.forms import delimited_file  # noqa: PLC0415 - loaded where such data is met
        except ImportError as error:
            raise needs("parquet", url, error) from error
        return delimited_file.write(held.data, url, params, out, self._delimiter)


ARROW_FORM: Final = ArrowForm()
CSV_FORM: Final = DelimitedForm("csv", ",")
TSV_FORM: Final = DelimitedForm("tsv", "\t")
