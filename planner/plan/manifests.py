"""Pod templates inside manifests: what would restart, and what somebody else deployed.

Reads YAML as clusters do (several documents, anchors, merge keys), remembers on which line each value stood, and
lists workloads with their pod templates: Deployment, StatefulSet, DaemonSet, Job, Pod, LeaderWorkerSet,
DisaggregatedSet, DynamoGraphDeployment (v1beta1, v1alpha1), LLMInferenceService, InferenceService, Compose services.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from planner.documents import LARGEST_BYTES, LARGEST_DEPTH
from planner.errors import UserError, Where

# Anchors may multiply; a manifest with more values than this is a mistake or an attack.
LARGEST_NODES = 200_000
Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One YAML document: plain data, where it stands, and the line of each value."""

    data: Any
    source: str
    lines: Mapping[Path_, int] = field(default_factory=dict)

    def line(self, path: Path_) -> int | None:
        """1-based line of the value at `path`, or of its nearest known ancestor."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)

    @property
    def kind(self) -> str:
        """`Deployment`, `Compose`, or "" for what is neither."""
        if not isinstance(self.data, dict):
            return ""
        if "kind" in self.data:
            return str(self.data["kind"])
        services = self.data.get("services")
        if isinstance(services, dict) and any(isinstance(s, dict) for s in services.values()):
            return "Compose"
        return ""

    @property
    def name(self) -> str:
        meta = mapping(mapping(self.data).get("metadata"))
        return str(meta.get("name", "")) if self.kind != "Compose" else str(mapping(self.data).get("name", ""))


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """One pod template of a workload. `pods` is how many pods of it the workload runs, None where the manifest does
    not say (an autoscaler does)."""

    role: str
    data: Mapping[str, Any]
    path: Path_
    pods: int | None


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing that runs replicas; a replica is one pod, or a group of pods over several nodes."""

    kind: str
    name: str
    component: str
    """Role or component inside a set or graph; "" for a plain workload."""
    replicas: int | None
    pods_per_replica: int
    templates: tuple[PodTemplate, ...]
    manifest: Manifest
    parallelism: Mapping[str, Any] = field(default_factory=dict)
    """KServe's own parallelism block, beside the container's flags."""
    model_uri: str | None = None

    @property
    def key(self) -> str:
        """`Deployment/chat`, `DynamoGraphDeployment/chat/DecodeWorker`."""
        return "/".join(p for p in (self.kind, self.name, self.component) if p)


