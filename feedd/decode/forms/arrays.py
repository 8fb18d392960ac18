"""Files of several arrays as forms: NumPy's .npz and HDF5. Both need the whole object."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from feedd.decode.forms.columns import needs
from feedd.decode.forms.ranges import everything

if TYPE_CHECKING:
    from feedd.protocols import Held, Out
    from feedd.values import ByteRange


class ArraysForm:
    """``protocols.ShardForm`` of files whose arrays have a row a sample; stateless.

    Its parameters name arrays, see ``columns.params_of``.

    Args:
        name: of the form.
        module: writes the table; loaded where such data is met.
        extra: what to install where its library is missing.
    """

    def __init__(self, name: str, module: str, extra: str) -> None:
        self._name, self._module, self._extra = name, module, extra

    @property
    def name(self) -> str:
        """Name in the registry."""
        return self._name

    def wanted(self, held: Held, params: str) -> tuple[ByteRange, ...]:
        """Return the whole object."""
        del params
        return everything(held)

    def make(self, held: Held, url: str, params: str, out: Out) -> str:
        """Write the wanted arrays as a table; see ``ShardForm.make``."""
        try:
            module = importlib.import_module(self._module)
        except ImportError as error:
            raise needs(self._extra, url, error) from error
        name: str = module.write(held.data, url, params, out)
        return name


NPZ_FORM: Final = ArraysForm("npz", "feedd.decode.forms.npz_file", "formats")
HDF5_FORM: Final = ArraysForm("hdf5", "feedd.decode.forms.hdf5_file", "hdf5")
