"""What is shipped for deployment: valid by the platforms' own schemas, and true about this daemon."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

from feedd.cli.app import load as load_command
from feedd.config import load, options
from feedd.units import parse_duration_s, parse_size
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DEPLOY = ROOT / "deploy"
DOCUMENTS = [
    (path.name, document)
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
_FOREIGN = ("jobset.x-k8s.io/", "trainer.kubeflow.org/")  # groups whose schemas Kubernetes does not have
MANIFESTS = [(file, document) for file, document in DOCUMENTS if not document["apiVersion"].startswith(_FOREIGN)]
CLOSING_S = 60.0  # feedd.daemon.life.UNWIND_S, which these files promise to leave room for


def _daemonset() -> dict[str, Any]:
    (found,) = [document for _, document in MANIFESTS if document["kind"] == "DaemonSet"]
    return dict(found["spec"]["template"]["spec"])


def _train_job() -> dict[str, Any]:
    (found,) = [document for file, document in MANIFESTS if file == "train-job.yaml"]
    return dict(found["spec"]["template"]["spec"])


def _replicated_job(file: str) -> dict[str, Any]:
    """Return the job that a JobSet, or the JobSet of a training runtime, makes."""
    spec = next(document["spec"] for name, document in DOCUMENTS if name == file)
    (job,) = spec.get("replicatedJobs") or spec["template"]["spec"]["replicatedJobs"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, "spec": job["template"]["spec"]}


def _environment(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container["env"]}


# ---------------------------------------------------------------- Kubernetes


@pytest.mark.parametrize(
    ("file", "document"), MANIFESTS, ids=lambda part: part if isinstance(part, str) else part["kind"]
)
def test_manifests_are_valid(file: str, document: dict[str, Any]) -> None:
    """Each document passes the schema of the newest Kubernetes known, unknown fields refused."""
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_daemonset_configures_this_daemon() -> None:
    """The variables in the DaemonSet are options with values the daemon accepts, and leave room in the memory limit."""
    (container,) = _daemonset()["containers"]
    environment = _environment(container)
    config = load({}, environment).config
    assert set(environment) <= {option.env for option in options()}
    assert config.arena.size < parse_size(container["resources"]["limits"]["memory"].removesuffix("i") + "iB")


def test_daemonset_probes_what_the_daemon_serves() -> None:
    """Probes ask the status port, which listens on the pod's address; liveness does not fail while draining."""
    (container,) = _daemonset()["containers"]
    (port,) = container["ports"]
    assert _environment(container)["FEEDD_STATUS"] == f"0.0.0.0:{port['containerPort']}"
    paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/healthz", "readiness": "/healthz", "liveness": "/"}


def test_daemonset_runs_without_privileges() -> None:
    """The daemon's container is not root, holds no capability and cannot write its image."""
    (container,) = _daemonset()["containers"]
    security = container["securityContext"]
    assert security["runAsNonRoot"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_pods_of_the_node_are_kept_apart() -> None:
    """No pod has a token of Kubernetes; who reaches socket, page and data is said; disruptions come one by one."""
    daemon = _daemonset()
    config = load({}, _environment(daemon["containers"][0])).config
    assert config.security.socket_mode == "0660"
    assert config.security.allow_urls
    assert config.admin_socket is not None
    job = _train_job()
    assert daemon["containers"][0]["securityContext"]["runAsGroup"] in job["securityContext"]["supplementalGroups"]
    assert (daemon["automountServiceAccountToken"], job["automountServiceAccountToken"]) == (False, False)
    by_kind = {document["kind"]: document for _, document in MANIFESTS}
    (rule,) = by_kind["NetworkPolicy"]["spec"]["ingress"]
    (port,) = daemon["containers"][0]["ports"]
    assert [one["port"] for one in rule["ports"]] == [port["containerPort"]]
    assert by_kind["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert daemon["priorityClassName"] == by_kind["PriorityClass"]["metadata"]["name"]


@pytest.mark.parametrize("name", ["index", "pack"])
def test_a_job_of_parts_does_every_part(name: str) -> None:
    """The job has as many pods as there are parts, and the command understands its arguments."""
    (job,) = [document["spec"] for file, document in MANIFESTS if file == f"{name}-job.yaml"]
    (container,) = job["template"]["spec"]["containers"]
    assert job["completionMode"] == "Indexed"
    assert container["args"][-1] == f"--part=$(JOB_COMPLETION_INDEX)/{job['completions']}"
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "0") for word in container["args"]]
    assert words[0] == name
    load_command(name).make_context(name, words[1:]).close()


