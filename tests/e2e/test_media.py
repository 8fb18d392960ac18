"""Images with transforms, audio and installed plug-ins, from S3 through a real daemon to tensors."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from feedd_client import BadRecipeError, FeedDataset
from tests.fakes.plugins import install_plugins
from tests.fakes.sounds import sines, sound
from tests.fakes.tars import natural_image, tar_bytes
from tests.fakes.texts import word_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.e2e.daemon import Daemon
    from tests.fakes.s3.server import S3Server

    Fields = Mapping[str, str | Mapping[str, Any]]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_daemon"), pytest.mark.timeout(120)]


def picture(number: int, kind: str) -> tuple[bytes, Image.Image]:
    """Return one picture turned on its side by EXIF, encoded and upright."""
    exif = Image.Exif()
    exif[274] = 6
    buffer = io.BytesIO()
    pixels = natural_image(np.random.default_rng(number), 40, 30 + number)
    Image.fromarray(pixels).save(buffer, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue(), ImageOps.exif_transpose(Image.open(buffer))


def test_images_in_any_format_with_transforms(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """Formats mixed in one field, turned upright, renamed; normalised and one-hot; the same from one worker and two."""
    kinds = ("PNG", "TIFF", "WEBP", "PNG")
    made = [picture(number, kind) for number, kind in enumerate(kinds)]
    samples = [
        (str(n), {kind.lower(): data, "cls": str(n % 3).encode()})
        for n, (kind, (data, _)) in enumerate(zip(kinds, made, strict=True))
    ]
    s3.put("data", "i/0.tar", tar_bytes(samples))
    exact: Fields = {
        "png;tiff;webp": {"decode": "image", "as": "picture", "orient": True},
        "cls": {"decode": "int", "transforms": [{"op": "one_hot", "classes": 3}]},
    }
    (batch,) = FeedDataset("s3://data/i/", batch_size=4, fields=exact, address=daemons().address, copy=True)
    for row, (_, upright) in zip(batch["picture"], made, strict=True):
        np.testing.assert_array_equal(row.numpy(), np.asarray(upright))
    assert torch.equal(batch["cls"], torch.nn.functional.one_hot(torch.tensor([0, 1, 2, 0]), 3).float())
    random: Fields = {
        "picture": {
            "decode": "image",
            "from": ["png", "tiff", "webp"],
            "transforms": [
                {"op": "random_resized_crop", "size": 16, "scale": [0.3, 1]},
                "horizontal_flip",
                {"op": "color_jitter", "brightness": 0.4, "hue": 0.1},
                {"op": "rand_augment", "magnitude": 7},
                {"op": "normalize", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "dtype": "float16"},
                "channels_first",
            ],
        }
    }
    results = []
    for number, workers in enumerate((1, 2)):
        daemon = daemons(f"w{number}", workers=workers)
        dataset = FeedDataset("s3://data/i/", batch_size=4, fields=random, address=daemon.address, copy=True, seed=5)
        for epoch in range(2):
            dataset.set_epoch(epoch)
            (one,) = dataset
            assert one["picture"].shape == (4, 3, 16, 16)
            assert one["picture"].dtype == torch.float16
            results.append(one["picture"])
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[3])
    assert not torch.equal(results[0], results[1])  # another epoch, other draws
    wrong = {"png": {"decode": "image", "transforms": ["centre_crop"]}}
    with pytest.raises(BadRecipeError, match="center_crop"):
        next(iter(FeedDataset("s3://data/i/", batch_size=1, fields=wrong, address=daemon.address)))


def test_audio(s3: S3Server, daemons: Callable[..., Daemon]) -> None:
    """WAV and FLAC of several lengths and rates, at one rate: ragged, and cut to so many seconds."""
    tones = [sines(8000 + 100 * n, 8000 * (n + 1), 300) for n in range(2)]
    waves = [("0", {"wav": sound(tones[0], 8000)}), ("1", {"flac": sound(tones[1], 16000, "FLAC")})]
    s3.put("data", "a/0.tar", tar_bytes(waves))
    daemon = daemons()
    fields = {"wav;flac": {"decode": "audio", "rate": 8000, "mono": True}}
    (batch,) = FeedDataset("s3://data/a/", batch_size=2, fields=fields, address=daemon.address, copy=True)
    rows = list(batch["wav"])
    assert [len(row) for row in rows] == [8000, 4050]
    for row in rows:
        expected = sines(len(row), 8000, 300)[:, 0]
        np.testing.assert_allclose(row.numpy()[300:-300], expected[300:-300], atol=3e-3)
    fields = {"wav;flac": {"decode": "audio", "rate": 8000, "mono": True, "seconds": 0.75, "dtype": "int16"}}
    (batch,) = FeedDataset("s3://data/a/", batch_size=2, fields=fields, address=daemon.address, copy=True)
    assert batch["wav"].shape == (2, 6000)
    assert batch["wav"].dtype == torch.int16
    assert not batch["wav"][1, 4051:].any()


def test_text_is_tokenized(s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    """By a file that the operator offers: ragged, and padded; other names are refused at open, saying what there is."""
    word_tokenizer(tmp_path / "words.json", ["night", "day", "a"])
    texts = ["a day", "night", "day a night xyz"]
    s3.put("data", "t/0.tar", tar_bytes([(str(n), {"txt": text.encode()}) for n, text in enumerate(texts)]))
    daemon = daemons(settings=(f"decode.tokenizers={tmp_path}",))
    fields: Fields = {"txt": {"decode": "tokenize", "tokenizer": "words.json"}}
    (batch,) = FeedDataset("s3://data/t/", batch_size=3, fields=fields, address=daemon.address, copy=True)
    assert [row.tolist() for row in batch["txt"]] == [[3, 2], [1], [2, 3, 1, 0]]
    fields = {"txt": {"decode": "tokenize", "tokenizer": "words.json", "max_length": 3, "fill": 9, "dtype": "int64"}}
    (batch,) = FeedDataset("s3://data/t/", batch_size=3, fields=fields, address=daemon.address, copy=True)
    assert batch["txt"].tolist() == [[3, 2, 9], [1, 9, 9], [2, 3, 1]]
    wrong: Fields = {"txt": {"decode": "tokenize", "tokenizer": "../words.json"}}
    with pytest.raises(BadRecipeError, match=r"one of the tokenizers words\.json"):
        next(iter(FeedDataset("s3://data/t/", batch_size=1, fields=wrong, address=daemon.address)))


def test_installed_plug_ins(
    s3: S3Server, daemons: Callable[..., Daemon], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients name what the operator installed; what does not load is an error at open and one line in the log."""
    monkeypatch.setenv("PYTHONPATH", str(install_plugins(tmp_path / "site")), prepend=":")
    data, _ = picture(1, "PNG")
    s3.put("data", "p/0.tar", tar_bytes([("0", {"bin": b"abcd", "png": data})]))
    daemon = daemons(forked=False)  # its imports are what this is about
    fields: Fields = {
        "bin": {"decode": "first_bytes", "count": 3},
        "png": {"decode": "image", "transforms": [{"op": "resize", "size": [4, 4]}, {"op": "tile", "times": 2}]},
    }
    (batch,) = FeedDataset("s3://data/p/", batch_size=1, fields=fields, address=daemon.address, copy=True)
    assert batch["bin"].tolist() == [[97, 98, 99]]
    assert batch["png"].shape == (1, 4, 8, 3)
    assert torch.equal(batch["png"][0, 1:, :4], batch["png"][0, 1:, 4:])
    for _ in range(2):
        with pytest.raises(BadRecipeError, match=r"'gone' of feedd\.codecs to load"):
            next(iter(FeedDataset("s3://data/p/", batch_size=1, fields={"bin": "gone"}, address=daemon.address)))
    assert daemon.log.read_text().count("installed plug-in cannot be loaded") == 1
