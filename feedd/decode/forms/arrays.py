"""Files of several arrays, with a row a sample, as forms: NumPy's .npz and HDF5. Both need the whole object."""

from __future__ import annotations

from typing import Final

from feedd.decode.forms.whole import TableForm

NPZ_FORM: Final = TableForm("npz", "feedd.decode.forms.npz_file", "formats")
HDF5_FORM: Final = TableForm("hdf5", "feedd.decode.forms.hdf5_file", "hdf5")
