"""Mixture of experts: a router, E routed experts of which k run, and shared experts that always run.

    router: hidden -> E     expert: hidden -> width (twice where gated) -> hidden     shared: the same, always on

Experts may work in a smaller space than the model (Nemotron-3, Kimi-K3: `latent`), with a projection down and up.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.perf.arch import Linear, Moe, Shard
from planner.perf.families.base import Fields, Part
from planner.perf.families.dense import mlp


@dataclass(frozen=True, slots=True)
class MoeShape:
    hidden: int
    experts: int
    active: int
    width: int
    shared_width: int = 0
    gated: bool = True
    router_bias: bool = False
    """A bias per expert in the router: learned, or the correction that balances the load."""
    expert_bias: bool = False
    shared_gate: bool = False
    """A sigmoid gate on the shared expert (Qwen): hidden -> 1."""
    latent: int | None = None
    latent_norm: bool = False


def moe(s: MoeShape) -> Part:
    inner = s.latent or s.hidden

    def routed(name: str, inputs: int, outputs: int, shard: Shard) -> Linear:
        bias = s.expert_bias
        return Linear(name, "routed_expert", inputs, outputs, shard, copies=s.experts, active=s.active, bias=bias)

    linears = [Linear("gate", "router", s.hidden, s.experts, "replicated", bias=s.router_bias, quantisable=False)]
    if s.latent:
        linears += [
            Linear("latent_down", "shared_expert", s.hidden, s.latent, "replicated"),
            Linear("latent_up", "shared_expert", s.latent, s.hidden, "replicated"),
        ]
    names = ("gate_proj", "up_proj") if s.gated else ("up_proj",)
    linears += [routed(n, inner, s.width, "column") for n in names]
    linears.append(routed("down_proj", s.width, inner, "row"))
    if s.shared_gate and s.shared_width:
        linears.append(Linear("shared_expert_gate", "router", s.hidden, 1, "replicated", quantisable=False))
    shared = mlp(s.hidden, s.shared_width, gated=s.gated, where="shared_expert") if s.shared_width else Part()
    return Part(
        tuple(linears) + shared.linears,
        moe=Moe(s.experts, s.active, s.width, s.shared_width),
        norm_params=s.latent if s.latent and s.latent_norm else 0,
    )


EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts", "num_routed_experts")
ACTIVE = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_k",
    "moe_topk",
    "top_k_experts",
    "moe_top_k",
    "num_selected_experts",
)


def has_experts(f: Fields) -> bool:
    return f.whole(*EXPERTS, default=0, low=0, high=10**5) > 0


def read_moe(
    f: Fields,
    *,
    gated: bool = True,
    router_bias: bool = False,
    expert_bias: bool = False,
    shared_gate: bool = False,
    default_shared: int = 0,
) -> MoeShape:
    """Expert counts and widths as configs give them.

    Shared experts are given as a width of their own, or as a number of experts of the routed width; `default_shared`
    is that number where the config has neither and the class always has them.
    """
    experts = f.whole(*EXPERTS, high=10**5)
    active = f.whole(*ACTIVE, high=10**5)
    if active > experts:
        raise f.error(f"{active} experts per token of only {experts} experts")
    width = f.whole("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
    own = f.whole_or_none(
        "shared_expert_intermediate_size",
        "shared_experts_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
        "moe_shared_width",
        low=0,
    )
    number = f.whole("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert",
                   default=default_shared, low=0, high=1000)  # fmt: skip
    shared = own if own is not None else number * width
    return MoeShape(
        hidden=f.hidden,
        experts=experts,
        active=active,
        width=width,
        shared_width=shared,
        gated=gated,
        router_bias=router_bias,
        expert_bias=expert_bias,
        shared_gate=shared_gate,
        latent=f.whole_or_none("moe_latent_size", "routed_expert_hidden_size"),
        latent_norm=f.flag("latent_moe_use_norm", default=False),
    )


def moe_layers(f: Fields, *, first_dense: int = 0, step_from_one: bool = False) -> list[bool]:
    """Which layers have experts, from whichever field says so; without one, all of them but `first_dense`."""
    n = f.layers
    kinds = f.items("mlp_layer_types", str, length=n)
    if kinds is not None:
        known = {"dense": False, "sparse": True, "moe": True}
        for k in kinds:
            if k not in known:
                raise f.error(f"{f.path}mlp_layer_types holds {k!r}, not dense or sparse")
        return [known[k] for k in kinds]
    if isinstance(f.raw("moe_layer_freq"), (list, tuple)):
        flags = f.items("moe_layer_freq", int, length=n)
        return [x != 0 for x in flags or ()]
    listed = f.raw("moe_layers", "moe_layers_enum")
    if listed:
        return _listed(f, listed)
    first = f.whole("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=first_dense, low=0)
    last = f.raw("moe_layer_end_index")
    end = n if last in (None, -1) else f.whole("moe_layer_end_index", low=0) + 1
    every = f.whole(
        "moe_layer_freq", "decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step", default=1, low=0
    )
    if every == 0:
        return [False] * n
    dense = set(f.items("mlp_only_layers", int) or ())
    ahead = 1 if step_from_one else 0
    return [first <= i < end and i not in dense and (i + ahead) % every == 0 for i in range(n)]


def _listed(f: Fields, listed: object) -> list[bool]:
    """Layers with experts by index, as a list or as "3,4,5" (Step)."""
    items = listed.split(",") if isinstance(listed, str) else listed
    if not isinstance(items, (list, tuple)):
        raise f.error(f"{f.path}moe_layers must list layer indices")
    try:
        found = {int(x) for x in items}
    except (TypeError, ValueError):
        raise f.error(f"{f.path}moe_layers must list layer indices") from None
    return [i in found for i in range(f.layers)]