def mapping(value: Any) -> dict[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def whole(value: Any) -> int | None:
    """A whole number, also when quoted; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = str(value).strip()
    return int(text) if re.fullmatch(r"\d{1,9}", text) else None


def read_manifests(text: str, source: str) -> tuple[Manifest, ...]:
    """Every document of a YAML file; `List` objects are opened. UserError with the line for what is not YAML."""
    if len(text) > LARGEST_BYTES:
        raise UserError("file-too-large", f"{source} is larger than {LARGEST_BYTES / 1e6:.0f} MB", Where(source))
    found = []
    try:
        roots: Any = yaml.compose_all(text, Loader=_LOADER)
        for root in roots:
            if root is None:  # an empty document between two ---
                continue
            lines: dict[Path_, int] = {}
            found.append(Manifest(_build(root, (), lines, [0], source), source, lines))
    except yaml.MarkedYAMLError as e:
        _refuse_helm(text, source)
        mark = e.problem_mark or e.context_mark
        all_lines = text.splitlines()
        shown = all_lines[mark.line][:200] if mark and mark.line < len(all_lines) else None
        where = Where(source, mark.line + 1, mark.column + 1, shown) if mark else Where(source)
        raise UserError("yaml-syntax", f"not valid YAML: {e.problem or e.context}", where) from e
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise UserError("yaml-syntax", f"not valid YAML: {str(e).splitlines()[0][:120]}", Where(source)) from e
    return tuple(m for one in found for m in _opened(one))


def _refuse_helm(text: str, source: str) -> None:
    """YAML that does not parse because it is a chart's template: say that, not where the parser stumbled."""
    template = re.search(
        r"^.*\{\{-?\s*(?:if|range|with|include|toYaml|define|template|end|\.)[^\n]*$", text, re.MULTILINE
    )
    if template is None:
        return
    line = text[: template.start()].count("\n") + 1
    raise UserError(
        "unrendered-template",
        f"{source} is a template, not YAML",
        Where(source, line, 1, template.group(0)[:200], len(template.group(0)[:200])),
        (),
        ("render it first: helm template CHART | plan assess -",),
    )


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SCALARS = yaml.constructor.SafeConstructor()


def _opened(manifest: Manifest) -> Iterator[Manifest]:
    items = mapping(manifest.data).get("items")
    if manifest.kind.endswith("List") and isinstance(items, list):
        for i, item in enumerate(items):
            head: Path_ = ("items", i)
            lines = {p[2:]: n for p, n in manifest.lines.items() if p[:2] == head}
            yield Manifest(item, manifest.source, lines)
    else:
        yield manifest


def _build(node: Any, path: Path_, lines: dict[Path_, int], count: list[int], source: str) -> Any:
    count[0] += 1
    if count[0] > LARGEST_NODES:
        raise UserError("yaml-alias", f"{source} grows past {LARGEST_NODES:,} values by its anchors", Where(source))
    if len(path) > LARGEST_DEPTH:
        raise UserError("yaml-depth", f"{source} is nested deeper than {LARGEST_DEPTH} levels", Where(source))
    lines[path] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else ""
            if key_node.tag.endswith(":merge"):
                for one in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    merged = {**mapping(_build(one, path, lines, count, source)), **merged}
                continue
            result[key] = _build(value_node, (*path, key), lines, count, source)
            lines[(*path, key)] = key_node.start_mark.line + 1
        return {**merged, **result}
    if isinstance(node, yaml.SequenceNode):
        return [_build(child, (*path, i), lines, count, source) for i, child in enumerate(node.value)]
    if node.tag.rsplit(":", 1)[-1] in ("int", "float", "bool", "null"):
        return _SCALARS.construct_object(node)
    return node.value


# ---------------------------------------------------------------- workloads


def workloads(manifest: Manifest) -> tuple[Workload, ...]:
    """The workloads of one document; empty for a Service, a ConfigMap and whatever is not known to run pods."""
    reader = _READERS.get(manifest.kind)
    return tuple(reader(manifest)) if reader else ()


def known_kinds() -> tuple[str, ...]:
    """Kinds whose pod templates are read."""
    return tuple(sorted(_READERS))


def _plain(m: Manifest) -> Iterator[Workload]:
    spec = mapping(mapping(m.data).get("spec"))
    if m.kind == "Pod":
        yield Workload(m.kind, m.name, "", 1, 1, (PodTemplate("", m.data, (), 1),), m)
        return
    key = "parallelism" if m.kind == "Job" else "replicas"
    # Absent: an autoscaler's business, or the cluster's default of one; a DaemonSet has as many as there are nodes.
    replicas = whole(spec[key]) if key in spec else None
    yield Workload(m.kind, m.name, "", replicas, 1, (_template(spec, "template", ("spec",), "", replicas),), m)


def _template(holder: Mapping[str, Any], key: str, path: Path_, role: str, pods: int | None) -> PodTemplate:
    return PodTemplate(role, mapping(holder.get(key)), (*path, key), pods)


def _times(a: int | None, b: int) -> int | None:
    return None if a is None else a * b


def _group(spec: Mapping[str, Any], path: Path_) -> tuple[int | None, int, tuple[PodTemplate, ...]]:
    """A LeaderWorkerSet's spec: groups of `size` pods, the first from leaderTemplate where there is one."""
    replicas = whole(spec.get("replicas", 1))
    inner = mapping(spec.get("leaderWorkerTemplate"))
    size = whole(inner.get("size", 1)) or 1
    here = (*path, "leaderWorkerTemplate")
    if "leaderTemplate" in inner:
        leader = _template(inner, "leaderTemplate", here, "leader", replicas)
        worker = _template(inner, "workerTemplate", here, "worker", _times(replicas, size - 1))
        return replicas, size, (leader, worker) if size > 1 else (leader,)
    return replicas, size, (_template(inner, "workerTemplate", here, "worker", _times(replicas, size)),)


def _lws(m: Manifest) -> Iterator[Workload]:
    replicas, size, templates = _group(mapping(mapping(m.data).get("spec")), ("spec",))
    yield Workload(m.kind, m.name, "", replicas, size, templates, m)


def _disaggregated_set(m: Manifest) -> Iterator[Workload]:
    spec = mapping(mapping(m.data).get("spec"))
    slices = whole(spec.get("slices", 1)) or 1
    for i, role in enumerate(sequence(spec.get("roles"))):
        inner = mapping(mapping(role).get("spec"))
        replicas, size, templates = _group(inner, ("spec", "roles", i, "spec"))
        scaled = tuple(PodTemplate(t.role, t.data, t.path, _times(t.pods, slices)) for t in templates)
        yield Workload(m.kind, m.name, str(mapping(role).get("name", i)), _times(replicas, slices), size, scaled, m)


def _dynamo(m: Manifest) -> Iterator[Workload]:
    spec = mapping(mapping(m.data).get("spec"))
    for i, component in enumerate(sequence(spec.get("components"))):
        c = mapping(component)
        replicas = whole(c.get("replicas", 1))
        nodes = whole(mapping(c.get("multinode")).get("nodeCount", 1)) or 1
        template = _template(c, "podTemplate", ("spec", "components", i), "", _times(replicas, nodes))
        yield Workload(m.kind, m.name, str(c.get("name", i)), replicas, nodes, (template,), m)
    for name, service in mapping(spec.get("services")).items():
        s = mapping(service)
        replicas = whole(s.get("replicas", 1))
        nodes = whole(mapping(s.get("multinode")).get("nodeCount", 1)) or 1
        extra = mapping(s.get("extraPodSpec"))
        main = dict(mapping(extra.get("mainContainer")))
        gpu = mapping(mapping(s.get("resources")).get("limits")).get("gpu")
        if gpu is not None:
            main.setdefault("resources", {"limits": {"nvidia.com/gpu": gpu}})
        data = {"spec": {"containers": [{"name": "main", **main}]}}
        path = ("spec", "services", name)
        yield Workload(
            m.kind, m.name, str(name), replicas, nodes, (PodTemplate("", data, path, _times(replicas, nodes)),), m
        )


def _llm_inference_service(m: Manifest) -> Iterator[Workload]:
    spec = mapping(mapping(m.data).get("spec"))
    uri = mapping(spec.get("model")).get("uri")
    prefill = mapping(spec.get("prefill"))
    for component, holder, path in (("", spec, ("spec",)), ("prefill", prefill, ("spec", "prefill"))):
        if component and "prefill" not in spec:
            continue
        parallel = mapping(holder.get("parallelism"))
        scaling = mapping(holder.get("scaling"))
        replicas = whole(holder.get("replicas", scaling.get("minReplicas", 1)))
        shown = "decode" if not component and "prefill" in spec else component
        pods = 1
        if "worker" in holder:
            data, local = whole(parallel.get("data")) or 1, whole(parallel.get("dataLocal")) or 1
            pods = max(2, data // local, whole(parallel.get("pipeline")) or 1)
        first = {"spec": mapping(holder.get("template"))}
        templates = [PodTemplate("leader" if pods > 1 else "", first, (*path, "template"), replicas)]
        if pods > 1:
            rest = {"spec": mapping(holder["worker"])}
            templates.append(PodTemplate("worker", rest, (*path, "worker"), _times(replicas, pods - 1)))
        yield Workload(
            m.kind, m.name, shown, replicas, pods, tuple(templates), m, parallel, str(uri) if uri is not None else None
        )


def _inference_service(m: Manifest) -> Iterator[Workload]:
    predictor = mapping(mapping(mapping(m.data).get("spec")).get("predictor"))
    path: Path_ = ("spec", "predictor")
    replicas = whole(predictor.get("minReplicas", 1))
    model = mapping(predictor.get("model"))
    containers = sequence(predictor.get("containers")) or ([{"name": "kserve-container", **model}] if model else [])
    uri = model.get("storageUri")
    template = PodTemplate("", {"spec": {**predictor, "containers": containers}}, path, replicas)
    yield Workload(m.kind, m.name, "", replicas, 1, (template,), m, {}, str(uri) if uri is not None else None)


def _compose(m: Manifest) -> Iterator[Workload]:
    for name, service in mapping(mapping(m.data).get("services")).items():
        s = mapping(service)
        deploy = mapping(s.get("deploy"))
        replicas = whole(deploy.get("replicas", s.get("scale", 1)))
        devices = sequence(mapping(mapping(deploy.get("resources")).get("reservations")).get("devices"))
        gpus: int | None = None
        for device in devices:
            ids = sequence(mapping(device).get("device_ids"))
            gpus = (gpus or 0) + (len(ids) if ids else whole(mapping(device).get("count")) or 0)
        environment = s.get("environment")
        pairs = (
            [(k, v) for k, v in environment.items()]
            if isinstance(environment, dict)
            else [tuple(str(e).split("=", 1)) for e in sequence(environment) if "=" in str(e)]
        )
        container: dict[str, Any] = {
            "name": str(name),
            "image": s.get("image", ""),
            "env": [{"name": str(k), "value": "" if v is None else str(v)} for k, v in pairs],
        }
        # Compose's entrypoint is Kubernetes' command, Compose's command is Kubernetes' args.
        for theirs, ours in (("entrypoint", "command"), ("command", "args")):
            if s.get(theirs) is not None:
                container[ours] = s[theirs]
        if gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
        template = PodTemplate("", {"spec": {"containers": [container]}}, ("services", str(name)), replicas)
        yield Workload("Compose", str(name), "", replicas, 1, (template,), m)


_READERS = {
    **dict.fromkeys(("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "Job", "Pod"), _plain),
    "LeaderWorkerSet": _lws,
    "DisaggregatedSet": _disaggregated_set,
    "DynamoGraphDeployment": _dynamo,
    "LLMInferenceService": _llm_inference_service,
    "InferenceService": _inference_service,
    "Compose": _compose,
}
