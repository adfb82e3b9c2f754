"""What every rule takes and gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from planner.perf.arch import LayerGroup, Linear, ModelArch, Shape, WeightPlan

LARGEST_TP = 64
"""Tensor parallelism is not looked for beyond this; the largest NVLink domain that ships has 72 GPUs."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a shape cannot run: the rule's code, what clashes, and which values would do."""

    code: str
    message: str
    would_do: str

    def __str__(self) -> str:
        return f"{self.message}; would do: {self.would_do}" if self.would_do else self.message


@dataclass(frozen=True, slots=True)
class Layout:
    """What the rules of division look at: a model, how it is stored, how it is split, by which engine."""

    arch: ModelArch
    weights: WeightPlan
    shape: Shape
    engine: str = "vllm"

    def with_tp(self, tp: int) -> Layout:
        return replace(self, shape=replace(self.shape, tp=tp))

    @property
    def groups(self) -> Iterator[LayerGroup]:
        return iter(self.arch.layers)

    def split(self) -> Iterator[tuple[Linear, int, int]]:
        """Each matrix that is split, with over how many ranks and what stays on one rank along the split dimension.

        Routed experts split over all TP x DP ranks, or not at all with expert parallelism. Units (heads) stay
        whole; with more ranks than units each rank holds one.
        """
        s = self.shape
        for g in self.groups:
            for x in g.linears:
                ranks = s.tp
                if x.group == "routed_expert":
                    ranks = 1 if s.ep else s.tp * s.dp
                if x.shard not in ("column", "row") or ranks == 1:
                    continue
                whole = x.inputs if x.shard == "row" else x.outputs
                if x.units is None:
                    yield x, ranks, whole // ranks if whole % ranks == 0 else 0
                else:
                    yield x, ranks, max(1, x.units // ranks) * (whole // x.units)


class Division(Protocol):
    """A rule about what divides by what: true of model, precision and shape on any GPU."""

    code: str

    def check(self, layout: Layout) -> str | None:
        """What clashes, in words; None where nothing does."""


def some(values: Iterable[int], unit: str = "tp") -> str:
    """Values as advice: `tp 1, 2, 4`."""
    shown = [str(v) for v in values]
    return f"{unit} {', '.join(shown)}" if shown else ""
