"""One replica made ready for the load model: deployment, memory, step table, caps. Remembered between questions.

An explanation asks about the same replicas again under another SLO or rate; nothing here depends on either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate
from planner.candidates.handover import handover_between
from planner.catalog.gpus import Gpu, find_gpu
from planner.catalog.models import Checkpoint, Model
from planner.errors import not_supported
from planner.intent.fleet import Pool
from planner.perf.anchors import anchored
from planner.perf.arch import ModelArch, Shape
from planner.perf.calibration import Calibration, calibration_for
from planner.perf.checkpoints import weight_plan
from planner.perf.deployment import Deployment, Hardware, KvDtype, hardware
from planner.perf.families import read_arch
from planner.perf.identity import ByIdentity
from planner.perf.kvpool import Blocks
from planner.perf.load import LoadModel
from planner.perf.memory import Memory, memory
from planner.perf.pool import Drafting, Handover, PoolSpec
from planner.perf.steptable import build_step_table
from planner.perf.table import Curve, StepTable
from planner.perf.traffic import ClassLoad

Role = Literal["aggregated", "prefill", "decode"]
_FAR = 1e9
_ARCHS: ByIdentity[ModelArch] = ByIdentity()
_DEPLOYMENTS: ByIdentity[Deployment] = ByIdentity()
_MEMORIES: ByIdentity[Memory] = ByIdentity()
_TABLES: ByIdentity[StepTable] = ByIdentity()


def model_of(ask: Ask) -> Model:
    assert ask.model is not None, "only hand-made candidates come without a model"
    return ask.model


def arch_of(model: Model) -> ModelArch:
    return _ARCHS.get(model, (), lambda: read_arch(model.config, model.id))


def hardware_of(pool: Pool) -> Hardware:
    """The pool's GPU with the fleet's figures."""
    gpu = find_gpu(pool.gpu)
    found = hardware(
        gpu,
        override=pool.override,
        gpus_per_node=pool.gpus_per_node,
        nic_bytes_per_s=pool.nic,
        rdma=pool.rdma,
    )
    return replace(found, scale_up_gpus=domain_gpus(pool, gpu, found.gpus_per_node))


def domain_gpus(pool: Pool, gpu: Gpu, gpus_per_node: int) -> int:
    """GPUs that share the fast link. Only racks (NVL72) are larger than the usual server: half a server's GPUs, sold
    as a node of their own, share nothing with the other half."""
    if pool.override is not None and pool.override.scale_up_domain is not None:
        return pool.override.scale_up_domain
    domain = gpu.scale_up.domain_gpus
    return domain if domain > gpu.node.gpus else min(domain, gpus_per_node)


def precisions_of(ask: Ask) -> tuple[str, ...]:
    """What the service allows; by default the checkpoint's own."""
    service = ask.service
    if service.fixed.precision is not None:
        return (service.fixed.precision,)
    return tuple(dict.fromkeys(service.precisions or (model_of(ask).native.precision,)))


def kv_dtypes_of(ask: Ask, checkpoint: Checkpoint) -> tuple[KvDtype, ...]:
    """Cache formats to ask about; `auto` is what the checkpoint implies."""
    asked = (ask.service.fixed.kv_dtype,) if ask.service.fixed.kv_dtype is not None else ask.service.kv_dtypes
    own: KvDtype = checkpoint.kv_precision or "bf16"
    return tuple(dict.fromkeys(own if k == "auto" else k for k in asked))


def deployment_of(
    ask: Ask, hw: Hardware, *, checkpoint: Checkpoint, kv_dtype: KvDtype, shape: Shape, role: Role
) -> Deployment:
    model, service = model_of(ask), ask.service
    arch = arch_of(model)

    def make() -> Deployment:
        return Deployment(
            arch=arch,
            weights=weight_plan(arch, checkpoint),
            precision=checkpoint.precision,
            kv_dtype=kv_dtype,
            hardware=hw,
            shape=shape,
            engine=service.engine,
            engine_version=ask.engine_version,
            role=role,
            weights_bytes_measured=checkpoint.weights_bytes,
        )

    return _DEPLOYMENTS.get(checkpoint, (id(arch), hw, kv_dtype, shape, service.engine, ask.engine_version, role), make)


def calibration_of(d: Deployment) -> Calibration:
    """Constants of the engine generation, with what was measured of this very model, GPU and layout on top."""
    return anchored(calibration_for(d.engine, d.engine_version, d.hardware), d)


def memory_of(d: Deployment, *, budget: int, seqs: int, max_model_len: int, utilization: float | None) -> Memory:
    return _MEMORIES.get(
        d,
        (budget, seqs, max_model_len, utilization),
        lambda: memory(
            d,
            max_num_batched_tokens=budget,
            max_num_seqs=seqs,
            max_model_len=max_model_len,
            utilization=utilization,
        ),
    )


def table_of(d: Deployment, *, budget: int, seqs: int) -> StepTable:
    return _TABLES.get(
        d,
        (budget, seqs),
        lambda: build_step_table(d, calibration_of(d), max_num_seqs=seqs, max_num_batched_tokens=budget),
    )


