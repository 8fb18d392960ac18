"""Which objects beside data are passed over, and that nothing else changes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedd.catalog.ignored_objects import IgnoredKeys
from feedd.catalog.object_grouper import Grouped, ObjectGrouper
from feedd.dataset.fingerprint import listing_digest
from feedd.dataset.passed_over import PassedOver
from feedd.formats import format_registry as formats
from feedd.tables import registry as forms
from feedd.values import ObjectRef

_STRAYS = (
    "_SUCCESS _metadata _common_metadata _started_123 _committed_123 .part-00000.parquet.crc ._a.tar .DS_Store "
    ".gitattributes README.md LICENSE LICENSE.txt NOTICE a.tar.md5 a.tar.sha256 0.index SHA256SUMS Thumbs.db "
    "dataset_info.json features.json dataset_infos.json dataset_dict.json state.json label.labels.txt meta.pkl "
    "lock.mdb load.py dataset.yaml 00000_stats.json _temporary/0/part-00000.parquet _delta_log/0.checkpoint.parquet "
    ".ipynb_checkpoints/a-checkpoint.jsonl x/_old/b.tar x/.hidden/b.tar cache-0123456789abcdef.arrow part-00003 "
    "cache-0123456789abcdef_00000_of_00004.arrow x/y_$folder$"
)
STRAYS = _STRAYS.split()
EMPTY = {"part-00003", "_SUCCESS", "x/y_$folder$"}
_DATA = (
    "a.tar b.parquet x/c.tfrecord d.tfrecord-00000-of-00002 e.csv.gz f.jsonl part-00000 data.xyz _col=1/g.parquet "
    "readme_data.txt license-plates.tar cache-000.arrow h.json i.pt"
)
DATA = _DATA.split()
# What the listings below came to before anything was passed over.
STORED = {
    "tar": "e2f1909fd55db68b3c4549d8b21eb8ee",
    "tfds": "2fe925fd8cda66487c4a27a5ff3aa7a8",
    "spark": "e8e50db25bbdbd41703cb62f7ed2ae3e",
    "lines": "7a68305e87eb89b9255acaba9a91d087",
    "unknown": "268c98a546fa8b36575c5a60939e3cc9",
    "images": "29050720c2e53153501ed535389fa049",
    "mixed": "40f7b4a91c23be3550328dead8c19bc2",
    "words": "221a34180e73d77272d58d9269085ea5",
}
SETS = {
    "tar": [f"train/{n:05d}.tar" for n in range(7)],
    "tfds": [f"mnist/3.0.1/mnist-train.tfrecord-{n:05d}-of-00003" for n in range(3)],
    "spark": [f"t/year=2024/part-{n:05d}-c000.snappy.parquet" for n in range(4)],
    "lines": ["c/a.txt", "c/b.txt", "c/d.jsonl", "c/e.json"],
    "unknown": ["u/part-00000", "u/part-00001", "u/data.xyz"],
    "images": ["i/_background_/a.wav", "i/cat/a.jpg", "i/cat/a.json", "i/cat/b.jpg", "i/dog/_c.jpg"],
    "mixed": ["m/0.tar", "m/1.jpg", "m/2.jpg", "m/notes.csv"],
    "words": ["w/a.json", "w/a.txt", "w/b.json", "w/b.txt"],
}


def grouped(refs: list[ObjectRef], prefix: str, *, named: bool = False) -> Grouped:
    """Group a listing as the daemon does."""
    gathering = ObjectGrouper(prefix[: prefix.rfind("/") + 1], shards=named, ignored=IgnoredKeys(prefix, named=named))
    gathering.add(refs)
    return gathering.grouped()


def refs_of(keys: list[str]) -> list[ObjectRef]:
    """Return objects, some of them empty."""
    return [ObjectRef("s3://b", key, 0 if key[2:] in EMPTY else 1000, f"e-{key}") for key in sorted(keys)]


@pytest.mark.parametrize("name", SETS)
def test_data_without_strays_is_listed_as_ever(name: str) -> None:
    """The digest that fingerprints rest on is the stored one, whatever prefix the data is listed by."""
    keys = SETS[name]
    folder = keys[0][: keys[0].index("/") + 1]
    refs = [ObjectRef("s3://b", key, 1000 + number, f"etag{number}") for number, key in enumerate(sorted(keys))]
    assert listing_digest(grouped(refs, folder).refs).hex()[:32] == STORED[name]


@given(st.sets(st.sampled_from(STRAYS)), st.sets(st.sampled_from(DATA), min_size=1))
def test_strays_change_nothing(ignored: set[str], data: set[str]) -> None:
    """A data set of shards with strays in it is the one without them, and says how many there are."""
    data = data | {"l.txt"}  # JSON alone would be samples
    plain = grouped(refs_of([f"t/{key}" for key in data]), "t/")
    mixed = grouped(refs_of([f"t/{key}" for key in data | ignored]), "t/")
    assert mixed.refs == plain.refs
    assert plain.left_out == 0
    assert mixed.left_out == len(ignored)
    assert set(mixed.examples) <= {f"t/{key}" for key in ignored}
    assert len(mixed.examples) == min(len(ignored), 3)


@given(st.sets(st.sampled_from([key for key in STRAYS if not key.endswith((".json", ".index"))]), min_size=1))
def test_where_all_are_strays_none_is(ignored: set[str]) -> None:
    """Who names a prefix that holds nothing else wants just that."""
    refs = refs_of([f"t/{key}" for key in ignored])
    assert len(grouped(refs, "t/").refs) == len(refs)


def test_what_the_url_spells_is_wanted() -> None:
    """Only names below the prefix count, and not the one that the prefix begins."""
    for prefix, key, hidden in [
        ("_raw/", "_raw/a.tar", False),
        ("x/_r", "x/_raw/a.tar", False),
        ("x/_r", "x/_raw/_a.tar", True),
        ("x/a", "x/a_b/c.tar", False),
        ("x/a", "x/a/_b/c.tar", True),
        ("", "_b/c.tar", True),
        ("", ".c.tar", True),
        ("x/", "x/_b=1/c.tar", False),
        ("x/", "x/.b=1/c.tar", True),
    ]:
        assert IgnoredKeys(prefix).is_hidden(key) is hidden, (prefix, key)


def test_a_named_format_holds_for_what_has_no_name() -> None:
    """Notes may be text that somebody wants, and an empty part an empty shard; what is hidden still is no data."""
    keys = ["t/a.md", "t/b.txt", "t/part-00003", "t/_SUCCESS", "t/b.txt.md5", "t/README.md"]
    kept = grouped(refs_of(keys), "t/", named=True)
    assert [ref.key for ref in kept.refs] == ["t/a.md", "t/b.txt", "t/part-00003"]


def test_nothing_that_is_read_is_a_stray_when_it_is_empty() -> None:
    """An empty object of a known format is its reader's matter: an empty shard, or a broken one."""
    known = [ending for found in (formats.extensions(), forms.names()) for names in found.values() for ending in names]
    ignored = IgnoredKeys("t/")
    for ending in known:
        if ending.startswith("."):
            for name in (f"t/a{ending}", f"t/a{ending}.gz", f"t/a{ending}-00000-of-00002"):
                assert not ignored.is_ignored(name, 0), name
    assert ignored.is_ignored("t/a.xyz", 0)
    assert not ignored.is_ignored("t/a.xyz", 1)


