"""README says what formats there are as the code has them."""

from __future__ import annotations

from feedd.decode.formats import registry as formats
from feedd.decode.forms import registry as forms
from tests.tidy.formats_table import rows, shown, table


def test_readme_has_the_table_as_it_is() -> None:
    """Renew it with ``python -m tests.tidy.formats_table``."""
    assert shown() == table()


def test_every_format_and_form_is_in_the_table() -> None:
    """Nothing is left out but what feedd makes for itself, and ways of compressing, which have a line of their own."""
    named = {row[0] for row in rows()}
    ways = {"gunzip", "bunzip2", "unxz", "unzstd"}
    assert set(formats.extensions()) - named == {"table", "recordio-image", "recordio-raw"}
    assert set(forms.names()) - named == ways
