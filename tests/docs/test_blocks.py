"""Every block of README.md and docs/ that is no mere setting does what it says, against a daemon and an S3 server."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from feedd.daemon.watchdog import SERVING_LOOP
from feedd.recipe.recipe import parse_field, spec_of
from feedd_client import FeedDataset
from tests.budget import PATIENT_S
from tests.docs.blocks import Block, blocks
from tests.docs.commands import adapted, check_variables, check_words, commands
from tests.docs.execute import Job
from tests.docs.pictures import STEP, picture
from tests.docs.scene import Scene
from tests.docs.scenes import SCENES
from tests.e2e.daemon import free_port
from tests.e2e.shards import tar
from tests.fakes.forks import Running, run
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.docs.world import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PRINTS = {
    block: following.body.replace("[256", "[16")  # batches are smaller here
    for block, following in zip(blocks(), blocks()[1:], strict=False)
    if following.kind == "prints"
}


@contextlib.contextmanager
def closing_all(world: World) -> Iterator[None]:
    """Let a test read in this process: afterwards nothing of its sessions and of the server's connections is left."""
    yield
    gc.collect()
    world.server.hang_up()


def _scene(block: Block) -> Scene:
    return SCENES[block.detail] if block.kind == "scene" else Scene()


def _python() -> list[object]:
    """Return the blocks that are no script of a migration guide."""
    found = [block for block in blocks() if block.language == "python" and block.kind in {"", "scene"}]
    marks = {True: [pytest.mark.nightly], False: []}
    return [pytest.param(block, id=block.place, marks=marks[bool(_scene(block).slow)]) for block in found]


@pytest.mark.parametrize("block", _python())
def test_python(block: Block, world: World, tmp_path: Path) -> None:
    """A Python block runs, every dataset and loader that it makes yields a batch, and it prints what the page says."""
    scene = _scene(block)
    environment = world.environment | {"FREE_STATUS": f"127.0.0.1:{free_port()}"} | scene.environment
    job = Job(
        block.body, str(tmp_path / "record.json"), str(tmp_path), scene.replace, scene.before, scene.after, environment
    )
    record = world.run(job, block.place)
    if block in PRINTS:
        assert record["printed"] == PRINTS[block]


def test_scenes_are_used() -> None:
    """Each scene belongs to a block."""
    assert {block.detail for block in blocks() if block.kind == "scene"} == set(SCENES)


# ---------------------------------------------------------------- commands

DONE: set[str] = set()
"""Commands that a page before has shown."""
CONSOLE = [block for block in blocks() if block.language == "console"]


def _is_slow(block: Block) -> bool:
    """Tell whether a block starts a daemon, or counts samples as another page does."""
    starts = {tuple(command.words[:2]) for command in commands(block)}
    return ("feedd", "serve") in starts or (("feedd", "index") in starts and block.path.stem != "formats")


def test_commands_are_understood() -> None:
    """The program takes each command as its page writes it, and each variable of feedd is one."""
    for block in CONSOLE:
        for command in commands(block):
            check_variables(command.environment)
            check_words(command.words)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=block.place, marks=[pytest.mark.nightly] if _is_slow(block) else [])
        for block in CONSOLE
        if not block.kind
    ],
)
def test_console(block: Block, world: World, short_dir: Path) -> None:
    """The commands of a block do their work, and a daemon becomes ready and stops."""
    (short_dir / "feedd.toml").write_text((ROOT / "deploy" / "feedd.toml").read_text(encoding="utf-8"))
    defaults = {"FEEDD_CACHE__DIR": f"{short_dir}/cache", "FEEDD_LISTEN": f"unix://{short_dir}/l.sock"}
    if "/old/" in block.body:  # the page looks into the cache: something must be there
        assert run(["cache", "warm", "tfrecord.gz+s3://my-bucket/old/"], os.environ | world.environment, 60).stderr
    for command in commands(block):
        words = [adapted(word, short_dir) for word in command.words]
        given = {name: adapted(value, short_dir) for name, value in command.environment.items()}
        environment = os.environ | world.environment | defaults | given
        if words[0] == "curl":
            port = f"127.0.0.1:{world.daemon.status_port}"
            with urllib.request.urlopen(words[-1].replace("127.0.0.1:7071", port), timeout=PATIENT_S) as answer:
                assert answer.status == 200
            continue
        assert words[0] == "feedd", f"{block.place}: expected a command that a test can run, got {words}"
        if words[1] == "serve":
            _serve(words[1:], environment)
            continue
        if shlex.join(command.words) in DONE:
            continue
        DONE.add(shlex.join(command.words))
        done = run(words[1:], environment, 60)
        assert done.returncode == 0, f"{block.place}: {shlex.join(words)}: {done.stderr}{done.stdout}"
        assert done.stdout or done.stderr
    world.server.hang_up()


