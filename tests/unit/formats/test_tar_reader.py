from __future__ import annotations

import io
import random
import tarfile
from unittest import mock

import pytest

from feedd.errors import BadShard
from feedd.formats import tar
from feedd.formats.tar import TarFormat, samples_end
from tests.fakes.tars import tar_bytes

URL = "s3://b/x.tar"


def keys_and_fields(data: bytes) -> list[tuple[str, dict[str, bytes]]]:
    """Return what the index finds."""
    index = TarFormat().index(memoryview(data), URL)
    found = []
    for ordinal in range(index.sample_count):
        spans = zip(index.fields, index.starts[:, ordinal].tolist(), index.sizes[:, ordinal].tolist(), strict=True)
        found.append((index.key(ordinal), {name: data[at : at + size] for name, at, size in spans if size >= 0}))
    return found


def archive(*members: tuple[tarfile.TarInfo, bytes], tar_format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return a tar of exactly these members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for member, data in members:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, **pax: str) -> tarfile.TarInfo:
    """Return a member's header."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.pax_headers = pax
    info.linkname = "target" if kind in {tarfile.SYMTYPE, tarfile.LNKTYPE} else ""
    return info


def raw_header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    """Return a header block with a valid checksum."""
    block = bytearray(512)
    block[: len(name)] = name
    block[124 : 124 + len(size)] = size
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def test_the_key_ends_at_the_first_dot_of_the_last_component() -> None:
    """Dots in directories belong to the key; extensions are compound and lower-cased."""
    data = tar_bytes([("v1.2/a", {"SEG.png": b"s", "JPG": b"j"}), ("./b.x/c", {"tar.gz": b"t"})])
    assert keys_and_fields(data) == [("v1.2/a", {"seg.png": b"s", "jpg": b"j"}), ("./b.x/c", {"tar.gz": b"t"})]


def test_members_that_are_no_fields_are_skipped() -> None:
    """Directories, links, hidden files, names without a dot and __meta__ trees neither appear nor split a sample."""
    data = archive(
        (member("dir.d", tarfile.DIRTYPE), b""),
        (member("__meta__/all.json"), b"{}"),
        (member("a.jpg"), b"1"),
        (member("README"), b"no extension"),
        (member(".hidden"), b"hidden"),
        (member("d/._a.jpg"), b"resource fork"),
        (member("link.jpg", tarfile.SYMTYPE), b""),
        (member("hard.jpg", tarfile.LNKTYPE), b""),
        (member("a.cls"), b"2"),
        (member("b."), b"empty extension"),
    )
    assert keys_and_fields(data) == [("a", {"jpg": b"1", "cls": b"2"}), ("b", {"": b"empty extension"})]


def test_only_consecutive_members_form_a_sample() -> None:
    """A key that comes back later is another sample, as in WebDataset."""
    data = tar_bytes([("a", {"x": b"1"}), ("b", {"x": b"2"}), ("a", {"y": b"3"})])
    assert [key for key, _ in keys_and_fields(data)] == ["a", "b", "a"]


def test_an_extension_twice_in_one_sample_is_refused() -> None:
    """Duplicates are an error that names key, extension and byte."""
    data = archive((member("a.jpg"), b"1"), (member("a.JPG"), b"2"))
    with pytest.raises(BadShard, match=r"sample 'a' at byte 1024, got 'jpg' again \[s3://b/x.tar\]"):
        TarFormat().index(memoryview(data), URL)


def pax(*pairs: tuple[str, str], kind: bytes = b"x") -> bytes:
    """Return an extended header with records of these keywords and values."""
    text = b""
    for keyword, value in pairs:
        body = f" {keyword}={value}\n".encode()
        length = len(body) + 2
        assert 10 <= length <= 99
        text += b"%d%s" % (length, body)
    return raw_header(b"pax", b"%011o" % len(text), kind) + text.ljust(512, b"\0")


def test_pax_headers_override_name_and_size() -> None:
    """Path and size of a member's PAX records win over global ones, and those over the header."""
    body = b"0123456789"
    block = body.ljust(512, b"\0")
    data = (
        pax(("size", "10"), ("comment", "global"), kind=b"g")
        + (pax(("path", "dür/k.txt"), ("mtime", "1.5")) + raw_header(b"ignored.bin", b"%011o" % 0) + block)
        + (raw_header(b"next.bin", b"%011o" % 0) + block)
        + (pax(("size", "00004")) + raw_header(b"last.bin", b"%011o" % 0) + block)
        + bytes(1024)
    )
    assert keys_and_fields(data) == [("dür/k", {"txt": body}), ("next", {"bin": body}), ("last", {"bin": body[:4]})]


