"""SUMMARY.md for the pull request, and values.yaml: the decisions alone, for teams with charts of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.plan.document import Plan
from planner.render.args import argv
from planner.render.artefact import Artefact
from planner.render.dynamo import worker_args
from planner.render.facts import PoolFacts
from planner.render.images import engine_image
from planner.render.kubernetes import scaled
from planner.render.pod import engine_args, engine_env, gib
from planner.render.router import affinity, disaggregated
from planner.render.scaling import least_replicas, threshold
from planner.render.source import model_access
from planner.render.text import object_name
from planner.units import show_money, show_rate, show_time


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool in the summary's table."""

    name: str
    what: str
    shape: str
    replicas: int
    gpus: int
    caps: str
    load: str


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One SLO beside what is planned."""

    service: str
    metric: str
    limit: str
    planned: str
    checked: str


@dataclass(frozen=True, slots=True)
class ServiceSummary:
    """One service: why, and how to apply and take back."""

    name: str
    title: str
    why: tuple[str, ...]
    reasons: tuple[str, ...]
    apply: tuple[str, ...]
    rollback: tuple[str, ...]
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """SUMMARY.md."""

    verdict: str
    cost: str
    odds: str
    change: str
    pools: tuple[PoolRow, ...]
    limits: tuple[LimitRow, ...]
    services: tuple[ServiceSummary, ...]
    bad_days: tuple[str, ...]
    decide: tuple[str, ...]
    assumed: tuple[str, ...]
    warnings: tuple[str, ...]
    measure_first: tuple[str, ...]


def _checked(plan: Plan) -> str:
    if plan.verification.failed:
        return "NOT CONFIRMED by simulation"
    return "checked by simulation" if plan.verification.by == "simulation" else "not checked by simulation"


def summary_artefact(plan: Plan, services: list[list[PoolFacts]]) -> Artefact:
    """SUMMARY.md at the top of the tree."""
    t = plan.totals
    names = " + ".join(s.name for s in plan.services)
    change = ""
    if plan.change is not None:
        c = plan.change
        change = f"against {c.baseline}: {c.gpus:+d} GPUs, {'+' if c.cost_per_hour >= 0 else '-'}"
        change += f"{show_money(abs(c.cost_per_hour))}/h; restarts {', '.join(c.restarts) or 'nothing'}"
    summary = Summary(
        verdict=f"{names} on {plan.fleet.name}: {plan.status}, " + _checked(plan),
        cost=f"{t.gpus} of {t.fleet_gpus} GPUs, {show_money(t.cost)}/h",
        odds="" if t.odds is None else f"odds that every limit holds at peak: {t.odds:.0%}",
        change=change,
        pools=tuple(_pool_row(f) for pools in services for f in pools),
        limits=tuple(row for pools in services for f in pools for row in _limit_rows(f)),
        services=tuple(_service(pools) for pools in services),
        bad_days=tuple(
            f"{d.name}, {d.service}: load {d.load:.0%}, {'misses ' + ', '.join(d.misses) if d.misses else 'holds'}"
            for d in plan.bad_days
        ),
        decide=plan.decide,
        assumed=plan.assumed,
        warnings=plan.warnings,
        measure_first=plan.measure_first,
    )
    return Artefact(PurePosixPath("SUMMARY.md"), "plan/SUMMARY.md.j2", {"s": summary})


def _pool_row(f: PoolFacts) -> PoolRow:
    s = f.pool.shape
    shape = f"{f.pool.gpu} tp{s.tp}"
    shape += "".join(f" {k}{v}" for k, v in (("pp", s.pp), ("dp", s.dp)) if v > 1) + (" ep" if s.ep else "")
    return PoolRow(
        name=f.name,
        what=f"{f.service.model.id} {f.service.model.precision}, {f.engine.label}",
        shape=shape,
        replicas=f.pool.replicas,
        gpus=f.pool.gpus,
        caps=f"{f.pool.max_num_seqs} sequences, {f.pool.max_num_batched_tokens} tokens a step",
        load=f"{f.pool.load:.0%} at {show_rate(f.pool.rate)}",
    )


def _limit_rows(f: PoolFacts) -> list[LimitRow]:
    return [
        LimitRow(
            service=f"{f.name} {c.name}",
            metric=g.metric,
            limit=show_time(g.limit),
            planned=f"{show_time(g.value)} ({show_time(g.low)} to {show_time(g.high)})",
            checked=g.method if g.simulated is None else f"simulation: {show_time(g.simulated)}",
        )
        for c in f.pool.classes
        for g in c.figures
        if g.limit is not None
    ]


def _service(pools: list[PoolFacts]) -> ServiceSummary:
    f = pools[0]
    name, target = f.service.name, f.service.target
    folder = f"{name}/{target}"
    rollout = [f"kubectl rollout undo deployment/{p.name}" for p in pools if not p.multi_node]
    apply: tuple[str, ...]
    rollback: tuple[str, ...] = ("git revert COMMIT", f"kubectl apply -k {folder}")
    if target == "none":
        apply, rollback = tuple(f"{name}/{f.engine.engine}/{p.name}.sh" for p in pools), ("git revert COMMIT",)
    elif target == "compose":
        apply = (f"docker compose -f {folder}/host-1.yaml up -d",)
        rollback = ("git revert COMMIT", *apply)
    else:
        apply = (f"kubectl diff -k {folder}", f"kubectl apply -k {folder}")
        if target in ("kubernetes", "llm-d"):
            rollback = (*rollback, *rollout)
    return ServiceSummary(
        name=name,
        title=f"{name}: {f.service.model.id} on {f.engine.label}, target {target}",
        why=f.service.why + ((f"runner-up: {f.service.runner_up}",) if f.service.runner_up else ()),
        reasons=tuple(f"{p.name}, {k}: {v}" for p in pools for k, v in sorted(p.pool.reasons.items())),
        apply=apply,
        rollback=rollback,
        needs=tuple(_needs(pools)),
    )


def _needs(pools: list[PoolFacts]) -> list[str]:
    """What must be true of the cluster for these files to work."""
    f = pools[0]
    platform, target = f.plan.platform, f.service.target
    found = [f"image: {f.engine.image_note}"] if f.engine.image_note and f.engine.engine not in platform.images else []
    if target in ("none", "compose"):
        return found
    if any(p.rdma for p in pools):
        found.append(
            "a namespace that admits IPC_LOCK: RDMA pins memory, which Pod Security's restricted and baseline forbid"
        )
    if disaggregated(pools) and not all(p.rdma_resource for p in pools):
        found.append("CAUTION: the fleet names no RDMA resource; over TCP a hand-over takes seconds, not milliseconds")
    if any(p.multi_node for p in pools):
        found.append(
            "LeaderWorkerSet, installed" if target != "dynamo" else "Grove or LeaderWorkerSet, for multi-node workers"
        )
    if not f.pool.replicas > 1 and not any(p.surge for p in pools):
        found.append("a quiet hour: with one replica and no spare GPUs a rollout interrupts the service")
    if platform.model_source.secret is not None:
        found.append(f"the secret {platform.model_source.secret} in the namespace")
    if target == "llm-d":
        found += [
            f"llm-d's endpoint picker as Service {object_name(f.service.name)}-epp",
            f"a Gateway named {platform.gateway}",
        ]
    if target == "dynamo":
        found.append(f"Dynamo {platform.dynamo_version}: it runs {f.engine.label}, not the engine's newest version")
    if target == "kserve" and platform.model_source.secret is not None:
        found.append("the secret attached to the service account: KServe's initializer downloads the weights")
    if platform.network_policy and (disaggregated(pools) or affinity(pools)):
        found.append("Prometheus in a namespace called monitoring, if engines behind a router are to be scraped")
    return found


def values_artefact(pools: list[PoolFacts]) -> Artefact:
    """`<service>/values.yaml`: what was decided, in no chart's own words."""
    f = pools[0]
    access = model_access(f.service.model, f.plan.platform, f.engine.engine, local=f.service.target == "none")
    values: dict[str, Any] = {
        "service": f.service.name,
        "target": f.service.target,
        "model": {"id": f.service.model.id, "load": access.reference, "precision": f.service.model.precision},
        "engine": {"name": f.engine.engine, "version": f.engine.version, "command": list(f.engine.command)},
        "pools": [_pool_values(p) for p in pools],
    }
    path = PurePosixPath(f.service.name) / "values.yaml"
    return Artefact(path, "plan/values.yaml.j2", {"values": values})


