"""Reading rendered manifests back: strict schemas, names, GPU counts."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from planner.render import RenderedFile
from tests.render.schemas import CORE, SCHEMAS, kind

LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FOLDERS = ("kubernetes", "dynamo", "kserve", "llm-d")


def documents(files: tuple[RenderedFile, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every Kubernetes object with the path of its file."""
    for f in files:
        if f.path.parent.name in FOLDERS and f.path.suffix == ".yaml" and f.path.name != "kustomization.yaml":
            for d in yaml.load_all(f.text, LOADER):
                if d is not None:
                    yield f.path.as_posix(), d


@functools.cache
def core() -> dict[str, Any]:
    """Strict core definitions of Kubernetes 1.34, without the nulls that kubernetes-validate admits."""
    base = resources.files("kubernetes_validate") / "kubernetes-json-schema" / "v1.34.0-local-strict"
    found: dict[str, Any] = json.loads((base / "_definitions.json").read_text())

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            kinds = node.get("type")
            if isinstance(kinds, list) and "null" in kinds and len(kinds) == 2:
                node["type"] = next(k for k in kinds if k != "null")
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(found)
    found["$id"] = CORE
    return {
        "$defs": found.get("$defs") or found["definitions"],
        **{k: v for k, v in found.items() if k == "definitions"},
    }


@functools.cache
def core_kinds() -> dict[tuple[str, str], str]:
    """(apiVersion, kind) -> definition's name."""
    found = {}
    for name, schema in core()["$defs"].items():
        for g in schema.get("x-kubernetes-group-version-kind", []) or []:
            api = f"{g['group']}/{g['version']}" if g["group"] else g["version"]
            found[api, g["kind"]] = name
    return found


@functools.cache
def validator(api: str, name: str) -> Draft202012Validator:
    registry: Registry[Any] = Registry().with_resource(
        CORE, Resource.from_contents(core(), default_specification=DRAFT202012)
    )
    if (api, name) in SCHEMAS:
        schema = kind(api, name, SCHEMAS[api, name])
    else:
        schema = {"$ref": f"{CORE}#/$defs/{core_kinds()[api, name]}"}
    return Draft202012Validator(schema, registry=registry)


def errors(document: dict[str, Any]) -> list[str]:
    """What is wrong with one object."""
    checker = validator(document["apiVersion"], document["kind"])
    return [f"{'.'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in checker.iter_errors(document)]


def pods(node: Any) -> Iterator[dict[str, Any]]:
    """Every pod spec inside an object."""
    if isinstance(node, dict):
        if isinstance(node.get("containers"), list):
            yield node
        for value in node.values():
            yield from pods(value)
    elif isinstance(node, list):
        for value in node:
            yield from pods(value)


def gpus_of(pod: dict[str, Any], resource: str) -> int:
    return sum(int(c.get("resources", {}).get("limits", {}).get(resource, 0)) for c in pod["containers"])


def requested(document: dict[str, Any], resource: str, planned: dict[str, int]) -> int:
    """GPUs that an object asks for; under an autoscaler the planned replicas count."""

    def replicas(value: int | None, pool: str) -> int:
        return planned[pool] if value is None else value

    spec, what = document.get("spec", {}), document["kind"]
    if what == "Deployment":
        pod = spec["template"]["spec"]
        n = gpus_of(pod, resource)
        return n * replicas(spec.get("replicas"), document["metadata"]["name"]) if n else 0
    if what == "LeaderWorkerSet":
        return _group(spec, resource) * replicas(spec.get("replicas"), document["metadata"]["name"])
    if what == "DisaggregatedSet":
        return spec["slices"] * sum(_group(r["spec"], resource) * r["spec"]["replicas"] for r in spec["roles"])
    if what == "DynamoGraphDeployment":
        return sum(
            gpus_of(c["podTemplate"]["spec"], resource) * c["replicas"] * c.get("multinode", {}).get("nodeCount", 1)
            for c in spec["components"]
        )
    if what == "LLMInferenceService":
        return sum(_kserve(h, resource, planned) for h in (spec, spec.get("prefill")) if h)
    return 0


def _group(spec: dict[str, Any], resource: str) -> int:
    t = spec["leaderWorkerTemplate"]
    leader = gpus_of(t["leaderTemplate"]["spec"], resource)
    return leader + (t["size"] - 1) * gpus_of(t["workerTemplate"]["spec"], resource)


def _kserve(half: dict[str, Any], resource: str, planned: dict[str, int]) -> int:
    p = half["parallelism"]
    nodes = 1
    if "worker" in half:
        nodes = p["data"] // p["dataLocal"] if "data" in p else p["pipeline"]
    n = half.get("replicas", planned[half["labels"]["llm-deployment-planner/pool"]])
    return gpus_of(half["template"], resource) * nodes * int(n)


def compose_gpus(files: tuple[RenderedFile, ...]) -> int:
    """GPUs over all Compose files."""
    total = 0
    for f in files:
        if f.path.parent.name == "compose":
            for s in yaml.safe_load(f.text)["services"].values():
                for d in s.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", []):
                    total += len(d["device_ids"])
                visible = s.get("environment", {}).get("HIP_VISIBLE_DEVICES")
                total += len(visible.split(",")) if visible else 0
    return total


SECRET = re.compile(r"hf_[A-Za-z0-9]{10,}|AKIA[A-Z0-9]{12,}|-----BEGIN|password:|token: [A-Za-z0-9]")
