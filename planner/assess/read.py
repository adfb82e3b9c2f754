"""Deployments out of command lines, manifests, folders and git revisions.

    read_deployment("vllm serve ... --tensor-parallel-size 4")      one command line
    read_deployment([Path("deploy/")])                              files and folders
    read_revision("main", ["deploy/"])                              what a git revision holds

Every container that launches an engine, or that holds GPUs and runs something else, gives one `Found`; sidecars
without GPUs are left out.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from planner.assess.flags import engine_names
from planner.assess.found import Found, Place, Role, hub_name
from planner.assess.launch import docker_run, engine_of_image, launch, read_words
from planner.assess.shell import commands, compose_expand, kubernetes_expand, split_script
from planner.catalog.gpus import find_gpu
from planner.documents import read_text, shown_path
from planner.errors import UserError, Where
from planner.perf.arch import Shape
from planner.plan.manifests import (
    Manifest,
    PodTemplate,
    Workload,
    known_kinds,
    mapping,
    read_manifests,
    sequence,
    whole,
    workloads,
)

_GPU = re.compile(r"^(nvidia\.com/(gpu|mig-.+)|amd\.com/gpu|habana\.ai/gaudi|google\.com/tpu|gpu\.intel\.com/.+|gpu)$")
_READ = (".yaml", ".yml", ".json")
_MOST_FILES = 2000
# Engines that exist and are not read: named, so that nobody takes silence for "fits".
_OTHER_ENGINES = {
    "text-generation-inference": "Text Generation Inference",
    "tritonserver": "Triton",
    "tensorrtllm": "TensorRT-LLM",
    "tensorrt-llm": "TensorRT-LLM",
    "trtllm-serve": "TensorRT-LLM",
    "lmdeploy": "LMDeploy",
    "ollama": "Ollama",
    "llama-server": "llama.cpp",
    "llama.cpp": "llama.cpp",
    "djl": "DJL Serving",
    "nim/": "NIM",
}


def read_deployment(what: Sequence[Path] | str, *, name: str = "command line") -> tuple[Found, ...]:
    """Files and folders, or the text of one command line, to what they deploy."""
    if isinstance(what, str):
        return (read_argv(what, source=name),)
    found = read_files(collect(what))
    if not found:
        shown = ", ".join(shown_path(p) for p in what)
        raise UserError(
            "nothing-deployed",
            f"nothing in {shown} runs an engine or holds GPUs",
            None,
            (f"read are {', '.join(known_kinds())}, and launch scripts",),
            ("render charts first (helm template), or name the file that holds the workload",),
        )
    return found


def collect(paths: Sequence[Path]) -> dict[str, str]:
    """Readable files under `paths`: what is named itself, and YAML, JSON, scripts and `.env` inside folders."""
    found: dict[str, str] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(
                p for p in path.rglob("*") if p.is_file() and (p.suffix in (*_READ, ".sh") or p.name == ".env")
            )
            inside = [p for p in inside if not any(part.startswith(".git") for part in p.parts)]
            if len(inside) > _MOST_FILES:
                raise UserError(
                    "too-many-files",
                    f"{shown_path(path)} holds {len(inside):,} files; at most {_MOST_FILES:,} are read",
                    Where(shown_path(path)),
                    (),
                    ("name the folder that holds the manifests",),
                )
            for p in inside:
                found[shown_path(p)] = read_text(p)
        else:
            found[shown_path(path)] = read_text(path)
    return found


def read_argv(text: str, *, source: str = "command line") -> Found:
    """One command line (or a launch script) -> what it would deploy."""
    for words in split_script(text, {}):
        found = launch(words, Found("service", Place(source), replicas=1))
        if found is not None:
            return found
        docker = docker_run(words, source)
        if docker is not None:
            return docker
    first = next((w for c in split_script(text, {}) for w in c), "")
    raise UserError(
        "unknown-launch",
        f"{first[:60]!r} launches no engine that is known",
        Where(source),
        (f"known: {', '.join(engine_names())}",),
        ("start with vllm serve MODEL or python3 -m sglang.launch_server --model-path MODEL",),
    )


def read_files(files: Mapping[str, str]) -> tuple[Found, ...]:
    """A tree of texts -> everything in it that runs an engine or holds GPUs."""
    context = _Context.of(files)
    found: list[Found] = []
    for manifest in context.manifests:
        for workload in workloads(manifest):
            for template in workload.templates:
                found += _template(workload, template, context)
    if not found:
        # No manifest holds an engine: launch scripts then, of which a bench or a README is none.
        for path, text in files.items():
            if path.endswith(_READ) or path.endswith(".env"):
                continue
            try:
                found.append(read_argv(text, source=path))
            except UserError:
                if len(files) == 1:
                    raise
    return tuple(_merged(found))


def read_revision(revision: str, paths: Sequence[str], *, repository: Path = Path()) -> tuple[Found, ...]:
    """What a git revision holds under `paths`, without checking it out."""
    if not re.fullmatch(r"[\w./^~@{}-]+", revision) or revision.startswith("-"):
        raise UserError("bad-revision", f"{revision!r} is not a git revision", None, (), ("write main or HEAD~1",))
    listing = _git(repository, "ls-tree", "-r", "--name-only", revision, "--", *paths)
    names = [n for n in listing.splitlines() if n.endswith((*_READ, ".sh")) or n.rsplit("/", 1)[-1] == ".env"]
    return read_files({n: _git(repository, "show", f"{revision}:{n}") for n in names[:_MOST_FILES]})


def _git(repository: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError as e:
        raise UserError("no-git", "git is not installed", None, (), ("install git, or name two folders",)) from e
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise UserError("git", f"git {words[0]} failed: {reason[0][:160]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class _Context:
    """What manifests refer to in one another: ConfigMaps, autoscalers, the Compose environment file."""

    manifests: tuple[Manifest, ...]
    config_maps: Mapping[str, Mapping[str, str]]
    scalers: Mapping[tuple[str, str], tuple[int | None, int | None]]
    env_file: Mapping[str, str]
    files: Mapping[str, str]

    @classmethod
    def of(cls, files: Mapping[str, str]) -> _Context:
        manifests = tuple(m for path, text in files.items() if path.endswith(_READ) for m in read_manifests(text, path))
        maps: dict[str, Mapping[str, str]] = {}
        scalers: dict[tuple[str, str], tuple[int | None, int | None]] = {}
        for m in manifests:
            spec = mapping(mapping(m.data).get("spec"))
            if m.kind == "ConfigMap":
                maps[m.name] = {str(k): str(v) for k, v in mapping(mapping(m.data).get("data")).items()}
            elif m.kind in ("HorizontalPodAutoscaler", "ScaledObject"):
                target = mapping(spec.get("scaleTargetRef"))
                word = "ReplicaCount" if m.kind == "ScaledObject" else "Replicas"
                key = (str(target.get("kind", "Deployment")), str(target.get("name", "")))
                scalers[key] = (whole(spec.get(f"min{word}")), whole(spec.get(f"max{word}")))
        env: dict[str, str] = {}
        for path, text in files.items():
            if PurePosixPath(path).name == ".env":
                pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
                env |= {k.strip(): v.strip().strip("\"'") for k, v in pairs}
        return cls(manifests, maps, scalers, env, files)


def _template(workload: Workload, template: PodTemplate, context: _Context) -> list[Found]:
    spec = mapping(template.data.get("spec"))
    manifest = workload.manifest
    low, high = context.scalers.get((workload.kind, workload.name), (None, None))
    replicas = workload.replicas if workload.replicas is not None else (low if low is not None else None)
    if replicas is None and workload.kind in ("Deployment", "StatefulSet", "ReplicaSet") and high is None:
        replicas = 1
    labels = {**mapping(mapping(template.data.get("metadata")).get("labels"))}
    role = _role(workload, labels)
    parallel = workload.parallelism
    shape = Shape(
        tp=whole(parallel.get("tensor")) or 1,
        pp=whole(parallel.get("pipeline")) or 1,
        dp=whole(parallel.get("data")) or 1,
        ep=parallel.get("expert") is True,
    )
    found: list[Found] = []
    containers = [mapping(c) for c in sequence(spec.get("containers"))]
    if not containers and workload.model_uri is not None:
        containers = [{"name": "main"}]
    for i, container in enumerate(containers):
        path = (*template.path, "spec", "containers", i)
        place = Place(manifest.source, manifest.line(path), workload.key, str(container.get("name", "")))
        name = "-".join(p for p in (workload.name or workload.component, workload.component) if p)
        base = Found(
            name=name if workload.kind != "Compose" else workload.name,
            place=place,
            role=role,
            image=str(container["image"]) if container.get("image") else None,
            model=hub_name(workload.model_uri),
            shape=shape,
            replicas=replicas,
            replicas_max=high,
            pods_per_replica=workload.pods_per_replica,
            gpus_per_pod=_gpus(container),
            gpu=_selected_gpu(spec),
        )
        one = _container(base, container, spec, workload, context)
        if one is not None:
            found.append(one)
    return found


def _merged(found: list[Found]) -> list[Found]:
    """Leader and worker of one group are one deployment: the one that names more is kept."""
    kept: list[Found] = []
    for f in found:
        twin = next(
            (k for k in kept if k.place.workload == f.place.workload and k.place.source == f.place.source), None
        )
        if twin is None or f.pods_per_replica == 1:
            kept.append(f)
        elif len(f.given) > len(twin.given):
            kept[kept.index(twin)] = f
    return kept


def _role(workload: Workload, labels: Mapping[str, Any]) -> Role:
    for text in (workload.component, str(labels.get("llm-d.ai/role", "")), workload.name):
        if re.search(r"prefill", text, re.IGNORECASE):
            return "prefill"
        if re.search(r"decode", text, re.IGNORECASE):
            return "decode"
    return "aggregated"


def _gpus(container: Mapping[str, Any]) -> int | None:
    resources = mapping(container.get("resources"))
    for part in ("limits", "requests"):
        counts = [whole(v) for k, v in mapping(resources.get(part)).items() if _GPU.match(str(k))]
        known = [c for c in counts if c is not None]
        if known:
            return sum(known)
    return None


def _selected_gpu(spec: Mapping[str, Any]) -> str | None:
    """The GPU that a node selector or a required affinity names."""
    values = [str(v) for v in mapping(spec.get("nodeSelector")).values()]
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in sequence(required.get("nodeSelectorTerms")):
        for expression in sequence(mapping(term).get("matchExpressions")):
            values += [str(v) for v in sequence(mapping(expression).get("values"))]
    for value in values:
        try:
            return find_gpu(value).id
        except UserError:
            continue
    return None


def _container(
    base: Found, container: Mapping[str, Any], spec: Mapping[str, Any], workload: Workload, context: _Context
) -> Found | None:
    env, unknown_env = _environment(container, context)
    if workload.kind in ("LeaderWorkerSet", "DisaggregatedSet"):
        # The controller sets these in every pod.
        env |= {"LWS_GROUP_SIZE": str(workload.pods_per_replica), "LWS_WORKER_INDEX": "0"}
    compose = workload.kind == "Compose"

    def words_of(key: str) -> list[str]:
        value = container.get(key)
        if compose:
            items = [
                compose_expand(str(v), context.env_file) for v in (value if isinstance(value, list) else [value or ""])
            ]
            return items if isinstance(value, list) else _shlex(items[0])
        if isinstance(value, str):
            problems.append(f"{key} is text where Kubernetes wants a list; read as a shell would")
            return _shlex(kubernetes_expand(value, env))
        return [kubernetes_expand(str(v), env) for v in sequence(value)]

    problems: list[str] = []
    if compose and base.image:
        base = replace(base, image=compose_expand(base.image, context.env_file))
    command, args = words_of("command"), words_of("args")
    if workload.kind == "LLMInferenceService" and env.get("VLLM_ADDITIONAL_ARGS"):
        args = [*args, *_shlex(env["VLLM_ADDITIONAL_ARGS"])]
    base = replace(base, problems=tuple(problems))
    read = _Files(container, spec, workload, context)
    for words in commands(command, args, env):
        found = launch(words, base, read.text)
        if found is not None:
            missing = [v for v in unknown_env if any(v in w for w in words)]
            notes = tuple(f"${v} comes from the cluster" for v in missing)
            return replace(found, problems=(*found.problems, *notes))
    engine = engine_of_image(base.image)
    if engine is None and workload.kind == "LLMInferenceService" and base.model is not None:
        engine = "vllm"  # KServe's default runtime; flags come in VLLM_ADDITIONAL_ARGS or args
    if engine is not None and not command:
        # The image's entry point is the server: arguments alone are its flags.
        return read_words(engine, args, base, read.text)
    if base.gpus_per_pod:
        return replace(base, problems=(*base.problems, _not_read(base, command + args)))
    return None


def _shlex(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=False)
    except ValueError:
        return text.split()


def _not_read(base: Found, words: Sequence[str]) -> str:
    text = " ".join([base.image or "", *words])
    for mark, engine in _OTHER_ENGINES.items():
        if mark in text.lower():
            return f"runs {engine}, which is not an engine the planner reads"
    what = f"image {base.image}" if base.image else "no image"
    return f"{what} with {' '.join(words)[:60] or 'its own entry point'}: not an engine the planner reads"


def _environment(container: Mapping[str, Any], context: _Context) -> tuple[dict[str, str], tuple[str, ...]]:
    """Values that are known, and names that only the cluster knows."""
    env: dict[str, str] = {}
    unknown: list[str] = []
    for source in sequence(container.get("envFrom")):
        name = str(mapping(mapping(source).get("configMapRef")).get("name", ""))
        env |= context.config_maps.get(name, {})
    for item in sequence(container.get("env")):
        entry = mapping(item)
        name = str(entry.get("name", ""))
        if "value" in entry:
            env[name] = kubernetes_expand(str(entry["value"]), env)
            continue
        ref = mapping(mapping(entry.get("valueFrom")).get("configMapKeyRef"))
        known = context.config_maps.get(str(ref.get("name", "")), {}).get(str(ref.get("key", "")))
        if known is not None:
            env[name] = known
        else:
            unknown.append(name)
    return env, tuple(unknown)


@dataclass(frozen=True, slots=True)
class _Files:
    """Finds a file that a container sees: a key of a mounted ConfigMap, or a file beside the manifest."""

    container: Mapping[str, Any]
    spec: Mapping[str, Any]
    workload: Workload
    context: _Context

    def text(self, path: str) -> str | None:
        where = PurePosixPath(path)
        volumes = {str(mapping(v).get("name")): mapping(v) for v in sequence(self.spec.get("volumes"))}
        for mount in sequence(self.container.get("volumeMounts")):
            m = mapping(mount)
            at = PurePosixPath(str(m.get("mountPath", "")))
            config = mapping(volumes.get(str(m.get("name")), {}).get("configMap"))
            if not config or (where != at and at not in where.parents):
                continue
            key = str(m.get("subPath") or where.name)
            keys = {str(mapping(i).get("path")): str(mapping(i).get("key")) for i in sequence(config.get("items"))}
            data = self.context.config_maps.get(str(config.get("name", "")), {})
            if keys.get(key, key) in data:
                return data[keys.get(key, key)]
        beside = [t for p, t in self.context.files.items() if PurePosixPath(p).name == where.name]
        return beside[0] if len(beside) == 1 else None
