"""Augmented manifests: lines as samples, attributes as fields, and errors that name manifest, line and attribute."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from feedd.access import Access
from feedd.errors import BadRecipe, BadRequest, BadSample, NotFound, ObjectChanged, PermissionDenied
from feedd.values import Cursor, ObjectRef
from tests.fakes.feeding import ROOT, Taken, batches, feeding, take
from tests.fakes.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from feedd.sessions.session import Session
    from tests.fakes.feeding import Feeding

MANIFEST = f"{ROOT}/train.manifest"
URL = f"augmented+{MANIFEST}"


def _put(rig: Feeding, lines: Sequence[object], end: str = "\n") -> None:
    """Store a manifest, and the objects it names whose names are not ``gone``."""
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    rig.store.put("train.manifest", "".join(text + end for text in texts).encode())
    for one in lines:
        for name, value in one.items() if isinstance(one, dict) else ():
            if name.endswith("-ref") and isinstance(value, str) and value.startswith(ROOT) and "gone" not in value:
                rig.store.put(value.removeprefix(f"{ROOT}/"), f"<{value}>".encode())


async def _open(rig: Feeding, *fields: tuple[str, str], **changes: Any) -> Session:
    return await rig.open(urls=(URL,), fields=fields, **changes)


def _texts(made: Sequence[Taken], name: str) -> list[str]:
    return [body.decode() for batch in made for body in batch.texts(name)]


async def test_image_classification_of_the_documentation(tmp_path: Path) -> None:
    """Objects and labels arrive in the order of the lines; a label may be a number, or a text that holds one."""
    lines = [
        {
            "source-ref": f"{ROOT}/images/{number}.jpg",
            "species": number if number % 2 else str(number),
            "species-metadata": {
                "class-name": "dog",
                "confidence": number / 10,
                "type": "groundtruth/image-classification",
                "job-name": "identify-animal-species",
                "human-annotated": "yes",
                "creation-date": "2018-10-18T22:18:13.527256",
            },
        }
        for number in range(6)
    ]
    async with feeding(tmp_path) as rig:
        _put(rig, lines)
        session = await _open(
            rig,
            ("source-ref", "bytes"),
            ("species", "int"),
            ("confidence", '{"decode": "float", "from": "species-metadata", "key": "confidence"}'),
            ("name", '{"decode": "int", "from": "species-metadata", "key": "class-name", "classes": ["cat", "dog"]}'),
            keys=True,
        )
        made = await batches(session)
    assert _texts(made, "source-ref") == [f"<{ROOT}/images/{number}.jpg>" for number in range(6)]
    assert [value for batch in made for value in batch.ints("species")] == list(range(6))
    assert [round(value, 3) for batch in made for value in batch.rows("confidence")] == [n / 10 for n in range(6)]
    assert [value for batch in made for value in batch.ints("name")] == [1] * 6
    assert _texts(made, "__key__") == [f"{number + 1:08d}" for number in range(6)]


async def test_bounding_boxes_and_text_of_the_documentation(tmp_path: Path) -> None:
    """Objects of JSON arrive whole, lists of numbers as ragged numbers, text as text, without any ``fields``."""
    boxes = {
        "image_size": [{"width": 640, "height": 480, "depth": 3}],
        "annotations": [{"class_id": 1, "top": 251, "left": 399, "width": 155, "height": 101}],
    }
    lines = [
        {"source": 'caf\u00e9 "quoted"', "MultiLabelJob": [0, 4], "bounding-box": boxes, "score": [0.5, 1]},
        {"source": "Document 2 text", "MultiLabelJob": [], "bounding-box": {}, "score": [1, 2, 3]},
    ]
    async with feeding(tmp_path) as rig:
        _put(rig, lines)
        session = await _open(rig)
        (batch,) = await batches(session)
        kinds = {spec.name: (spec.kind.value, spec.dtype) for spec in batch.specs}
    assert kinds == {
        "source": ("text", "uint8"),
        "multilabeljob": ("ragged", "int64"),
        "bounding-box": ("json", "uint8"),
        "score": ("ragged", "float32"),
    }
    assert _texts([batch], "source") == [str(line["source"]) for line in lines]
    assert [json.loads(text) for text in _texts([batch], "bounding-box")] == [boxes, {}]


async def test_kinds_of_values_over_all_lines(tmp_path: Path) -> None:
    """A default recipe fits the values of all lines: integers become floats if one line has a fraction."""
    lines: list[object] = [
        {"a": 1, "b": 1, "c": None, "d": True, "e": 1},
        {"a": 2, "b": 2.5, "c": 3, "d": False, "e": "x"},
    ]
    async with feeding(tmp_path) as rig:
        _put(rig, lines)
        session = await _open(rig, bad_samples="skip", bad_samples_max=1)
        kinds = {spec.name: (spec.kind.value, spec.dtype) for spec in session.info.specs}
    ints, floats = ("dense", "int64"), ("dense", "float32")
    assert kinds == {"a": ints, "b": floats, "c": ints, "d": ints, "e": ("json", "uint8")}


async def test_several_objects_of_a_line_and_other_buckets(tmp_path: Path) -> None:
    """A line may name several objects, of any bucket, and several lines may name the same."""
    other = MemoryStore("s3://other")
    other.put("masks/a.png", b"mask a")
    lines = [
        {"source-ref": f"{ROOT}/a.jpg", "mask-ref": "s3://other/masks/a.png"},
        {"source-ref": f"{ROOT}/b.jpg", "mask-ref": "s3://other/masks/a.png"},
        {"mask-ref": f"{ROOT}/c.png", "source-ref": f"{ROOT}/a.jpg"},
    ]
    async with feeding(tmp_path) as rig:
        rig.pipeline.stages.sources.buckets.use(other)
        _put(rig, lines)
        session = await _open(rig, ("mask-ref", "bytes"), ("source-ref", "bytes"))
        made = await batches(session)
    assert _texts(made, "mask-ref") == ["mask a", "mask a", f"<{ROOT}/c.png>"]
    assert _texts(made, "source-ref") == [f"<{ROOT}/{name}.jpg>" for name in "aba"]


BAD = [
    (
        {"source-ref": f"{ROOT}/gone.jpg", "label": 1},
        "source-ref",
        f"object {ROOT}/gone.jpg, got none when the manifest",
    ),
    ({"label": 1}, "source-ref", "expected a line with this attribute"),
    ({"source-ref": 12, "label": 1}, "source-ref", "expected the URL of an object, got 12"),
    ({"source-ref": "images/a.jpg", "label": 1}, "source-ref", "got 'images/a.jpg'"),
    ('{"source-ref": "x', "source-ref", "expected a JSON object, got"),
    ({"source-ref": f"{ROOT}/x.jpg"}, "label", "label"),
    ({"source-ref": f"{ROOT}/x.jpg", "label": "dog"}, "label", "expected an integer"),
    ("[1, 2]", "label", "label"),
]


@pytest.mark.parametrize(("line", "attribute", "reason"), BAD)
async def test_bad_lines_are_bad_samples(tmp_path: Path, line: object, attribute: str, reason: str) -> None:
    """An error names manifest, line and attribute; if bad samples are allowed, the other lines are read."""
    good = [{"source-ref": f"{ROOT}/{number}.jpg", "label": number} for number in range(6)]
    async with feeding(tmp_path) as rig:
        _put(rig, [*good[:3], "", line, *good[3:]])
        fields = ((attribute, "bytes" if attribute == "source-ref" else "int"),)
        session = await _open(rig, *fields, bad_samples="quarantine", bad_samples_max=1)
        made = await batches(session)
        strict = await _open(rig, *fields, bad_samples="error")
        with pytest.raises(BadSample) as caught:
            await batches(strict)
    assert sum(batch.ready.rows for batch in made) == 6
    assert f"line 5 of {MANIFEST}, attribute {attribute!r}: " in caught.value.message
    assert reason in caught.value.message
    (told,) = [json.loads(text) for text in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    assert told["key"] == "00000005"
    assert reason in told["reason"]


async def test_a_bad_object_is_named_with_its_line(tmp_path: Path) -> None:
    """An object that the codec refuses is named, with the line that names it."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"source-ref": f"{ROOT}/a.jpg"}, {"source-ref": f"{ROOT}/b.jpg"}])
        rig.store.put("a.jpg", b"12")
        session = await _open(rig, ("source-ref", "int"))
        with pytest.raises(BadSample, match=f"line 2 of {MANIFEST}, attribute 'source-ref'") as caught:
            await batches(session)
    assert caught.value.object == f"{ROOT}/b.jpg"


