"""The Helm chart: rendered by Helm's own library, it is the DaemonSet that deploy/kubernetes has, with values."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import kubernetes_validate
import pytest
import yaml

from feedd.config import load
from feedd.units import parse_size
from tests.tidy.tree import ROOT

if TYPE_CHECKING:
    from feedd.config import Config

CHART: Final = ROOT / "deploy" / "helm" / "feedd"
PYTHON: Final = os.environ.get("HELM_PYTHON", sys.executable)
"""An interpreter with helm-python-sdk, which holds Helm as a library."""

_RENDER: Final = """
import json, sys
import helm_python as helm

def rendered(values):
    try:
        with helm.Chart.load(sys.argv[1]) as chart:
            chart.validate_schema(values)
            return chart.render(values, name="feedd", namespace="feedd")
    except helm.HelmError as error:
        return {"error": str(error)}

lint = helm.lint(sys.argv[1])
print(json.dumps({"lint": lint, "rendered": [rendered(values) for values in json.loads(sys.argv[2])]}))
"""
_CHANGED: Final[dict[str, Any]] = {
    "image": {"repository": "other.example.com/feedd", "tag": "1.2.3", "pullSecrets": ["pull"]},
    "serviceAccount": {"create": False, "name": "data"},
    "priorityClass": {"create": False, "name": "system-node-critical"},
    "socket": {"hostPath": "/run/other"},
    "cache": {"hostPath": "/mnt/other", "size": "2TiB"},
    "arena": {"size": "32GiB"},
    "status": {"port": 7998},
    "security": {
        "allowUids": [1000, 2_000_000],
        "socketMode": "0666",
        "allowUrls": ["s3://one/", "s3://two/train/"],
    },
    "peers": {"enabled": True, "port": 7999, "tlsSecret": "mesh"},
    "options": {"FEEDD_DRAIN__GRACE": "30s", "FEEDD_CACHE__FREE_RESERVE": 1 << 30},
    "envFrom": [{"secretRef": {"name": "keys"}}],
    "nodeSelector": None,
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
}
_PLAIN_PEERS: Final[dict[str, Any]] = {"peers": {"enabled": True, "tlsSecret": ""}}
_REFUSED: Final[tuple[dict[str, Any], ...]] = (
    {"cache": {"siez": "1GiB"}},
    {"cache": {"size": "much"}},
    {"security": {"allowUrls": []}},
    {"options": {"CACHE": "1"}},
    {"peers": {"port": 0}},
    {"terminationGracePeriodSeconds": 30},
)


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    """What Helm says about the chart, and the chart rendered with each of the values."""
    if subprocess.run([PYTHON, "-c", "import helm_python"], capture_output=True, check=False).returncode:
        pytest.skip("needs helm-python-sdk: name an interpreter that has the package in HELM_PYTHON")
    values = json.dumps([{}, _CHANGED, _PLAIN_PEERS, *_REFUSED])
    done = subprocess.run(
        [PYTHON, "-c", _RENDER, str(CHART), values], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _documents(rendered: dict[str, str]) -> list[dict[str, Any]]:
    assert "error" not in rendered, rendered
    texts = [text for name, text in rendered.items() if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def _by_kind(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in documents}


def _container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (container,) = _by_kind(documents)["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def _environment(documents: list[dict[str, Any]]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in _container(documents)["env"]}


def _loaded(documents: list[dict[str, Any]]) -> Config:
    """Return the daemon's configuration; a file of a Secret is any file here."""
    environment = _environment(documents)
    files = {name: str(ROOT / "README.md") for name, value in environment.items() if value.startswith("/etc/feedd/")}
    return load({}, environment | files).config


