"""Layouts worth asking about: tensor, pipeline, expert and attention-data parallelism by model, GPU and links.

Powers of two: engines' kernels and collectives are tuned for them, and they pack into nodes without gaps. A user's
fixed size is taken as it is. What cannot run is left to the rules (`planner.perf.rules`), which say why.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.intent.document import Fixed
from planner.perf.arch import Mla, ModelArch, Shape
from planner.perf.deployment import Hardware

LARGEST_GROUP = 72
"""The largest NVLink domain that ships; larger attention-DP groups are asked for by fixing dp."""


def powers(most: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to `most`.

    >>> powers(8), powers(6)
    ((1, 2, 4, 8), (1, 2, 4))
    """
    found = [1]
    while found[-1] * 2 <= most:
        found.append(found[-1] * 2)
    return tuple(found)


def shapes(arch: ModelArch, hardware: Hardware, *, pool_gpus: int, fixed: Fixed = Fixed()) -> tuple[Shape, ...]:  # noqa: B008 - frozen
    """Layouts without pipeline stages (unless the user fixes them), smallest first."""
    return tuple(dict.fromkeys(s for s in _all(arch, hardware, pool_gpus, fixed) if _whole(s, hardware, pool_gpus)))


def staged_shapes(
    arch: ModelArch,
    hardware: Hardware,
    *,
    pool_gpus: int,
    fixed: Fixed = Fixed(),  # noqa: B008 - frozen
) -> tuple[Shape, ...]:
    """Layouts with pipeline stages, asked about where nothing fits without them: whole nodes, TP inside each.

    Stages add bubbles and hops to every step, so they are never the better choice where one node will do.
    """
    if fixed.pp is not None or (fixed.dp or 1) > 1:
        return ()
    sizes = (fixed.tp,) if fixed.tp else tuple(sorted({hardware.gpus_per_node, max(powers(hardware.gpus_per_node))}))
    ep = (fixed.ep,) if fixed.ep is not None else (False, True) if arch.moe else (False,)
    found = [Shape(tp=tp, pp=pp, ep=e) for tp in sizes for pp in (2, 3, 4, 6, 8) for e in ep]
    return tuple(s for s in found if s.pp <= arch.layer_count and _whole(s, hardware, pool_gpus))


def _all(arch: ModelArch, hardware: Hardware, pool_gpus: int, fixed: Fixed) -> Iterator[Shape]:
    domain = max(hardware.scale_up_gpus, hardware.gpus_per_node)
    most = min(domain, pool_gpus, LARGEST_GROUP)
    pps = (fixed.pp,) if fixed.pp else (1,)
    eps = (fixed.ep,) if fixed.ep is not None else (False, True) if arch.moe else (False,)
    for pp in pps:
        if fixed.dp in (None, 1):
            for tp in (fixed.tp,) if fixed.tp else powers(most // pp if pp <= most else 1):
                for ep in eps:
                    if not (ep and tp == 1):
                        yield Shape(tp=tp, pp=pp, ep=ep)
        if not arch.moe or fixed.dp == 1 or fixed.ep is False:
            continue
        # Attention-DP: each rank its own requests and cache, experts spread over all. Worth it where TP would
        # replicate the cache: latent attention at any size, else where there are more ranks than KV heads, which a
        # node's GPUs are enough for.
        latent = any(isinstance(g.mixer, Mla) for g in arch.layers)
        least, most_dp = (4, 64) if latent else (8, max(8, hardware.gpus_per_node))
        sizes = (fixed.dp,) if fixed.dp else tuple(n for n in powers(min(pool_gpus, most_dp)) if n >= least)
        for dp in sizes:
            for tp in (fixed.tp,) if fixed.tp else (1,):
                if dp * tp <= domain or hardware.rdma:
                    yield Shape(tp=tp, pp=pp, dp=dp, ep=True)


def _whole(shape: Shape, hardware: Hardware, pool_gpus: int) -> bool:
    """A replica larger than a node takes whole nodes; none is larger than the pool."""
    per_node = hardware.gpus_per_node
    return shape.gpus <= pool_gpus and (shape.gpus <= per_node or shape.gpus % per_node == 0)


def nodes_of(shape: Shape, hardware: Hardware) -> int:
    """Whole nodes that one replica takes; 0 where it shares one."""
    return 0 if shape.gpus <= hardware.gpus_per_node else shape.gpus // hardware.gpus_per_node