def test_base_256_sizes_are_read() -> None:
    """Sizes written in base 256 (members over 8 GiB, or writers that always do) are read; negative ones refused."""
    body = b"abc"
    good = raw_header(b"a.x", b"\x80" + (3).to_bytes(11, "big")) + body.ljust(512, b"\0") + bytes(1024)
    assert keys_and_fields(good) == [("a", {"x": body})]
    for size in (b"\xff" * 12, b"\x80" + b"\xff" * 11, b"77777777777\0"):
        with pytest.raises(BadShard):
            TarFormat().index(memoryview(raw_header(b"a.x", size) + bytes(2048)), URL)


def test_checksums_are_verified() -> None:
    """One changed byte in a header is found; the historic sum of signed bytes is accepted."""
    good = bytearray(raw_header("é.x".encode("latin-1"), b"%011o" % 0) + bytes(1024))
    TarFormat().index(memoryview(bytes(good)), URL)
    blanked = bytes(good[:148]) + b" " * 8 + bytes(good[156:512])
    signed = sum(byte - 256 if byte > 127 else byte for byte in blanked)
    good[148:156] = b"%06o\0 " % signed
    TarFormat().index(memoryview(bytes(good)), URL)
    good[0] ^= 1
    with pytest.raises(BadShard, match="checksum"):
        TarFormat().index(memoryview(bytes(good)), URL)


@pytest.mark.parametrize(
    "records",
    [
        b"nonsense\n",
        b"5 a=b\n",
        b"99999 path=x\n",
        b"12 path\n",
        b"11 size=-1\n",
        b"25 GNU.sparse.major=1\n...\n",
        b" =\n",
    ],
)
def test_broken_pax_records_are_refused(records: bytes) -> None:
    """Records that lie about their length, have no value or describe sparse files are BadShard."""
    header = raw_header(b"pax", b"%011o" % len(records), b"x")
    data = header + records.ljust(512, b"\0") + raw_header(b"a.x", b"%011o" % 0) + bytes(1024)
    with pytest.raises(BadShard):
        TarFormat().index(memoryview(data), URL)


def test_absurd_claims_allocate_nothing() -> None:
    """An extended header of gigabytes, sparse members and a flood of extensions are refused before allocation."""
    for kind in b"Lxg":
        huge = raw_header(b"x", b"%011o" % (4 << 30), bytes([kind])) + bytes(1024)
        with pytest.raises(BadShard, match="extended header"):
            TarFormat().index(memoryview(huge), URL)
    with pytest.raises(BadShard, match="sparse"):
        TarFormat().index(memoryview(raw_header(b"a.x", b"%011o" % 0, b"S") + bytes(1024)), URL)
    flood = b"".join(raw_header(b"%d.e%d" % (n, n), b"%011o" % 0) for n in range(300)) + bytes(1024)
    with pytest.raises(BadShard, match="different extensions"):
        TarFormat().index(memoryview(flood), URL)