@pytest.mark.parametrize("file", ["train-jobset.yaml", "train-kubeflow.yaml"])
def test_jobs_of_other_controllers_are_valid(file: str) -> None:
    """The jobs that JobSet and Kubeflow Trainer make pass the schema of Kubernetes, once Trainer has set the policy."""
    job = _replicated_job(file)
    if file == "train-kubeflow.yaml":
        job["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


def test_the_jobset_has_a_rank_for_each_pod() -> None:
    """As many pods as torchrun expects nodes, numbered by their index, and the first pod is the master."""
    job = _replicated_job("train-jobset.yaml")
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert f"--nnodes={job['spec']['completions']}" in arguments
    assert job["spec"]["parallelism"] == job["spec"]["completions"]
    assert "--node-rank=$(JOB_COMPLETION_INDEX)" in arguments
    name = next(document["metadata"]["name"] for file, document in DOCUMENTS if file == "train-jobset.yaml")
    assert f"--master-addr={name}-{job['metadata']['name']}-0-0.{name}" in arguments


def test_the_train_job_uses_the_runtime() -> None:
    """The TrainJob names the runtime of its file, whose container has the name that Trainer looks for."""
    runtime, job = (document for file, document in DOCUMENTS if file == "train-kubeflow.yaml")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert (replicated["name"], container["name"]) == ("node", "node")


@pytest.mark.parametrize("file", ["train-job.yaml", "train-jobset.yaml", "train-kubeflow.yaml"])
def test_job_and_daemonset_meet(file: str) -> None:
    """A job mounts the directory the daemon's socket is in, as a user the daemon hands memory to."""
    job = _train_job() if file == "train-job.yaml" else _replicated_job(file)["spec"]["template"]["spec"]
    daemon = _daemonset()
    directory = {volume["name"]: volume["hostPath"]["path"] for volume in job["volumes"]}["feedd"]
    assert directory == {v["name"]: v.get("hostPath", {}).get("path") for v in daemon["volumes"]}["socket"]
    config = load({}, _environment(daemon["containers"][0])).config
    assert _environment(job["containers"][0])["FEEDD_ADDRESS"] in config.listen
    assert job["securityContext"]["runAsUser"] in config.security.allow_uids
    assert daemon["containers"][0]["securityContext"]["runAsGroup"] in job["securityContext"]["supplementalGroups"]
    assert job["automountServiceAccountToken"] is False


def test_grace_periods_cover_the_drain() -> None:
    """Supervisors wait longer than the daemon needs to drain and close."""
    needed_s = load({}, {}).config.drain.grace + CLOSING_S
    assert _daemonset()["terminationGracePeriodSeconds"] > needed_s
    unit = (DEPLOY / "feedd.service").read_text(encoding="utf-8")
    stop = re.search(r"^TimeoutStopSec=(\S+)$", unit, re.MULTILINE)
    assert stop is not None
    assert parse_duration_s(stop[1]) > needed_s


# ---------------------------------------------------------------- systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_unit_passes_systemds_own_check(tmp_path: Path) -> None:
    """Systemd finds nothing wrong in the unit: no unknown directive, no value it cannot read."""
    text = (DEPLOY / "feedd.service").read_text(encoding="utf-8")
    assert "/opt/feedd/bin/feedd" in text
    unit = tmp_path / "feedd.service"  # with an executable that exists here
    unit.write_text(text.replace("/opt/feedd/bin/feedd", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], check=False, capture_output=True, text=True, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if "feedd" in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_unit_speaks_the_daemons_language() -> None:
    """Type=notify with a watchdog, the directories of the defaults, and no retry of a wrong configuration."""
    lines = (DEPLOY / "feedd.service").read_text(encoding="utf-8").splitlines()
    for line in (
        "Type=notify",
        "RuntimeDirectory=feedd",
        "CacheDirectory=feedd",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "Restart=always",
        "RestartPreventExitStatus=2",
        "OOMPolicy=continue",
        "LimitCORE=0",
        "ProtectProc=invisible",
    ):
        assert line in lines
    assert any(line.startswith("WatchdogSec=") for line in lines)
    config = load({}, {}).config
    assert config.listen == ["unix:///run/feedd/feedd.sock"]
    assert str(config.cache.dir) == "/var/cache/feedd"


# ---------------------------------------------------------------- image


def _instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], " ".join(line.split(None, 1)[1].split())) for line in joined.splitlines()]


