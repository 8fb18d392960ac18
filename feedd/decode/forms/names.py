"""By which names objects are known that need a form though they are not compressed."""

from __future__ import annotations

from typing import Final

BY_EXTENSION: Final[dict[str, str]] = {
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".csv": "csv",
    ".feather": "arrow",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".libsvm": "libsvm",
    ".npz": "npz",
    ".parquet": "parquet",
    ".svm": "libsvm",
    ".tsv": "tsv",
}
"""Form by the end of a lower-case file name."""

EXTENSIONS: Final = tuple(BY_EXTENSION)