async def test_an_object_that_vanishes_after_the_open_is_a_bad_sample(tmp_path: Path) -> None:
    """Its sample is bad, beside one that was missing before, and the objects of other lines are read."""
    async with feeding(tmp_path) as rig:
        lines = [{"source-ref": f"{ROOT}/{number}.jpg", "label": number} for number in range(8)]
        _put(rig, [*lines, {"source-ref": f"{ROOT}/gone.jpg", "label": 8}])
        await rig.pipeline.catalog.listing((URL,), lambda _: False)
        del rig.store._objects["5.jpg"]
        for _ in range(2):
            session = await _open(
                rig, ("source-ref", "bytes"), ("label", "int"), bad_samples="quarantine", bad_samples_max=2
            )
            made = await batches(session)
            assert [value for batch in made for value in batch.ints("label")] == [0, 1, 2, 3, 4, 6, 7]
    told = [json.loads(line)["reason"] for line in (tmp_path / "quarantine.jsonl").read_text().splitlines()]
    assert [reason.partition("got none ")[2] for reason in told] == [
        "when the pack was fetched",
        "when the manifest was read",
    ]


async def test_lines_without_an_object_cost_nothing_again(tmp_path: Path) -> None:
    """What lacked an object when the manifest was read is not looked up at each open, and no pack is fetched again."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"source-ref": f"{ROOT}/a.jpg"}, {"source-ref": f"{ROOT}/gone.jpg"}, {"label": 1}])
        rig.pipeline.stages.lost.renew_s = 0
        for _ in range(3):
            assert sum(
                batch.ready.rows
                for batch in await batches(await _open(rig, ("source-ref", "bytes"), bad_samples_max=2))
            )
        assert rig.store.reads.count("a.jpg") == 1


async def test_names_are_refused_that_may_not_be_read(tmp_path: Path) -> None:
    """Rules for the manifest do not cover the objects that it names."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"source-ref": f"{ROOT}/secret/a.jpg"}])
        sources = rig.pipeline.stages.sources
        assert await sources.resolve_all([URL], Access((MANIFEST, f"{ROOT}/secret/")))
        with pytest.raises(PermissionDenied, match=r"secret/a\.jpg, which augmented"):
            await sources.resolve_all([URL], Access((MANIFEST,)))


