"""Every replica worth asking about, for one service on one fleet, with what it carries under the service's promises.

For each pool, checkpoint, cache format and layout that the engine runs and memory allows: caps from the promises and
from a fixed grid, each evaluated by the closed-form load model. Of replicas that take the same GPUs of the same pool
only those are evaluated to the end that could still be chosen: one that misses a promise at the rate another is
planned for carries less in every respect that a rule reads (see `solve.patterns.undominated`), so one evaluation
settles it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from planner.candidates.ask import Ask, class_groups
from planner.candidates.candidate import Candidate, Caps, Load, key_prefix
from planner.candidates.carry import Asked, Probe, Promises, carried
from planner.candidates.handover import decode_slos, prefill_slos
from planner.candidates.margins import margins_of
from planner.candidates.replica import (
    Role,
    arch_of,
    classes_of,
    deployment_of,
    hardware_of,
    hits_depend_on_replicas,
    kv_dtypes_of,
    memory_of,
    model_of,
    precisions_of,
    spec_of,
    table_of,
)
from planner.candidates.shapes import nodes_of, shapes, staged_shapes
from planner.candidates.sizing import LEAST_SEQS, cap_pairs, largest_graph, mix_of
from planner.catalog.gpus import find_gpu
from planner.catalog.models import Checkpoint
from planner.errors import Exit, UserError
from planner.intent.fleet import Pool
from planner.intent.slo import Slo
from planner.perf.arch import Shape
from planner.perf.checkpoints import checkpoint_for
from planner.perf.deployment import Deployment, Hardware, KvDtype
from planner.perf.identity import ByIdentity
from planner.perf.load import LoadModel
from planner.perf.memory import Memory
from planner.perf.rules import check_shape
from planner.perf.traffic import ClassLoad

_CAPS = re.compile(r"^ b(\d+) s(\d+) (aggregated|prefill|decode)$")


def candidates(ask: Ask, *, prune: bool = True) -> tuple[Candidate, ...]:
    """All of them, in a fixed order. UserError `no-configuration` where nothing on the fleet can run the model.

    `prune` False evaluates every pair of caps to the end: slow, and the answer is the same (a test says so).
    """
    found: list[Candidate] = []
    refused: list[str] = []
    fits = False
    longest = longest_request(ask)
    groups = tuple(dict.fromkeys(g for s in class_groups(tuple(n for n, _ in ask.rates)) for g in s))
    for place in places(ask):
        here: dict[int, list[Layout]] = {}
        for layout in layouts(ask, place, longest, refused):
            here.setdefault(layout.shape.gpus, []).append(layout)
            fits = True
        for group in groups:
            for role in roles_of(ask, place.hardware):
                smaller: list[Candidate] = []
                for size in sorted(here):
                    made = _of_size(
                        ask, place, here[size], group=group, role=role, longest=longest, prune=prune,
                        smaller=tuple(smaller),
                    )  # fmt: skip
                    found += made
                    if ask.lean and prune and ask.service.fixed.replicas is None:
                        smaller += [c for c in made if c.load.planned_rps > 0]
    if not found:
        raise _nothing_runs(ask, refused, fits=fits)
    return tuple(found)


_KNOWN: ByIdentity[tuple[Candidate, ...]] = ByIdentity(most=20_000)


def _of_size(
    ask: Ask,
    place: Place,
    same_size: Sequence[Layout],
    *,
    group: tuple[str, ...],
    role: Role,
    longest: int,
    prune: bool,
    smaller: tuple[Candidate, ...] = (),
) -> tuple[Candidate, ...]:
    """Layouts that take the same GPUs, remembered: an explanation asks again with another fleet size or rate, and
    neither changes what one replica does. Everything that does is in the key."""
    service = ask.service
    total = sum(rate for _, rate in ask.rates)
    classes = classes_of(ask, group)
    key = (
        repr(place.pool.model_copy(update={"nodes": 1, "reserved_nodes": 0})),
        tuple((x.shape, x.checkpoint.repo, x.checkpoint.precision, x.checkpoint.online, x.kv_dtype) for x in same_size),
        role,
        tuple((c.name, round(c.rate_per_s / total, 9), c.slos) for c in classes),
        repr(service.fixed),
        repr(service.speculation),
        (service.name, service.engine, ask.engine_version, service.gpu_memory_utilization, service.accuracy_floor),
        (service.load_cap, service.degraded_cap, service.survive == "none", longest, prune),
        tuple((c.gpus, c.load) for c in smaller),
        (ask.today, ask.margins, ask.coarse, place.gpus if hits_depend_on_replicas(classes) else 0),
    )

    def make() -> tuple[Candidate, ...]:
        seen = _Seen(prune, smaller=smaller)
        return tuple(
            c
            for layout in same_size
            for c in _sized(ask, place, layout, group=group, role=role, longest=longest, seen=seen)
        )

    return _KNOWN.get(ask.classes, key, make)


@dataclass(frozen=True, slots=True)
class Place:
    """A pool with free nodes."""

    pool: Pool
    hardware: Hardware
    gpus: int
    dollars_per_gpu_hour: float


@dataclass(frozen=True, slots=True)
class Layout:
    """One checkpoint, cache format and parallel shape on one pool's GPUs."""

    hardware: Hardware
    checkpoint: Checkpoint
    kv_dtype: KvDtype
    shape: Shape