def _serve(arguments: list[str], environment: dict[str, str]) -> None:
    port = free_port()
    with Running([*arguments], environment | {"FEEDD_STATUS": f"127.0.0.1:{port}"}) as daemon:
        deadline_s = time.monotonic() + PATIENT_S
        state = ""
        while state != "ready":  # a standby, too, becomes ready: no other daemon holds its cache
            assert daemon.poll() is None, daemon.communicate(1)
            assert time.monotonic() < deadline_s, state
            time.sleep(0.05)
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as answer:
                state = json.load(answer)["state"]
        daemon.terminate()
        daemon.communicate(PATIENT_S)
        assert daemon.returncode == 0


# ---------------------------------------------------------------- JSON


def _json(part: str) -> list[Block]:
    """Return the JSON blocks with a text in them."""
    found = [block for block in blocks() if block.language == "json" and part in block.body]
    assert found
    return found


RECIPES = _json('"decode"')
MANIFESTS = _json('{"prefix"')
AUGMENTED = _json('"source-ref"')


def test_no_json_is_left_out() -> None:
    """Each JSON block has a test, here or beside the other settings."""
    others = ["Statement", "uptime_s", "ordinal", '"label": 0', "event loop", "log lines were dropped"]
    seen = {block for part in others for block in _json(part)} | {*RECIPES, *MANIFESTS, *AUGMENTED}
    assert {block for block in blocks() if block.language == "json"} == seen


@pytest.mark.parametrize("block", RECIPES, ids=lambda block: block.place)
def test_recipes(block: Block, world: World) -> None:
    """A recipe is one that feedd understands; one that needs a tokenizer is one that the daemon uses."""
    if "tokenizer" not in block.body:
        assert spec_of(parse_field("x", block.body))
        return
    fields = {"tokens": json.loads(block.body)}
    with closing_all(world):
        batch = next(
            iter(FeedDataset("s3://my-bucket/lines/", batch_size=8, fields=fields, address=world.daemon.address))
        )
        assert batch["tokens"].shape[1] == fields["tokens"]["pack"]["length"]
        assert batch["tokens"][0, :6].tolist() == [1, 2, 3, 1, 4, fields["tokens"]["end"]]


@pytest.mark.parametrize("block", MANIFESTS, ids=lambda block: block.place)
def test_manifests(block: Block, world: World) -> None:
    """A manifest names the objects that feedd reads, in its order."""
    text = block.body.replace("my-bucket", "lists")
    head, *names = json.loads(text)
    folder = head["prefix"].removeprefix("s3://lists/")
    for number, name in enumerate(names):
        data = tar([(f"{number}", {"jpg": picture(number)})]) if name.endswith(".tar") else picture(number)
        world.server.put("lists", folder + name, data)
    world.server.put("lists", "m.manifest", text.encode())
    fields = {"jpg;jpeg": "image:8x8"}
    with closing_all(world):
        url = "manifest+s3://lists/m.manifest"
        (batch,) = FeedDataset(url, batch_size=8, fields=fields, address=world.daemon.address)
        blue = batch["jpg"][..., 2].float().mean((1, 2)) / STEP
        assert blue.round().tolist() == [*range(len(names))]