async def test_a_changed_value_makes_another_dataset(tmp_path: Path) -> None:
    """The fingerprint covers the text of the lines, also where no size changes."""
    digests = []
    async with feeding(tmp_path) as rig:
        for label in (1, 2, 1):
            _put(rig, [{"source-ref": f"{ROOT}/a.jpg", "label": label}, {"source-ref": f"{ROOT}/a.jpg", "label": 0}])
            listing = await rig.pipeline.catalog.listing((URL,), lambda _: False)
            rig.pipeline.catalog.forget(listing)
            digests.append(listing.digest)
    assert digests[0] == digests[2] != digests[1]


async def test_a_manifest_that_vanishes_is_no_bad_sample(tmp_path: Path) -> None:
    """Without the text no line can be read, so the error is that of the manifest."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"source-ref": f"{ROOT}/{number}.jpg", "label": number} for number in range(32)])
        await rig.pipeline.catalog.listing((URL,), lambda _: False)
        del rig.store._objects["train.manifest"]
        session = await _open(rig, ("source-ref", "bytes"), bad_samples_max=40)
        with pytest.raises(NotFound, match=r"train\.manifest"):
            await batches(session)


async def test_a_batch_waits_for_its_own_objects_only(tmp_path: Path) -> None:
    """While a pack arrives, a batch is read as soon as its lines and objects are there."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"source-ref": f"{ROOT}/{number}.jpg", "label": number} for number in range(8)])
        rig.store.gates["7.jpg"] = asyncio.Event()
        session = await _open(rig, ("source-ref", "bytes"), ("label", "int"))
        first = await take(session, Cursor())
        assert isinstance(first, Taken)
        assert first.ints("label") == [0, 1, 2, 3]
        rig.store.gates["7.jpg"].set()
        assert len(await batches(session)) == 2


async def test_appended_lines_keep_the_packs_of_earlier_ones(tmp_path: Path) -> None:
    """A grown manifest has another digest, and shares its whole packs, which may be fetched with the new version."""
    lines = [{"source-ref": f"{ROOT}/{number}.jpg", "label": number} for number in range(3000)]
    async with feeding(tmp_path) as rig:
        _put(rig, lines[:2000])
        earlier = await rig.pipeline.catalog.listing((URL,), lambda _: False)
        _put(rig, lines)
        rig.pipeline.catalog.forget(earlier)
        later = await rig.pipeline.catalog.listing((URL,), lambda _: False)
        assert earlier.digest != later.digest
        assert set(earlier.refs[:-1]) <= set(later.refs)
        assert sum(earlier.packs[0].counts) == 2000
        session = await _open(rig, ("label", "int"), batch_size=1000)
        values = [value for batch in await batches(session) for value in batch.ints("label")]
    assert values == list(range(3000))