def drafting_of(ask: Ask, d: Deployment, table: StepTable) -> Drafting | None:
    """Speculation as the load model takes it.

    draft_s: an n-gram lookup takes nothing; prediction heads (MTP, EAGLE) take what the calibration measured a
    verification to cost over a plain step, draft included. Their weights are not counted in memory.
    """
    s = ask.service.speculation
    if s is None:
        return None
    if s.method == "draft_model":
        raise not_supported(
            "speculation with a separate draft model", helps=("use method ngram, mtp or eagle3", "or leave it out")
        )
    ratio = calibration_of(d).constants.mtp_step_ratio if s.method in ("mtp", "eagle3") else 1.0
    return Drafting(tokens=s.tokens, acceptance=s.acceptance, draft_s=max(0.0, ratio - 1) * table.linear_decode(1))


@dataclass(frozen=True, slots=True)
class _Cache:
    capacity: float
    cost: Curve | None
    block_tokens: int


def _cache(m: Memory) -> _Cache:
    """The cache in the load model's units: tokens where all layers cache alike, else blocks, or shares of the whole.

    Blocks (vLLM): one block reserved; a sequence holds, over its groups, its tokens' blocks, its window's, its state's.
    Slots (SGLang): of several pools the one that runs out first counts, so a sequence costs its largest share.
    """
    pool = m.pool
    if isinstance(pool, Blocks):
        if len(pool.groups) == 1 and pool.groups[0].kind == "full":
            block = pool.groups[0].block_tokens
            return _Cache(max(1.0, (pool.count - 1.0) * block), None, block)
        knots = sorted({0.0, 1.0, *(g.window_tokens + 1.0 for g in pool.groups if g.kind == "window"), _FAR})
        full = max((g.block_tokens for g in pool.groups if g.kind == "full"), default=16)
        ys = tuple(sum(g.mean_blocks(x) for g in pool.groups) for x in knots)
        return _Cache(max(1.0, pool.count - 1.0), Curve(tuple(knots), ys), full)
    if not pool.window_slots and math.isinf(pool.states):
        return _Cache(max(1.0, float(pool.full_tokens)), None, pool.page_tokens)
    full_tokens = max(1.0, float(pool.full_tokens))
    state = 0.0 if math.isinf(pool.states) else pool.states_each / max(pool.states, 1e-9)
    window = float(pool.window_tokens)
    each = 1.0 / pool.window_slots if pool.window_slots else 0.0

    def cost(x: float) -> float:
        return max(x / full_tokens, min(x, window) * each, state)

    crossings = [state * full_tokens, window, window * each * full_tokens, state / each if each else 0.0]
    knots = sorted({0.0, _FAR, *(x for x in crossings if 0 < x < _FAR)})
    return _Cache(1.0, Curve(tuple(knots), tuple(cost(x) for x in knots)), pool.page_tokens)


def spec_of(ask: Ask, d: Deployment, m: Memory, *, budget: int, seqs: int, replicas: int = 1) -> PoolSpec:
    """One replica (or attention-DP rank) as load model and simulation take it."""
    cache = _cache(m)
    drafts = ask.service.speculation.tokens if ask.service.speculation and d.role != "prefill" else 0
    table = table_of(d, budget=budget, seqs=seqs * (1 + drafts))
    drafting = drafting_of(ask, d, table) if d.role != "prefill" else None
    return PoolSpec(
        table=table,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        kv_capacity=cache.capacity,
        kv_cost=cache.cost,
        block_tokens=cache.block_tokens,
        role=d.role,
        scheduler="prefill-first" if calibration_of(d).prefill_first else "decode-first",
        replicas=replicas,
        drafting=drafting,
        handover=_own_handover(d),
        lockstep_ranks=d.shape.dp,
    )


def _own_handover(d: Deployment) -> Handover | None:
    """A prefill replica's way out over its own NICs; the decode side's may be slower, which the pair is judged by."""
    hw = d.hardware
    if d.role != "prefill" or not hw.rdma or hw.nic_bytes_per_s <= 0:
        return None
    return handover_between(d, d)


def pool_spec(ask: Ask, candidate: Candidate) -> PoolSpec:
    """A candidate's replica, for the simulation."""
    caps = candidate.caps
    return spec_of(
        ask,
        candidate.deployment,
        candidate.memory,
        budget=caps.max_num_batched_tokens,
        seqs=caps.max_num_seqs,
    )


def classes_of(ask: Ask, group: Sequence[str]) -> tuple[ClassLoad, ...]:
    """The classes of a group at the ask's rates and promises."""
    rates = dict(ask.rates)
    return tuple(replace(c, rate_per_s=rates[c.name], slos=ask.slos_of(c.name)) for c in ask.classes if c.name in group)


def hits_depend_on_replicas(classes: Sequence[ClassLoad]) -> bool:
    """Sessions under round-robin find their history on one replica only: the more there are, the fewer the hits.

    How many there will be is what is being decided, so the whole pool is assumed: the hits counted on are the fewest.
    """
    return any(c.hits.routing == "round-robin" and (c.hits.traced or c.has_sessions) for c in classes)


def replicas_counted_on(ask: Ask, candidate: Candidate) -> int:
    """Replicas among which hits are assumed to be spread while their number is not known: all that its pool holds."""
    if not hits_depend_on_replicas(classes_of(ask, candidate.class_names)):
        return 1
    pool = ask.pool(candidate.fleet_pool)
    gpus = (pool.nodes - pool.reserved_nodes) * candidate.deployment.hardware.gpus_per_node
    return max(1, gpus // candidate.deployment.shape.gpus)


def load_model(ask: Ask, candidate: Candidate) -> LoadModel:
    spec = replace(pool_spec(ask, candidate), replicas=replicas_counted_on(ask, candidate))
    return LoadModel(spec, classes_of(ask, candidate.class_names))