@dataclass(slots=True)
class _Seen:
    """The best evaluated so far by what a replica takes: later ones need one evaluation to be set aside."""

    prune: bool = True
    smaller: tuple[Candidate, ...] = ()
    """Of the same pool, group and role with fewer GPUs."""
    rivals: dict[tuple[object, ...], list[Load]] = field(default_factory=dict)
    nearest: dict[Shape, list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    """Of a layout that holds its promises at no rate: the best figures it reaches."""


def longest_request(ask: Ask) -> int:
    """Tokens of the longest request that must be admitted; UserError where the model's context is shorter."""
    asked = ask.service.max_context
    longest = asked or math.ceil(max(c.lengths.longest for c in ask.classes))
    limit = arch_of(model_of(ask)).max_context_tokens
    if longest > limit:
        source = "max_context" if asked else "the longest request of its classes"
        raise UserError(
            "context-too-long",
            f"service {ask.name}: {source} has {longest:,} tokens, {model_of(ask).id} takes {limit:,}",
            None,
            ("a length given as a mean with a spread reaches its 99.9th percentile",),
            (f"set max on the lengths so that prompt and answer stay within {limit}", "choose a longer-context model"),
        )
    return longest


def roles_of(ask: Ask, hw: Hardware) -> tuple[Role, ...]:
    """Aggregated, and prefill and decode apart where the service lets the planner look at them."""
    wanted = ask.service.fixed.pools or ask.service.pools
    apart: tuple[Role, ...] = ("prefill", "decode") if wanted != "aggregated" and hw.nic_bytes_per_s > 0 else ()
    return apart if wanted == "disaggregated" else ("aggregated", *apart)


def places(ask: Ask) -> Iterator[Place]:
    """Pools with free nodes whose GPU may be chosen."""
    fixed = find_gpu(ask.service.fixed.gpu).id if ask.service.fixed.gpu is not None else None
    for pool in sorted(ask.fleet.pools, key=lambda p: p.name):
        gpu = find_gpu(pool.gpu)
        free = pool.nodes - pool.reserved_nodes
        if free <= 0 or (fixed is not None and gpu.id != fixed):
            continue
        if gpu.status == "announced" and not ask.announced and fixed != gpu.id:
            continue
        hw = hardware_of(pool)
        price = 0.0 if pool.price is None or pool.price.committed else pool.price.per_gpu_hour
        yield Place(pool, hw, free * hw.gpus_per_node, price)


def layouts(ask: Ask, place: Place, longest: int, refused: list[str]) -> list[Layout]:
    """Layouts that the engine runs and that hold one longest request."""
    found: list[Layout] = []
    for precision in precisions_of(ask):
        checkpoint = checkpoint_for(model_of(ask), precision)
        for kv_dtype in kv_dtypes_of(ask, checkpoint):
            arch, fixed = arch_of(model_of(ask)), ask.service.fixed
            reasons: dict[str, str] = {}
            fitting: list[Layout] = []
            for make in (shapes, staged_shapes):
                # Stages only where no replica without them stays within a node.
                if all(nodes_of(x.shape, place.hardware) for x in fitting):
                    made = make(arch, place.hardware, pool_gpus=place.gpus, fixed=fixed)
                    layouts = [Layout(place.hardware, checkpoint, kv_dtype, s) for s in made]
                    fitting += [x for x in layouts if _runs(ask, place, x, longest=longest, reasons=reasons)]
            if not fitting and reasons:
                label, reason = list(reasons.items())[-1]
                refused.append(f"{place.pool.name} ({place.hardware.gpu_id}) {precision} {label}: {reason}")
            found += fitting
    return found


def _runs(ask: Ask, place: Place, layout: Layout, *, longest: int, reasons: dict[str, str]) -> bool:
    shape = layout.shape
    d = _deployment(ask, place, layout, "aggregated")
    refusals = check_shape(d)
    if refusals:
        reasons[shape.label] = str(refusals[0])
        return False
    # The smallest budget on the grid leaves the cache most room: what does not fit here fits nowhere.
    m = memory_of(d, budget=512, seqs=8, max_model_len=longest, utilization=ask.service.gpu_memory_utilization)
    if not m.fits:
        reasons[shape.label] = m.reason
    return m.fits


def _deployment(ask: Ask, place: Place, layout: Layout, role: Role) -> Deployment:
    return deployment_of(
        ask, place.hardware, checkpoint=layout.checkpoint, kv_dtype=layout.kv_dtype, shape=layout.shape, role=role
    )


def _sized(
    ask: Ask, place: Place, layout: Layout, *, group: tuple[str, ...], role: Role, longest: int, seen: _Seen
) -> Iterator[Candidate]:
    """One layout with every pair of caps."""
    d = _deployment(ask, place, layout, role)
    margins = margins_of(ask, d)
    classes = classes_of(ask, group)
    promised: dict[str, tuple[Slo, ...]] | None
    if role == "prefill":
        table = table_of(d, budget=_PREFILL_BUDGETS[-1], seqs=largest_graph(place.hardware))
        promised = prefill_slos(d, table, classes, decode_seqs=largest_graph(place.hardware) // 2)
    elif role == "decode":
        promised = decode_slos(classes)
    else:
        promised = {c.name: c.slos for c in classes}
    if promised is None:
        return
    promises = Promises(promised, margins)
    ready: list[_Ready] = []
    replicas = max(1, place.gpus // d.shape.gpus) if hits_depend_on_replicas(classes) else 1
    for seqs, budget, early, wanted in _caps(ask, place, d, classes=classes, margins=margins, longest=longest):
        m = memory_of(
            d, budget=budget, seqs=seqs, max_model_len=longest, utilization=ask.service.gpu_memory_utilization
        )
        if m.fits:
            asked = _asked(ask, d, m, classes=classes, budget=budget, seqs=seqs, replicas=replicas)
            ready.append((not early, -asked.model.lambda_max, seqs, budget, wanted, Probe(asked, promises), m))
    for _, _, seqs, budget, wanted, probe, m in _ordered(ready, ask.service.load_cap):
        made = _evaluated(
            ask, place, layout, d=d, m=m, probe=probe, seqs=seqs,
            budget=budget, longest=longest, seen=seen, wanted=wanted or not seen.prune,
        )  # fmt: skip
        if made is not None:
            yield made


_ASKED: ByIdentity[tuple[Memory, Asked]] = ByIdentity(most=4000)


def _asked(
    ask: Ask, d: Deployment, m: Memory, *, classes: Sequence[ClassLoad], budget: int, seqs: int, replicas: int
) -> Asked:
    """The replica's load model, remembered: an explanation asks again with other promises. The memory stands for
    layout, caps and utilization in the key, and is kept, so that its id means nothing else."""
    total = math.fsum(c.rate_per_s for c in classes)
    mix = tuple((c.name, round(c.rate_per_s / total, 9)) for c in classes)
    key = (id(m), budget, seqs, replicas, mix, repr(ask.service.speculation))

    def make() -> tuple[Memory, Asked]:
        return m, Asked(LoadModel(spec_of(ask, d, m, budget=budget, seqs=seqs, replicas=replicas), classes))

    return _ASKED.get(ask.classes, key, make)[1]


_Ready = tuple[bool, float, int, int, bool, Probe, Memory]
"""Not from promises, -lambda_max, seqs, budget, wanted, probe, memory."""


_LOOKED_AT = 3
"""Of the most stable pairs: where these miss at the load cap, the rest rarely holds."""


def _ordered(ready: list[_Ready], load_cap: float) -> list[_Ready]:
    """The pair of caps that is likely best first: it settles the others with one evaluation each.

    Where promises hold at the load cap of the most stable pair, nothing else carries more; else the pairs that the
    promises gave come first. The order decides how much is evaluated, never what is best.
    """
    by_rate = sorted(ready, key=lambda r: r[1:4])
    for i, r in enumerate(by_rate[:_LOOKED_AT]):
        if not r[5].miss(load_cap * r[5].model.lambda_max):
            return [r, *by_rate[:i], *by_rate[i + 1 :]]
    return sorted(ready, key=lambda r: r[:4])


def _caps(
    ask: Ask, place: Place, d: Deployment, *, classes: Sequence[ClassLoad], margins: dict[str, float], longest: int
) -> list[tuple[int, int, bool, bool]]:
    """(max_num_seqs, max_num_batched_tokens, whether promises gave it, whether it must stay in) to evaluate."""
    fixed = ask.service.fixed
    mix = mix_of(classes, margins)
    largest = largest_graph(place.hardware)
    table = table_of(d, budget=16384, seqs=largest)
    drafts = ask.service.speculation.tokens if ask.service.speculation else 0
    m = memory_of(d, budget=2048, seqs=largest, max_model_len=longest, utilization=ask.service.gpu_memory_utilization)
    if not m.fits:
        m = memory_of(d, budget=512, seqs=8, max_model_len=longest, utilization=ask.service.gpu_memory_utilization)
    if d.role == "prefill":
        seqs = fixed.max_num_seqs or _PREFILL_SEQS
        budgets = _PREFILL_BUDGETS if fixed.max_num_batched_tokens is None else (fixed.max_num_batched_tokens,)
        found = [(seqs, b, False, False) for b in budgets]
    else:
        pairs = cap_pairs(
            table, mix, kv_sequences=m.max_sequences(mix.mean_context_tokens), largest=largest // (1 + drafts),
            tokens_per_sequence=1 + drafts, fixed_seqs=fixed.max_num_seqs, fixed_tokens=fixed.max_num_batched_tokens,
            coarse=ask.coarse,
        )  # fmt: skip
        if d.role == "decode" and fixed.max_num_batched_tokens is None:
            # No prompts come here: the budget only has to hold the decodes.
            sizes = dict.fromkeys(s for s, _ in (*pairs.sized, *pairs.others))
            holding = [(s, min((b for b in _PREFILL_BUDGETS if b >= s * (1 + drafts)), default=0)) for s in sizes]
            found = [(s, b, False, False) for s, b in holding if b]
        else:
            found = [(*p, True, False) for p in pairs.sized] + [(*p, False, False) for p in pairs.others]
    prefix = key_prefix(place.pool.name, d)
    for key in ask.today:
        match = _CAPS.match(key.removeprefix(prefix)) if key.startswith(prefix) else None
        if match is not None and match[3] == d.role:
            pair = (int(match[2]), int(match[1]))
            found = [f for f in found if f[:2] != pair] + [(*pair, False, True)]
    return found


_PREFILL_SEQS = 64
"""Prompts in flight on a prefill replica: its budget is used up long before."""
_PREFILL_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)


def _evaluated(
    ask: Ask,
    place: Place,
    layout: Layout,
    *,
    d: Deployment,
    m: Memory,
    probe: Probe,
    seqs: int,
    budget: int,
    longest: int,
    seen: _Seen,
    wanted: bool,
) -> Candidate | None:
    """The candidate, or None where another that takes the same GPUs is better in everything."""
    service = ask.service
    # Of the same GPUs, whatever their layout: what carries less is worse in everything that a rule reads. Prefill and
    # decode must also agree on checkpoint and cache format.
    pair = () if d.role == "aggregated" else (d.precision, d.kv_dtype)
    accuracy = layout.checkpoint.accuracy.value
    floor = service.accuracy_floor
    marks = ("accuracy-floor",) if floor is not None and accuracy < floor else ()
    rivals = seen.rivals.setdefault((d.shape.gpus, *pair, *marks), [])
    top, highest = probe.model.lambda_max, 0.0
    degraded_cap = service.degraded_cap if service.survive != "none" else service.load_cap
    if not wanted:
        grouped = list(_in_small_groups(seen.smaller, d, place, pair, marks))
        if any(r.planned_rps > service.load_cap * top and r.degraded_rps > degraded_cap * top for r in rivals):
            return None
        if any(p >= service.load_cap * top and q >= degraded_cap * top for p, q in grouped):
            return None
        # Missing a promise at a rate is missing it at every higher one: the highest rate that others are planned for
        # is the one to ask about.
        highest = max((*(r.planned_rps for r in rivals), *(p for p, _ in grouped)), default=0.0)
        if 0 < highest < top * 0.999 and probe.miss(highest):
            return None
    if not probe.model.longest_fits:
        return None
    load = carried(probe, load_cap=service.load_cap, degraded_cap=degraded_cap, least_rps=0.0 if wanted else highest)
    if load is None:
        return None
    best_s = probe.best_s()
    if load.planned_rps > 0:
        rivals.append(load)
    elif not wanted:
        # What never holds is kept to say how near it comes, the nearest only.
        if rivals or any(all(other[k] <= v for k, v in best_s.items()) for other in seen.nearest[layout.shape]):
            return None
        seen.nearest[layout.shape].append(best_s)
    return Candidate(
        service=ask.name,
        class_names=tuple(c.name for c in probe.model.classes),
        role=d.role,
        fleet_pool=place.pool.name,
        deployment=d,
        caps=Caps(seqs, budget, longest, m.utilization),
        memory=m,
        load=load,
        gpus=d.shape.gpus,
        nodes=nodes_of(d.shape, place.hardware),
        dollars_per_hour=place.dollars_per_gpu_hour * d.shape.gpus,
        accuracy_prior=accuracy,
        best_s=best_s,
        rejected_by=marks,
    )


def _in_small_groups(
    smaller: Sequence[Candidate], d: Deployment, place: Place, pair: tuple[str, ...], marks: tuple[str, ...]
) -> Iterator[tuple[float, float]]:
    """What the GPUs of one replica carry (planned, degraded) as several smaller ones.

    m replicas of g GPUs stand where one of m x g stood: same GPUs and cost, never harder to pack, never more lost at
    once, and the tie-break prefers small groups. So a larger group that carries no more is in no best plan.
    """
    for c in smaller:
        whole = c.nodes > 0 or place.hardware.gpus_per_node % c.gpus == 0
        alike = not pair or pair == (c.deployment.precision, c.deployment.kv_dtype)
        if d.shape.gpus % c.gpus == 0 and whole and alike and c.rejected_by == marks:
            m = d.shape.gpus // c.gpus
            yield m * c.load.planned_rps, m * c.load.degraded_rps


def _nothing_runs(ask: Ask, refused: Sequence[str], *, fits: bool) -> UserError:
    service, fleet = ask.service, ask.fleet
    tokens = service.fixed.max_num_batched_tokens
    if fits and tokens is not None:
        # The layouts do fit: it is the fixed caps that do not.
        seqs = service.fixed.max_num_seqs or LEAST_SEQS
        drafts = service.speculation.tokens if service.speculation else 0
        each = f" of {1 + drafts} tokens each (speculation)" if drafts else ""
        why = f"one step of {seqs} sequences{each} needs max_num_batched_tokens of {seqs * (1 + drafts)} or more"
        return UserError(
            "no-configuration",
            f"nothing on fleet {fleet.name} runs {service.model} with max_num_batched_tokens fixed to {tokens}",
            None,
            (why,) if tokens < seqs * (1 + drafts) else ("no memory is left for the cache beside such steps",),
            ("remove it from fixed, or raise it",),
            Exit.NO_PLAN,
        )
    precision = ", ".join(precisions_of(ask))
    announced = [
        f"{p.name}: {find_gpu(p.gpu).id} is announced and does not ship yet; it is chosen only by name (--gpu {p.gpu})"
        for p in fleet.pools
        if find_gpu(p.gpu).status == "announced"
    ]
    refused = [*announced, *refused]
    return UserError(
        "no-configuration",
        f"nothing on fleet {fleet.name} runs {service.model} ({precision}) with {service.engine} {ask.engine_version}",
        None,
        tuple(refused[:6]),
        (
            "allow a smaller precision (precisions: [fp8]), or add GPUs with more memory",
            f"see what a shape needs with: plan estimate --model {service.model} --gpu GPU --tp N",
        ),
        Exit.NO_PLAN,
    )
