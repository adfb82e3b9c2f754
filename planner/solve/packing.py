"""packing: replicas into nodes, node groups into fast-link domains.

Within a pool whose replica sizes each divide the next larger one and the node (1, 2, 4, 8 in a node of 8), any set
that fits by count of GPUs can be packed, so one sum per pool is exact:

    sum of occupied GPUs  <=  nodes x GPUs per node

Otherwise (TP 3, 5, 6, a node of 4 in a rack of 18 nodes) counting is not enough: nodes are then filled by
configurations, the maximal sets of blocks that fit one node (or one domain):

    sum over configurations k of y_k x a_(k, size)  >=  blocks of that size,      sum of y_k  <=  bins
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from planner.candidates.candidate import Candidate
from planner.errors import UserError
from planner.solve.space import Space, in_domain

# A rack of 72 GPUs with a dozen sizes has a few hundred maximal fillings; far beyond that something is wrong.
MOST_CONFIGURATIONS = 20_000


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """What a replica takes of a pool: GPUs within a node, or whole nodes, kept within a domain or not."""

    pool: str
    nodes: int
    """0: shares a node."""
    gpus: int
    """Occupied: of whole nodes all of theirs."""
    domain: bool = False


def block_of(candidate: Candidate, space: Space) -> Block:
    if candidate.nodes == 0:
        return Block(candidate.fleet_pool, 0, candidate.gpus)
    return Block(
        candidate.fleet_pool, candidate.nodes, candidate.nodes * space.gpus_per_node, in_domain(candidate, space)
    )


def counts_suffice(blocks: Iterable[Block], space: Space) -> bool:
    """Whether a sum of GPUs decides what fits this pool.

    >>> s = Space("p", 4, 8, 1)
    >>> counts_suffice([Block("p", 0, g) for g in (1, 2, 4, 8)], s), counts_suffice([Block("p", 0, 3)], s)
    (True, False)
    """
    inside = sorted({b.gpus for b in blocks if b.nodes == 0})
    chain = [*inside, space.gpus_per_node]
    if any(b % a for a, b in pairwise(chain)):
        return False
    grouped = sorted({b.nodes for b in blocks if b.domain})
    if not grouped:
        return True
    chain = [*grouped, space.domain_nodes]
    return not any(b % a for a, b in pairwise(chain)) and space.nodes % space.domain_nodes == 0


@lru_cache(maxsize=256)
def configurations(sizes: Sequence[int], room: int) -> tuple[tuple[int, ...], ...]:
    """Maximal fillings of one bin: counts by size, nothing more fits.

    >>> configurations((3, 5), 8)
    ((2, 0), (1, 1))
    """
    found: list[tuple[int, ...]] = []

    def fill(i: int, left: int, counts: tuple[int, ...]) -> None:
        if len(found) > MOST_CONFIGURATIONS:
            raise UserError(
                "too-many-fillings",
                f"replicas of {', '.join(map(str, sizes))} GPUs fill a node or rack of {room} in more than "
                f"{MOST_CONFIGURATIONS:,} ways",
                None,
                ("whether they fit is decided by trying every filling",),
                ("set gpus_per_node to what one server holds", "or fix the size of a replica (fixed: {tp: 8})"),
            )
        if i == len(sizes):
            if all(s > left for s in sizes):
                found.append(counts)
            return
        for k in range(left // sizes[i], -1, -1):
            fill(i + 1, left - k * sizes[i], (*counts, k))

    fill(0, room, ())
    return tuple(found)