def test_image_copies_what_exists() -> None:
    """Every path copied from the tree is there, and the ignore file lets it through."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    for word, rest in _instructions():
        if word == "COPY" and not rest.startswith("--from"):
            for name in rest.split()[:-1]:
                assert (ROOT / name).exists(), name
                assert f"!{name}" in ignored, name


def test_image_runs_as_a_plain_user() -> None:
    """The last stage ends as a numbered user that is not root, with a health check, and starts the daemon."""
    instructions = _instructions()
    last = max(index for index, (word, _) in enumerate(instructions) if word == "FROM")
    assert sum(word == "FROM" for word, _ in instructions) == 2
    stage = dict(instructions[last:])
    user, _, group = stage["USER"].partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert "/healthz" in stage["HEALTHCHECK"]
    assert (json.loads(stage["ENTRYPOINT"]), json.loads(stage["CMD"])) == (["feedd"], ["serve"])


def test_both_stages_have_the_base_that_a_build_names() -> None:
    """A digest given as ``BASE`` is the base of the daemon's stage and of the one that installs packages."""
    instructions = _instructions()
    assert instructions[0] == ("ARG", "BASE=python:3.12-slim")
    assert [rest.split()[0] for word, rest in instructions if word == "FROM"] == ["${BASE}"] * 2


def test_image_is_pinned_by_the_constraints() -> None:
    """What the image installs are the versions the tests ran with, from whatever index the builder uses."""
    installs = [rest for word, rest in _instructions() if word == "RUN" and "pip install" in rest]
    assert installs
    assert all("-c constraints.txt" in rest and "://" not in rest for rest in installs)


def test_constraints_pin_everything_exactly() -> None:
    """One exact version per line, torch among them, without hosts, paths or local builds."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert not [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", pin)]


# ---------------------------------------------------------------- AWS


def test_policy_allows_what_is_needed_and_no_more() -> None:
    """Listing one bucket under one prefix and reading objects there; no wildcard action, no wildcard bucket."""
    policy = json.loads((DEPLOY / "iam-policy.json").read_text(encoding="utf-8"))
    assert policy["Version"] == "2012-10-17"
    statements = {statement["Action"]: statement for statement in policy["Statement"]}
    assert set(statements) == {"s3:ListBucket", "s3:GetObject"}
    assert all(statement["Effect"] == "Allow" for statement in statements.values())
    assert all(one["Condition"]["Bool"] == {"aws:SecureTransport": "true"} for one in statements.values())
    bucket = statements["s3:ListBucket"]["Resource"]
    prefixes = statements["s3:ListBucket"]["Condition"]["StringLike"]["s3:prefix"]
    assert re.fullmatch(r"arn:aws:s3:::[a-z0-9-]+", bucket)
    assert prefixes == ["train/", "train/*"]
    assert statements["s3:GetObject"]["Resource"] == f"{bucket}/{prefixes[1]}"