async def test_a_manifest_that_changes_after_the_open_is_an_error(tmp_path: Path) -> None:
    """Lines are read from the version that was parsed, never from another."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"label": number} for number in range(8)])
        await rig.pipeline.catalog.listing((URL,), lambda _: False)
        _put(rig, [{"label": number + 1} for number in range(8)])
        session = await _open(rig, ("label", "int"))
        with pytest.raises(ObjectChanged, match=r"train\.manifest"):
            await batches(session)


async def test_codecs_that_read_no_json_are_refused_for_values(tmp_path: Path) -> None:
    """The error names a codec that reads the attribute."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"label": 1, "x": 2}])
        with pytest.raises(BadRecipe, match="expected a codec that reads JSON") as caught:
            await _open(rig, ("label", "bytes"))
        assert "as int" in caught.value.hint
        with pytest.raises(BadRecipe, match="expected one attribute"):
            await _open(rig, ("label;x", "int"))
        with pytest.raises(BadRecipe, match="label"):
            await _open(rig, ("lable", "int"))
        with pytest.raises(BadRequest, match="got lines"):
            await _open(rig, ("label", "folder"))


FILTERS = [
    ({"field": "label", "min": 2, "max": 4}, [2, 3, 4]),
    ({"field": "other", "min": 2, "max": 4}, [2, 3, 4]),
    ({"field": "meta", "key": ["confidence"], "min": 0.5}, [5, 6, 7]),
    ({"field": "text", "max_bytes": 3}, [0, 1, 2, 3]),
    ({"field": "meta", "key": ["name"], "max_bytes": 3}, [0, 1, 2, 3]),
    ({"field": "other", "max_bytes": 1}, list(range(8))),
    ({"field": "words", "max_bytes": 3}, [0, 1, 2, 3]),
    ({"field": "source-ref", "max_bytes": 19}, list(range(8))),
    ({"field": "source-ref", "max_bytes": 18}, []),
]


@pytest.mark.parametrize(("condition", "left"), FILTERS)
async def test_filters_judge_the_values_in_the_lines(
    tmp_path: Path, condition: dict[str, object], left: list[int]
) -> None:
    """Conditions on attributes see their values, decoded or not, and never the whole line."""
    lines = [
        {
            "source-ref": f"{ROOT}/{number}.jpg",
            "label": number,
            "other": number,
            "text": "x" * number,
            "words": "z" * number,
            "meta": {"confidence": number / 10, "name": "y" * number},
        }
        for number in range(8)
    ]
    async with feeding(tmp_path) as rig:
        _put(rig, lines)
        session = await _open(rig, ("label", "int"), ("text", "str"), filters=(json.dumps(condition),))
        made = await batches(session)
    assert [value for batch in made for value in batch.ints("label")] == left
    assert not sum(batch.ready.bad_samples for batch in made)


async def test_all_objects_missing_is_an_error_at_open(tmp_path: Path) -> None:
    """The error names the first object and its line."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"source-ref": f"{ROOT}/gone-{number}.jpg"} for number in range(3)])
        with pytest.raises(NotFound, match="none of 3") as caught:
            await _open(rig, ("source-ref", "bytes"))
    assert caught.value.object == f"{ROOT}/gone-0.jpg"
    assert caught.value.hint == f"line 1 of {URL} names it as 'source-ref'"


async def test_an_object_that_the_store_refuses_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused HEAD ends the open; the hint says which line names the object."""
    async with feeding(tmp_path) as rig:
        _put(rig, [{"source-ref": f"{ROOT}/a.jpg"}, {"source-ref": f"{ROOT}/b.jpg"}])
        head = rig.store.head

        async def refusing(key: str) -> ObjectRef:
            if key == "b.jpg":
                raise PermissionDenied("access denied", object=f"{ROOT}/b.jpg", hint="ask", stage="source")
            return await head(key)

        monkeypatch.setattr(rig.store, "head", refusing)
        with pytest.raises(PermissionDenied, match="access denied") as caught:
            await _open(rig, ("source-ref", "bytes"))
    assert caught.value.hint == f"line 2 of {URL} names it as 'source-ref'; ask"
