"""What is checked of every tree before it leaves: it parses, its names are valid, its GPUs are the plan's.

Templates that ship pass by construction (tests hold them); a user's template may not, and is stopped here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from planner.plan.document import Plan, ServiceDoc
from planner.render.files import RenderedFile, refused
from planner.render.text import DNS_LABEL, LONGEST_NAME

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MANIFESTS = ("kubernetes", "dynamo", "kserve", "llm-d")
NO_MANIFESTS = ("kustomization.yaml",)


def lint(plan: Plan, files: tuple[RenderedFile, ...]) -> None:
    """Refuse a tree that a reader, an API server or the scheduler would trip over."""
    objects: dict[str, list[dict[str, Any]]] = {s.name: [] for s in plan.services}
    compose: dict[str, list[dict[str, Any]]] = {s.name: [] for s in plan.services}
    for file in files:
        documents = list(_parse(file))
        service = file.path.parts[0]
        if file.path.suffix != ".yaml" or file.path.name in NO_MANIFESTS or service not in objects:
            continue
        if file.path.parent.name in MANIFESTS:
            objects[service] += [_object(file, d) for d in documents if d is not None]
        elif file.path.parent.name == "compose":
            compose[service] += documents
    _names(objects)
    for s in plan.services:
        want = sum(p.gpus for p in s.pools)
        if s.target == "compose":
            _equal(s, sum(map(_compose_gpus, compose[s.name])), want)
        elif s.target in MANIFESTS and plan.platform.resources == "device-plugin":
            planned = {p.name: p.replicas for p in s.pools}
            _equal(s, sum(_gpus(d, planned) for d in objects[s.name]), want)


def _parse(file: RenderedFile) -> Iterator[Any]:
    if file.path.name == "plan.yaml":
        return
    try:
        if file.path.suffix == ".json":
            yield json.loads(file.text)
        elif file.path.suffix == ".yaml":
            yield from yaml.load_all(file.text, Loader=_LOADER)
    except (ValueError, yaml.YAMLError) as e:
        raise refused(
            "bad-output", f"{file.path} does not parse: {str(e).splitlines()[0]}", "look at its template"
        ) from e


def _object(file: RenderedFile, document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise refused("bad-output", f"{file.path} holds something that is no object", "look at its template")
    if document and not {"apiVersion", "kind", "metadata"} <= document.keys():
        raise refused("bad-output", f"{file.path} holds an object without kind or metadata", "look at its template")
    return document


def _names(objects: dict[str, list[dict[str, Any]]]) -> None:
    seen = set()
    for document in (d for found in objects.values() for d in found if d):
        name = str((document["metadata"] or {}).get("name"))
        if not DNS_LABEL.match(name) or len(name) > LONGEST_NAME:
            raise refused("bad-name", f"{document['kind']} {name[:60]!r} has no valid name", "look at its template")
        key = (document["apiVersion"], document["kind"], name)
        if key in seen:
            raise refused("duplicate-name", f"two objects are {document['kind']} {name}", "rename a service")
        seen.add(key)


def _equal(service: ServiceDoc, found: int, want: int) -> None:
    if found != want:
        raise refused(
            "gpu-count",
            f"the files of {service.name!r} ask for {found} GPUs, its plan has {want}",
            "look at the templates that name replicas and resources",
        )


def _container_gpus(pod: dict[str, Any]) -> int:
    """GPUs of a pod: the extended resources that count accelerators (RDMA devices are not)."""
    total = 0
    for c in pod.get("containers") or []:
        for key, value in ((c.get("resources") or {}).get("limits") or {}).items():
            if "/" in key and key.rsplit("/", 1)[1].startswith(("gpu", "mig-", "tpu", "gaudi", "i915", "xe")):
                total += int(value)
    return total


def _gpus(document: dict[str, Any], planned: dict[str, int]) -> int:
    """GPUs that one object asks for; where an autoscaler owns the replicas, the planned ones count."""
    if not document:
        return 0
    kind, name, spec = document["kind"], document["metadata"]["name"], document.get("spec") or {}
    if kind == "Deployment":
        gpus = _container_gpus(spec["template"]["spec"])
        return gpus * int(spec.get("replicas", planned.get(name, 1))) if gpus else 0
    if kind == "LeaderWorkerSet":
        return _group_gpus(spec) * int(spec.get("replicas", planned.get(name, 1)))
    if kind == "DisaggregatedSet":
        return int(spec["slices"]) * sum(_group_gpus(r["spec"]) * int(r["spec"]["replicas"]) for r in spec["roles"])
    if kind == "DynamoGraphDeployment":
        return sum(
            _container_gpus(c["podTemplate"]["spec"])
            * int(c["replicas"])
            * int((c.get("multinode") or {}).get("nodeCount", 1))
            for c in spec["components"]
        )
    if kind == "LLMInferenceService":
        return sum(_kserve_gpus(half, planned) for half in (spec, spec.get("prefill")) if half)
    return 0


def _group_gpus(spec: dict[str, Any]) -> int:
    t = spec["leaderWorkerTemplate"]
    leader, worker = (_container_gpus(t[k]["spec"]) for k in ("leaderTemplate", "workerTemplate"))
    return leader + (int(t["size"]) - 1) * worker


def _kserve_gpus(half: dict[str, Any], planned: dict[str, int]) -> int:
    p = half["parallelism"]
    nodes = 1
    if "worker" in half:
        nodes = p["data"] // p["dataLocal"] if "data" in p else p["pipeline"]
    pool = half["labels"]["llm-deployment-planner/pool"]
    return _container_gpus(half["template"]) * nodes * int(half.get("replicas", planned.get(pool, 1)))


def _compose_gpus(document: dict[str, Any]) -> int:
    total = 0
    for s in document["services"].values():
        devices = s.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        total += sum(len(d["device_ids"]) for d in devices)
        visible = s.get("environment", {}).get("HIP_VISIBLE_DEVICES")
        total += len(visible.split(",")) if visible else 0
    return total
