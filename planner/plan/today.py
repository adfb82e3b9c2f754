"""What runs today, as a plan is compared with it: a plan made earlier, or a deployment that was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.perf.arch import Shape
from planner.plan.document import Plan, PoolDoc, ServiceDoc


@dataclass(frozen=True, slots=True)
class TodayPool:
    """Replicas that run: `key` is the candidate's of the same decisions."""

    service: str
    key: str
    replicas: int
    gpus_per_replica: int
    dollars_per_hour: float


@dataclass(frozen=True, slots=True)
class Today:
    """All of it."""

    name: str
    pools: tuple[TodayPool, ...]

    @property
    def gpus(self) -> int:
        return sum(p.replicas * p.gpus_per_replica for p in self.pools)

    @property
    def dollars_per_hour(self) -> float:
        return sum(p.dollars_per_hour for p in self.pools)

    def keys(self) -> dict[str, tuple[str, ...]]:
        """By service: what its pods are told, whatever their number."""
        names = sorted({p.service for p in self.pools})
        return {n: tuple(sorted(p.key for p in self.pools if p.service == n)) for n in names}


def candidate_key(service: ServiceDoc, pool: PoolDoc) -> str:
    """The key that a candidate of the same decisions has (`Candidate.key`)."""
    shape = Shape(pool.shape.tp, pool.shape.pp, pool.shape.dp, pool.shape.ep)
    return (
        f"{pool.fleet_pool} {pool.gpu} {shape.label} {service.model.precision} kv-{pool.kv_dtype} "
        f"b{pool.max_num_batched_tokens} s{pool.max_num_seqs} {pool.role}"
    )


def keys_of(services: Sequence[ServiceDoc]) -> dict[str, tuple[str, ...]]:
    """The same of a new answer."""
    return {s.name: tuple(sorted(candidate_key(s, p) for p in s.pools)) for s in services}


def today_of(plan: Plan, name: str = "plan") -> Today:
    """A plan as what runs."""
    return Today(
        name,
        tuple(
            TodayPool(s.name, candidate_key(s, p), p.replicas, p.gpus_per_replica, p.cost)
            for s in plan.services
            for p in s.pools
        ),
    )
