"""Arrow IPC, files and streams, and text that pyarrow reads: CSV and TSV. All need the whole object."""

from __future__ import annotations

from typing import Final

from feedd.decode.forms.whole import TableForm

_TEXT: Final = "feedd.decode.forms.delimited_file"

ARROW_FORM: Final = TableForm("arrow", "feedd.decode.forms.arrow_file", "parquet")
CSV_FORM: Final = TableForm("csv", _TEXT, "parquet", ",")
TSV_FORM: Final = TableForm("tsv", _TEXT, "parquet", "\t")