@pytest.mark.parametrize("size", [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 88) - 1])
def test_a_size_beyond_all_files_is_a_broken_member(size: int) -> None:
    """Whatever the field of a size has room for; what is whole before it is found."""
    whole = raw_header(b"a.x", b"%011o" % 0) + raw_header(b"b.x", b"%011o" % 0)
    data = whole + raw_header(b"c.x", b"\x80" + size.to_bytes(11, "big")) + bytes(1024)
    with pytest.raises(BadShard, match=f"{size} bytes of member data"):
        TarFormat().index(memoryview(data), URL)
    assert samples_end(memoryview(data)) == len(whole)


def test_keys_that_are_not_utf8_become_utf8() -> None:
    """Keys reach the client as text, so broken bytes are replaced; other keys stay as they are."""
    data = raw_header(b"\xff\xfe.x", b"%011o" % 0) + raw_header(b"ok.x", b"%011o" % 0) + bytes(1024)
    index = TarFormat().index(memoryview(data), URL)
    assert index.key_blob.decode("utf-8") == "��ok"


def test_bytes_after_the_end_do_not_matter() -> None:
    """What follows the end-of-archive block is not read."""
    data = tar_bytes([("a", {"x": b"1"})]) + b"garbage" * 100
    assert keys_and_fields(data) == [("a", {"x": b"1"})]


def _outcome(data: bytes) -> object:
    """Return what the index finds, or what it says is wrong."""
    try:
        return keys_and_fields(data)
    except BadShard as error:
        return str(error)


def _mixed(rng: random.Random) -> bytes:
    """Return a tar of members plain and otherwise, in one of three formats."""
    members = []
    for number in range(rng.randrange(1, 12)):
        key = f"{'d' * rng.choice((0, 3, 90, 160))}/{number // 2:03d}".lstrip("/")
        kind = rng.choice([tarfile.REGTYPE] * 8 + [tarfile.SYMTYPE, tarfile.DIRTYPE])
        name = f"{key}.{rng.choice(('jpg', 'JPG', 'cls', 'json'))}{number}" if rng.random() < 0.9 else key
        info = member(name, kind)
        info.mtime, info.uid = rng.randrange(1 << 31), rng.choice((0, 1000, 1 << 22))
        members.append((info, rng.randbytes(rng.choice((0, 1, 511, 512, 513, 3000)))))
    tar_format = rng.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    members = [(info, data) for info, data in members if tar_format != tarfile.USTAR_FORMAT or len(info.name) < 100]
    for info, _ in members:
        info.uid = info.uid if tar_format != tarfile.USTAR_FORMAT else 0
    return archive(*members, tar_format=tar_format)


@pytest.mark.parametrize("seed", range(40))
def test_members_read_in_runs_are_what_they_are_one_by_one(seed: int) -> None:
    """However headers are written or damaged, runs find the same samples, or say the same is wrong."""
    rng = random.Random(seed)
    data = bytearray(_mixed(rng))
    for damage in range(12):
        if damage:  # the first look is at an archive that is whole
            at = rng.randrange(len(data) // 512) * 512 + rng.choice((0, 99, 124, 135, 148, 153, 154, 156, 345))
            data[at % len(data)] = rng.choice((0, 32, 48, 55, 56, 120, 128, 255, rng.randrange(256)))
        with mock.patch.object(tar, "_RUN", rng.choice((1, 2, 1024))):
            in_runs = _outcome(bytes(data))
        with mock.patch.object(tar, "_RUN", 0):
            assert in_runs == _outcome(bytes(data))
        if damage % 3 == 2:
            data = bytearray(_mixed(rng))


def test_a_checksum_of_signed_bytes_is_believed_within_a_run() -> None:
    """Some old writers summed signed bytes; what follows such a member is read as ever."""
    header = bytearray(raw_header("\xe9.a".encode("latin-1"), b"%011o" % 0))
    header[148:156] = b"%06o\0 " % (int(header[148:154], 8) - 256)
    data = raw_header(b"x.a", b"%011o" % 0) + bytes(header) + raw_header(b"y.a", b"%011o" % 0) + bytes(1024)
    assert [key for key, _ in keys_and_fields(data)] == ["x", "\ufffd", "y"]