def test_an_empty_marker_in_the_name_of_a_language_is_a_stray() -> None:
    """What ends so is compressed; elsewhere in a name the two letters are Breton, or Brazil."""
    ignored = IgnoredKeys("t/")
    for name in ("corpus.br.done", "audio-br", "corpus.br-00000", "part-00000.snappy.orc"):
        assert ignored.is_ignored(f"t/{name}", 0), name
    for name in ("corpus.br", "x.snappy", "a.mds.br-00000-of-00002"):
        assert not ignored.is_ignored(f"t/{name}", 0), name


def test_among_samples_only_hidden_folders_are_strays() -> None:
    """Beside images file managers' files are left out, folders that begin with a dot too; an underscore is a name."""
    keys = ["i/.DS_Store", "i/._a.jpg", "i/.ipynb_checkpoints/a.jpg", "i/Thumbs.db", "i/_SUCCESS", "i/x/.trash/b.jpg"]
    data = ["i/_noise_/a.jpg", "i/a.jpg", "i/x/_b.jpg", "i/x/c.d.jpg"]
    plain, mixed = grouped(refs_of(data), "i/"), grouped(refs_of(keys + data), "i/")
    assert mixed.refs == plain.refs
    assert (plain.left_out, mixed.left_out) == (0, len(keys))
    hidden = [f"i/.x/{name}" for name in ("a.jpg", "b.jpg")]
    assert grouped(refs_of(hidden), "i/").left_out == 0
    assert grouped(refs_of([*hidden, "i/_delta_log/c.parquet"]), "i/").left_out == 1


def test_strays_do_not_make_shards_of_samples() -> None:
    """Texts in several files to a sample stay that, whatever lies beside them."""
    words = SETS["words"]
    mixed = grouped(refs_of([*words, "w/_SUCCESS", "w/README.md"]), "w/")
    assert mixed.refs == grouped(refs_of(words), "w/").refs
    assert mixed.packs is not None


def test_tables_beside_tars_tell_of_their_samples() -> None:
    """What img2dataset writes is a data set of tars; a table without a tar of its name is a shard."""
    keys = ["d/0.tar", "d/0.parquet", "d/0_stats.json", "d/1.tar", "d/1.parquet", "d/2.parquet"]
    assert [ref.key for ref in grouped(refs_of(keys), "d/").refs] == ["d/0.tar", "d/1.tar", "d/2.parquet"]


def test_lists_of_classes_are_data_among_text() -> None:
    """Beside shards of another kind they are none; in a data set of lines, or of names nobody knows, they are."""
    for other, kept in (("a.tar", False), ("a.parquet", False), ("a.txt", True), ("a.jsonl", True), ("part-0", True)):
        refs = refs_of([f"t/{other}", "t/labels.txt", "t/my-labels.txt"])
        assert ("t/labels.txt" in {ref.key for ref in grouped(refs, "t/").refs}) is kept, other
        assert "t/my-labels.txt" in {ref.key for ref in grouped(refs, "t/").refs}


@given(st.lists(st.text("ab_.=/", max_size=8), max_size=20), st.sampled_from(["", "t/", "t"]), st.booleans())
def test_any_names_are_judged_one_by_one(names: list[str], prefix: str, named: bool) -> None:
    """No name is an error, the order stays, and whether an object is a stray depends on nothing but itself."""
    refs = refs_of([f"{prefix}{name}" for name in set(names)])
    ignored = IgnoredKeys(prefix, named=named)
    kept = ignored.without(refs)
    alone = [ref for ref in refs if not ignored.is_ignored(ref.key, ref.size_bytes)]
    assert kept == (alone or refs)
    shuffled = random.Random(0).sample(refs, len(refs))
    assert set(ignored.without(shuffled)) == set(kept)


def test_what_is_passed_over_adds_up() -> None:
    """All are counted, and the first few names are kept."""
    both = PassedOver(1, ("a",)).plus(PassedOver(4, ("b", "c", "d")))
    assert both == PassedOver(5, ("a", "b", "c"))