def _pool_values(f: PoolFacts) -> dict[str, Any]:
    platform = f.plan.platform
    dynamo = f.service.target == "dynamo"
    key = f"dynamo-{f.engine.engine}" if dynamo else None
    args = worker_args(f) if dynamo else engine_args(f)
    s = f.pool.shape
    values: dict[str, Any] = {
        "name": f.name,
        "role": f.pool.role,
        "image": engine_image(f.engine, platform, vendor=f.gpu.vendor, key=key),
        "replicas": f.pool.replicas,
        "gpu": f.pool.gpu,
        "gpuResource": f.gpu_resource,
        "gpusPerReplica": f.pool.gpus_per_replica,
        "nodesPerReplica": f.pods,
        "gpusPerNode": f.gpus_per_pod,
        "parallelism": {"tensor": s.tp, "pipeline": s.pp, "data": s.dp, "expert": s.ep},
        "caps": {
            "maxNumSeqs": f.pool.max_num_seqs,
            "maxNumBatchedTokens": f.pool.max_num_batched_tokens,
            "maxModelLen": f.pool.max_model_len,
        },
        "args": argv(args),
        "env": {e.name: e.value for e in engine_env(f) if e.value is not None},
        "port": f.engine.port,
        "sharedMemory": gib(f.shm_bytes),
        "memory": gib(f.memory_bytes),
        "cpu": f.cpus,
        "startSeconds": f.start_s,
        "drainSeconds": f.drain_s,
        "nodeSelector": f.node_selector,
        "tolerations": [t.model_dump(exclude_none=True) for t in f.tolerations],
        "autoscaling": None,
        "reasons": dict(sorted(f.pool.reasons.items())),
    }
    if scaled(f):
        values["autoscaling"] = {"min": least_replicas(f), "max": f.pool.replicas, "inFlightPerReplica": threshold(f)}
    else:
        del values["autoscaling"]
    if f.rdma_resource is not None:
        values["rdmaResource"] = f.rdma_resource
    return values
