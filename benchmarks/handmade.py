"""Candidates made by hand, for tests and benchmarks of the solver alone: rates from three numbers per shape.

Nothing here is a claim about hardware. A toy shape is stable up to `most_rps`; a promised figure grows with the rate,

    figure(rate) = floor + slope x rate        so        lambda_slo = (limit - floor) / slope
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.candidates.ask import Ask, class_groups
from planner.candidates.candidate import Candidate, Caps, Load, Prediction
from planner.intent.document import Service
from planner.intent.fleet import Fleet
from planner.perf.arch import Linear, ModelArch, Shape, WeightPlan
from planner.perf.deployment import Deployment, Hardware

ARCH = ModelArch(
    name="toy",
    family="dense",
    architecture="ToyForCausalLM",
    hidden=8,
    vocab=8,
    max_context_tokens=4096,
    layers=(),
    embed=Linear("embed", "embed", 8, 8),
    lm_head=Linear("lm_head", "lm_head", 8, 8),
    tied_embeddings=False,
    final_norm_params=8,
)


@dataclass(frozen=True)
class Toy:
    """One shape on one pool."""

    pool: str
    tp: int = 1
    most_rps: float = 10.0
    floor_s: dict[str, float] = field(default_factory=dict)
    """By metric: the figure of an idle replica."""
    slope_s: dict[str, float] = field(default_factory=dict)
    """By metric: seconds more per request/s."""
    pp: int = 1
    nodes: int = 0
    precision: str = "bf16"
    role: str = "aggregated"
    budget: int = 2048
    seqs: int = 64
    accuracy: float | None = None
    refused: bool = False
    """The engine does not run it."""

    @property
    def gpus(self) -> int:
        return self.tp * self.pp


def toy_hardware(ask: Ask, pool: str) -> Hardware:
    p = ask.pool(pool)
    return Hardware(
        gpu_id=p.gpu, arch="Toy", vendor="nvidia", capability=(9, 0), memory_bytes=80e9, hbm_bytes_per_s=3e12,
        peak_flop_per_s=(("bf16", 1e15),), scale_up_bytes_per_s=450e9, scale_up_gpus=8, scale_up_kind="NVLink",
        pcie_bytes_per_s=64e9, gpus_per_node=p.gpus_per_node or 8, nic_bytes_per_s=50e9, rdma=p.rdma,
    )  # fmt: skip


def candidate(toy: Toy, ask: Ask, group: tuple[str, ...]) -> Candidate:
    """The toy as the solver sees it, under the ask's promises, caps and fixed choices."""
    service = ask.service
    slo_rps, binding, best = toy.most_rps, "load-cap", {}
    for name in group:
        for slo in ask.slos_of(name):
            floor = toy.floor_s.get(slo.metric, 0.0)
            slope = toy.slope_s.get(slo.metric, 1e-9)
            best[f"{name} {slo.key}"] = floor
            reach = max(0.0, (slo.limit_s - floor) / slope)
            if reach < slo_rps:
                slo_rps, binding = reach, f"{name} {slo.key}"
    marks = ["engine-supports"] if toy.refused else []
    if service.accuracy_floor is not None and toy.accuracy is not None and toy.accuracy < service.accuracy_floor:
        marks.append("accuracy-floor")
    fixed = service.fixed
    wanted: list[tuple[Any, Any]] = [
        (fixed.tp, toy.tp), (fixed.pp, toy.pp), (fixed.precision, toy.precision),
        (fixed.max_num_batched_tokens, toy.budget), (fixed.max_num_seqs, toy.seqs), (fixed.gpu, ask.pool(toy.pool).gpu),
    ]  # fmt: skip
    if any(want is not None and want != have for want, have in wanted):
        marks.append("fixed-choices")
    price = ask.pool(toy.pool).price
    gpus = toy.gpus
    return Candidate(
        service=service.name,
        class_names=group,
        role=toy.role,  # type: ignore[arg-type]
        fleet_pool=toy.pool,
        deployment=Deployment(
            arch=ARCH, weights=WeightPlan("bf16"), precision=toy.precision, kv_dtype="bf16",
            hardware=toy_hardware(ask, toy.pool), shape=Shape(tp=toy.tp, pp=toy.pp), engine="vllm",
            engine_version="0.33.0", role=toy.role,  # type: ignore[arg-type]
        ),
        caps=Caps(toy.seqs, toy.budget, 4096, 0.9),
        memory=None,  # type: ignore[arg-type]
        load=Load(
            lambda_max_rps=toy.most_rps,
            lambda_slo_rps=slo_rps,
            planned_rps=min(service.load_cap * toy.most_rps, slo_rps),
            degraded_rps=min(service.degraded_cap * toy.most_rps, slo_rps),
            binding=binding,
        ),
        gpus=gpus,
        nodes=toy.nodes,
        dollars_per_hour=0.0 if price is None or price.committed else price.per_gpu_hour * gpus,
        accuracy_prior=toy.accuracy,
        best_s=best,
        rejected_by=tuple(marks),
    )  # fmt: skip


def evaluator(toys: dict[str, Sequence[Toy]]) -> Callable[[Ask], tuple[Candidate, ...]]:
    """What `solve` calls: toys by service name, for every class group."""

    def evaluate(ask: Ask) -> tuple[Candidate, ...]:
        groups = dict.fromkeys(g for split in class_groups(tuple(n for n, _ in ask.rates)) for g in split)
        there = {p.name for p in ask.fleet.pools}
        return tuple(candidate(t, ask, g) for g in groups for t in toys[ask.name] if t.pool in there)

    return evaluate


def no_figures(
    ask: Ask, chosen: Candidate, rate_rps: float, partner: tuple[Candidate, float] | None
) -> tuple[Prediction, ...]:
    return ()


def fleet(*pools: dict[str, Any], name: str = "toys") -> Fleet:
    """A fleet of h100 nodes unless a pool says otherwise; priced at $1 per GPU-hour unless it says otherwise."""
    made = []
    for p in pools:
        given = {"gpu": "h100-sxm", "gpus_per_node": 8, **p}
        if "price" in given:
            given["price"] = {"per_gpu_hour": given["price"], "source": "made up", "as_of": "2026-01-01"}
        elif "unpriced" in given:
            del given["unpriced"]
        else:
            given["price"] = {"per_gpu_hour": "$1/h", "source": "made up", "as_of": "2026-01-01"}
        made.append(given)
    return Fleet.model_validate({"name": name, "pools": made})


def ask(
    fleet: Fleet,
    *,
    name: str = "chat",
    rate: str | None = "10/s",
    slo: dict[str, str] | None = None,
    surge: bool = False,
    **service: Any,
) -> Ask:
    """One service of one class (or `traffic=` as given)."""
    traffic = service.pop("traffic", None) or {"input": 100, "output": 100, **({"rate": rate} if rate else {})}
    made = Service.model_validate({"name": name, "model": "toy", "traffic": traffic, "slo": slo or {}, **service})
    return Ask(service=made, fleet=fleet, surge=surge)
