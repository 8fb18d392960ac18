"""Anonymous memory, where the kernel gives it and where it refuses."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from feedd.errors import Unsupported
from feedd.flow.sink_file import OpenFile, memory_file


def test_a_memory_file_can_be_sealed() -> None:
    """A memory file is empty, and takes seals."""
    file = OpenFile(memory_file("feedd-test"))
    assert os.fstat(file.fd).st_size == 0
    fcntl.fcntl(file.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EMFILE, errno.ENOMEM])
def test_a_refusal_names_the_call_and_the_way_out(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that a seccomp profile forbids is an error that says so; a lack of descriptors or memory is not."""

    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "memfd_create", refuse)
    if code in {errno.EMFILE, errno.ENOMEM}:
        with pytest.raises(OSError, match=os.strerror(code)):
            memory_file("feedd-test")
    else:
        with pytest.raises(Unsupported, match=r"shared memory: memfd_create.*seccomp profile"):
            memory_file("feedd-test")


def test_an_open_file_is_closed_once() -> None:
    """A descriptor is closed with its last reference, or before; a number that is in use again is left alone."""
    file = OpenFile(os.open("/dev/null", os.O_RDONLY))
    number = file.fd
    assert number in OpenFile.live
    file.close()
    assert number not in OpenFile.live
    again = os.open("/dev/null", os.O_RDONLY)
    assert again == number
    del file
    os.fstat(again)
    os.close(again)
