"""Files of several arrays, with a row a sample, as forms: NumPy's .npz and HDF5. Both need the whole object."""

from __future__ import annotations

from typing import Final

from feedd.convert.whole_object import TableForm

NPZ_FORM: Final = TableForm("npz", "feedd.convert.npz_file", "formats")
HDF5_FORM: Final = TableForm("hdf5", "feedd.convert.hdf5_file", "hdf5")
