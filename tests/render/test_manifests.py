"""Every manifest of every case: strict schemas here, the real CRDs and an offline validator where they are at hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.render import RenderedFile, render, write_tree
from tests.render.cases import cases
from tests.render.manifests import documents, errors, pods
from tests.render.schemas import CRD_FILES, SCHEMAS

CASES = cases()
TREES: dict[str, tuple[RenderedFile, ...]] = {}


def tree(name: str) -> tuple[RenderedFile, ...]:
    if name not in TREES:
        TREES[name] = render(CASES[name].plan)
    return TREES[name]


@pytest.mark.parametrize("name", sorted(CASES))
def test_schema(name: str) -> None:
    found = [f"{path} {d['kind']}: {e}" for path, d in documents(tree(name)) for e in errors(d)]
    assert not found


def test_a_wrong_field_is_seen() -> None:
    _, good = next(iter(documents(tree("vllm-kubernetes-two-nodes-pp"))))
    assert not errors(good)
    good["spec"]["leaderWorkerTemplate"]["sizes"] = 2
    good["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]["imagePull"] = "x"
    assert len(errors(good)) == 2


@pytest.mark.parametrize("name", sorted(CASES))
def test_pods_are_safe(name: str) -> None:
    for path, d in documents(tree(name)):
        for pod in pods(d):
            where = f"{path} {d['kind']}"
            assert pod["enableServiceLinks"] is False, where
            router = any(c["name"] == "router" for c in pod["containers"])
            assert pod["automountServiceAccountToken"] is router, where
            assert pod["securityContext"]["runAsNonRoot"] is True, where
            assert pod["securityContext"]["runAsUser"] > 0, where
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
            assert not any("hostPath" in v for v in pod.get("volumes", [])), where
            assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), where
            names = {v["name"] for v in pod.get("volumes", [])}
            for c in pod["containers"] + pod.get("initContainers", []):
                security = c["securityContext"]
                assert security["allowPrivilegeEscalation"] is False, where
                assert security["capabilities"]["drop"] == ["ALL"], where
                rdma = any(k.startswith("rdma/") for k in c["resources"].get("limits", {}))
                assert security["capabilities"].get("add", []) == (["IPC_LOCK"] if rdma else []), where
                assert {m["name"] for m in c.get("volumeMounts", [])} <= names, where
                assert not c["image"].endswith(":latest"), where
                env = [e["name"] for e in c.get("env", [])]
                assert len(env) == len(set(env)), where
                check_resources(c, pod, where)
                check_drain(c, pod, where)


def size(text: str) -> int:
    assert text.endswith("Gi"), text
    return int(text[:-2])


def check_resources(container: dict[str, Any], pod: dict[str, Any], where: str) -> None:
    """Memory is limited, /dev/shm fits into it, extended resources are whole and only limits."""
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    shm = next((v["emptyDir"]["sizeLimit"] for v in pod.get("volumes", []) if v["name"] == "shm"), "0Gi")
    if container["name"] not in ("routing-proxy",):
        assert size(limits["memory"]) > size(shm), where
    for key, value in limits.items():
        if "/" in key:
            assert value.isdigit(), where
            assert key not in requests, where


def check_drain(container: dict[str, Any], pod: dict[str, Any], where: str) -> None:
    """preStop and the engine's own draining end before the pod is killed."""
    stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    timeout = next((int(a.split("=")[1]) for a in container.get("args", []) if a.startswith("--shutdown-timeout=")), 0)
    assert pod["terminationGracePeriodSeconds"] > stop + timeout, where


def test_probes_wait_for_loading() -> None:
    """688 GB over two nodes at 2 GB/s: 172 s a node, twice that and ten minutes on top."""
    _, lws = next(iter(documents(tree("vllm-kubernetes-two-nodes-pp"))))
    leader = lws["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]
    probe = leader["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 960
    assert {"name": "VLLM_ENGINE_READY_TIMEOUT_S", "value": "960"} in leader["env"]
    worker = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]
    assert "readinessProbe" not in worker
    assert worker["args"][-1] == "--headless"


@pytest.mark.parametrize("name", sorted(CASES))
def test_kustomization_lists_its_folder(name: str) -> None:
    for f in tree(name):
        if f.path.name == "kustomization.yaml":
            listed = yaml.safe_load(f.text)["resources"]
            there = [g.path.name for g in tree(name) if g.path.parent == f.path.parent and g.path.suffix == ".yaml"]
            assert sorted([*listed, "kustomization.yaml"]) == sorted(there)


def test_offline_validator(shared: Path, tmp_path: Path) -> None:
    """Every manifest of every case against the real CRDs."""
    files = []
    for name in sorted(CASES):
        write_tree(tree(name), tmp_path / name)
        files += [str(tmp_path / name / p) for p, _ in documents(tree(name))]
    command = [sys.executable, str(shared / "tools" / "check_manifests.py"), *sorted(set(files))]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.stdout.strip().endswith(", 0 refused"), out.stdout[-4000:] + out.stderr[-2000:]


@pytest.mark.parametrize("key", sorted(SCHEMAS), ids=lambda k: k[1])
def test_compact_schema_agrees_with_the_real_one(key: tuple[str, str], shared: Path) -> None:
    """Every field we may write exists there with the same type (the Dynamo CRD is held in compact form only)."""
    api, name = key
    if name == "DynamoGraphDeployment":
        real = yaml.safe_load((shared / "k8s" / "schemas" / "dgd_v1beta1.json").read_text())["properties"]["spec"]
    else:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        crd = yaml.load((shared / "k8s" / "crds" / CRD_FILES[name]).read_text(), loader)
        version = next(v for v in crd["spec"]["versions"] if v["name"] == api.split("/")[1])
        real = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    compare(SCHEMAS[key], real, name)


def compare(ours: dict[str, Any], real: dict[str, Any], path: str) -> None:
    if "$ref" in ours:
        return
    if ours.get("type") == "object" and "properties" in ours:
        for field, schema in ours["properties"].items():
            assert field in real.get("properties", {}), f"{path}.{field} is not a field"
            compare(schema, real["properties"][field], f"{path}.{field}")
        assert set(real.get("required", [])) <= set(ours["required"]) | set(real.get("properties", {})), path
    elif ours.get("type") == "array":
        assert real["type"] == "array", path
        compare(ours["items"], real["items"], f"{path}[]")
    elif "enum" in ours and "enum" in real:
        assert set(ours["enum"]) <= set(real["enum"]), path
    elif isinstance(ours.get("type"), str) and "type" in real:
        assert ours["type"] == real["type"], path
