"""Blocks of settings: configuration of the daemon, of clusters, and of what watches both."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tomllib
from typing import TYPE_CHECKING

import jsonschema
import kubernetes_validate
import pytest
import yaml

from feedd.cli.flags import Flags
from feedd.config import load
from feedd.config.loading import ConfigProblems
from feedd.recipe.plugins import CODECS, FORMATS, STORES, TRANSFORMS
from tests.docs.blocks import Block, blocks
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HANDLED = {"", "text", "python", "console", "json", "toml", "yaml", "bash"}
NO_CODE = {"", "text"}
"""Pictures, layouts of buckets, and lines of logs."""


def _of(language: str) -> pytest.MarkDecorator:
    found = [block for block in blocks() if block.language == language]
    return pytest.mark.parametrize("block", found, ids=lambda block: block.place)


def test_every_block_is_of_a_kind_that_is_tested() -> None:
    """No block is in a language that no test knows, and only code carries a comment."""
    assert {block.language for block in blocks()} <= HANDLED
    assert not [block.place for block in blocks() if block.language in NO_CODE and block.kind not in {"", "prints"}]
    assert not [block.place for block in blocks() if block.kind in {"before", "after"} and block.language != "python"]


def test_every_guide_has_both_scripts() -> None:
    """A migration guide shows a script before and after, and what differs."""
    for guide in sorted((ROOT / "docs" / "migrate").glob("*.md")):
        kinds = [
            block.kind for block in blocks() if block.path.name == guide.name and block.kind in {"before", "after"}
        ]
        assert kinds == ["before", "after"], guide.name
        text = guide.read_text(encoding="utf-8")
        table = text.partition("\n## What stays the same, what differs\n")[2]
        for topic in ("crop", "order", "epochs"):
            assert re.search(rf"^\|[^|]*{topic}[^|]*\|", table, re.MULTILINE), (
                f"{guide.name} does not say what differs: {topic}"
            )


@_of("toml")
def test_toml(block: Block, tmp_path: Path) -> None:
    """A TOML block is a configuration that the daemon takes; the one of a package names the plug-in's entry points."""
    if "[project." in block.body:
        points = tomllib.loads(block.body)["project"]["entry-points"]
        assert set(points) <= {CODECS, FORMATS, STORES, TRANSFORMS}
        return
    file = tmp_path / "feedd.toml"
    for name in re.findall(r'"/etc/feedd/([^"]+)"', block.body):  # files and folders that the operator has put there
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text("") if place.suffix else place.mkdir()
    file.write_text(block.body.replace("/etc/feedd", str(tmp_path)))
    found = load({}, {}, file)
    assert found.origins
    assert any(str(file) in origin for origin in found.origins.values()) or found.config.s3


@_of("yaml")
def test_yaml(block: Block) -> None:
    """A YAML block is a manifest, fits one or the chart, or is a group of alerts about metrics that there are."""
    content = yaml.safe_load(block.body)
    if "groups" in content:
        rules = list(itertools.chain.from_iterable(group["rules"] for group in content["groups"]))
        page = (ROOT / "docs" / "operate" / "metrics.md").read_text(encoding="utf-8").replace(block.body, "")
        for rule in rules:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            names = re.findall(r"\bfeedd_\w+", rule["expr"])
            assert names
            for name in names:
                assert re.search(rf"`{re.escape(name)}\b", page), f"{name} is no metric of the page"
        return
    if "deploy/helm/feedd" in block.detail:
        chart = ROOT / "deploy" / "helm" / "feedd"
        values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
        for name, value in content.items():
            values[name] = values[name] | value
        jsonschema.validate(values, json.loads((chart / "values.schema.json").read_text(encoding="utf-8")))
        return
    if "kind" in content:
        kubernetes_validate.validate(content, kubernetes_validate.latest_version(), strict=True)
        return
    (path,) = re.findall(r"deploy/kubernetes/[a-z-]+\.yaml", block.detail)
    documents = yaml.safe_load_all((ROOT / path).read_text(encoding="utf-8"))
    (manifest,) = [document for document in documents if document["kind"] in {"DaemonSet", "Job"}]
    manifest["spec"] |= content
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


@_of("bash")
def test_bash(block: Block) -> None:
    """A shell script is one that bash understands."""
    subprocess.run(["bash", "-n"], input=block.body, text=True, check=True)


def test_policy() -> None:
    """The policy of the page is the one that is shipped."""
    (block,) = [block for block in blocks() if block.language == "json" and "Statement" in block.body]
    assert json.loads(block.body) == json.loads((ROOT / "deploy" / "iam-policy.json").read_text(encoding="utf-8"))


def test_errors_of_the_configuration(tmp_path: Path) -> None:
    """What the page shows of a wrong configuration is what the daemon says."""
    (block,) = [
        block for block in blocks() if block.language == "text" and "problems in the configuration" in block.body
    ]
    file = tmp_path / "feedd.toml"
    file.write_text('[cache]\nsise = "800GiB"\n')
    with pytest.raises(ConfigProblems) as raised:
        load(Flags()._given(), {"FEEDD_DECODE__WORKERS": "many"}, file)
    said = [line.removeprefix("feedd:").strip() for line in block.body.splitlines()[1:]]
    assert [str(problem).replace(str(file), "/etc/feedd/feedd.toml") for problem in raised.value.problems] == said