def _plain(value: Any) -> Any:
    """Return a document without what only a chart has: labels of the release, and the default pull policy."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    only_in_charts = ("app.kubernetes.io/instance", "imagePullPolicy")
    return {key: _plain(item) for key, item in value.items() if key not in only_in_charts}


def _by_kind_without_labels(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds = _by_kind([_plain(document) for document in documents])
    for document in kinds.values():
        document["metadata"].pop("labels", None)
    return kinds


def test_the_defaults_are_the_daemonset(outcome: dict[str, Any]) -> None:
    """With default values, the chart has the objects of deploy/kubernetes/daemonset.yaml, field for field."""
    text = (ROOT / "deploy" / "kubernetes" / "daemonset.yaml").read_text(encoding="utf-8")
    manifests = [document for document in yaml.safe_load_all(text) if document["kind"] != "Namespace"]
    got = _by_kind_without_labels(_documents(outcome["rendered"][0]))
    assert got == _by_kind_without_labels(manifests)


@pytest.mark.parametrize("case", [0, 1, 2], ids=["defaults", "changed", "peers in plain text"])
def test_rendered_objects_are_valid(outcome: dict[str, Any], case: int) -> None:
    """Kubernetes' own schemas accept each object, unknown fields refused."""
    documents = _documents(outcome["rendered"][case])
    for document in documents:
        if document["kind"] != "PodMonitor":  # of the Prometheus operator
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    assert len(documents) == (5, 3, 6)[case]


def test_helm_finds_nothing_wrong(outcome: dict[str, Any]) -> None:
    """Helm's lint has no error and no warning. A chart without an icon is only a remark."""
    assert outcome["lint"]["errors"] == []
    assert [message["error"] for message in outcome["lint"]["messages"]] == ["icon is recommended"]


def test_values_reach_the_daemon(outcome: dict[str, Any]) -> None:
    """Each value is where it belongs: options as the daemon reads them, paths on the node, names of other objects."""
    documents = _documents(outcome["rendered"][1])
    config = _loaded(documents)
    assert (config.cache.size, config.arena.size) == (parse_size("2TiB"), parse_size("32GiB"))
    assert (config.security.allow_uids, config.security.socket_mode) == ([1000, 2_000_000], "0666")
    assert config.security.allow_urls == ["s3://one/", "s3://two/train/"]
    assert (config.drain.grace, config.cache.free_reserve) == (30.0, 1 << 30)
    kinds = _by_kind(documents)
    pod = kinds["DaemonSet"]["spec"]["template"]["spec"]
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in pod["volumes"]}
    assert paths == {"socket": "/run/other", "cache": "/mnt/other", "tmp": None, "peers": None}
    assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("data", "system-node-critical")
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert "nodeSelector" not in pod
    container = _container(documents)
    assert container["image"] == pod["initContainers"][0]["image"] == "other.example.com/feedd:1.2.3"
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert str(config.status).endswith(f":{container['ports'][0]['containerPort']}")
    monitor = kinds["PodMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    labels = kinds["DaemonSet"]["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels[monitor["spec"]["jobLabel"]] == "feedd"  # the name of the job that the alerts expect
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == container["ports"][0]["name"]
    assert "annotations" not in kinds["DaemonSet"]["spec"]["template"]["metadata"]  # or Prometheus would scrape twice


def test_daemons_find_each_other(outcome: dict[str, Any]) -> None:
    """The members are the addresses of a headless Service over the daemons, with a Secret's certificate or without."""
    documents = _documents(outcome["rendered"][1])
    kinds, environment = _by_kind(documents), _environment(documents)
    service, pod = kinds["Service"], kinds["DaemonSet"]["spec"]["template"]
    config = _loaded(documents)
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert (config.peers.listen, config.peers.members) == ("0.0.0.0:7999", [f"{name}:7999"])
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (mount,) = [one for one in _container(documents)["volumeMounts"] if one["name"] == "peers"]
    (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == "peers"]
    assert volume["secret"]["secretName"] == "mesh"
    paths = (environment["FEEDD_PEERS__CA"], environment["FEEDD_TLS__CERT"], environment["FEEDD_TLS__KEY"])
    assert paths == tuple(f"{mount['mountPath']}/{name}" for name in ("ca.crt", "tls.crt", "tls.key"))
    plain = _documents(outcome["rendered"][2])
    assert _loaded(plain).security.allow_insecure_tcp
    ingress = _by_kind(plain)["NetworkPolicy"]["spec"]["ingress"]
    assert ingress[1]["ports"] == [{"protocol": "TCP", "port": 7072}]
    assert ingress[1]["from"][0]["podSelector"] == _by_kind(plain)["NetworkPolicy"]["spec"]["podSelector"]


def test_wrong_values_are_refused(outcome: dict[str, Any]) -> None:
    """A name or a value that the chart does not know is an error before anything is installed."""
    for values, rendered in zip(_REFUSED, outcome["rendered"][3:], strict=True):
        assert set(rendered) == {"error"}, values