@pytest.mark.parametrize("block", AUGMENTED, ids=lambda block: block.place)
def test_augmented_manifests(block: Block, world: World) -> None:
    """Lines name the objects that feedd reads, and hold the other fields."""
    lines = [json.loads(line) for line in block.body.replace("my-bucket", "lists").splitlines()]
    for number, line in enumerate(lines):
        world.server.put("lists", line["source-ref"].removeprefix("s3://lists/"), picture(number))
    world.server.put("lists", "a.manifest", "\n".join(map(json.dumps, lines)).encode())
    with closing_all(world):
        url = "augmented+s3://lists/a.manifest"
        (batch,) = FeedDataset(url, batch_size=len(lines), address=world.daemon.address)
        assert batch["species"].tolist() == [line["species"] for line in lines]
        assert batch["species-metadata"] == [line["species-metadata"] for line in lines]
        assert len(batch["source-ref"]) == len(lines)


def test_answer_of_healthz(world: World) -> None:
    """The page shows the members that a ready daemon answers with."""
    (block,) = _json("uptime_s")
    with urllib.request.urlopen(f"http://127.0.0.1:{world.daemon.status_port}/healthz", timeout=PATIENT_S) as answer:
        assert list(json.load(answer)) == list(json.loads(block.body))


def test_line_of_the_quarantine_file(world: World) -> None:
    """The page shows the members that a bad sample's line has."""
    (block,) = _json("ordinal")
    samples = [(f"{number:05d}", {"cls": b"x" if number == 3 else b"1"}) for number in range(4)]
    world.server.put("quarantine", "train/0.tar", tar(samples))
    options = dict[str, Any](fields={"cls": "int"}, bad_samples="quarantine", address=world.daemon.address)
    with closing_all(world):
        assert [len(batch["cls"]) for batch in FeedDataset("s3://quarantine/train/", batch_size=8, **options)] == [3]
    (line,) = (world.daemon.home / "cache" / "quarantine.jsonl").read_text().splitlines()
    shown, found = json.loads(block.body), json.loads(line)
    assert list(found) == list(shown)
    for member in ("key", "ordinal", "offset", "field", "epoch"):
        assert found[member] == shown[member]


def test_row_of_a_label_table(world: World) -> None:
    """A row as the page shows it labels the object that it names."""
    (block,) = _json('"label": 0')
    world.server.put("table", f"t/{json.loads(block.body)['file_name']}", picture(1))
    world.server.put("table", "t/labels.jsonl", block.body.encode())
    fields = {"jpg;jpeg": "image:8x8", "label": "table:labels.jsonl"}
    with closing_all(world):
        (batch,) = FeedDataset("s3://table/t/", batch_size=8, fields=fields, address=world.daemon.address)
        assert batch["label"].tolist() == [0]


def test_line_of_the_log() -> None:
    """The page shows what the watchdog writes."""
    (block,) = _json("event loop")
    text = (ROOT / "feedd" / "daemon" / "watchdog.py").read_text(encoding="utf-8")
    line = json.loads(block.body)
    assert line["event"] == f"{SERVING_LOOP} is stuck"
    assert '"{loop} is stuck"' in text
    assert set(line) == {"event", "level", "silent_s", "pid"}


ARRAYS = [block for block in blocks() if block.language == "bash" and "#SBATCH --array" in block.body]


@pytest.mark.nightly
@pytest.mark.parametrize("block", [pytest.param(block, id=block.place) for block in ARRAYS])
def test_slurm_arrays(block: Block, world: World) -> None:
    """The script of an array job, run as Slurm runs it for each of two tasks, writes the whole result."""
    script = block.body.replace("/16", "/2")
    assert script != block.body
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for task in range(2):
        environment = os.environ | world.environment | {"PATH": path, "SLURM_ARRAY_TASK_ID": str(task)}
        done = subprocess.run(["bash"], input=script, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert ("frozen in" in done.stderr) or ("samples, in" in done.stderr), done.stderr
