"""Checkpoint -> which matrix of the model is stored how.

A checkpoint names modules (`model.layers.3.mlp.shared_experts*`, `re:.*self_attn.*`, `lm_head`); a `WeightPlan` speaks
of groups and matrices. Each matrix of each layer is looked up under every name that checkpoints give it. Where layers
of one kind differ, the format of most of them wins and `exceptions` says so.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Iterable
from typing import get_args

from planner.catalog.models import Checkpoint, Model
from planner.catalog.quantisation import Precision, Quantisation
from planner.errors import UserError, Where
from planner.perf.arch import Group, Linear, ModelArch, Scheme, WeightPlan
from planner.perf.quantities import SCHEMES

PLACES: dict[Group, tuple[str, ...]] = {
    "attn": ("self_attn", "attn", "attention", "mixer"),
    "linear_attn": ("linear_attn", "self_attn", "mamba", "mixer", "conv", "attention"),
    "indexer": ("self_attn.indexer", "attn.indexer", "attn.compressor.indexer"),
    "dense_mlp": ("mlp", "feed_forward", "ffn", "mixer"),
    "shared_expert": (
        "mlp.shared_experts",
        "mlp.shared_expert",
        "block_sparse_moe.shared_experts",
        "feed_forward.shared_expert",
        "mixer.shared_experts",
        "ffn.shared_experts",
        "shared_mlp",
        "share_expert",
    ),
    "routed_expert": (
        "mlp.experts",
        "block_sparse_moe.experts",
        "feed_forward.experts",
        "mixer.experts",
        "ffn.experts",
        "moe.experts",
    ),
}
"""Where checkpoints keep a group's matrices inside a layer."""

NAMES: dict[str, tuple[str, ...]] = {
    "gate_proj": ("gate_proj", "w1", "gate_up_proj"),
    "up_proj": ("up_proj", "w3", "gate_up_proj"),
    "down_proj": ("down_proj", "w2"),
    "q_proj": ("q_proj", "qkv_proj"),
    "k_proj": ("k_proj", "qkv_proj"),
    "v_proj": ("v_proj", "qkv_proj"),
    "in_proj_qkv": ("in_proj_qkv", "in_proj_qkvz"),
    "in_proj_z": ("in_proj_z", "in_proj_qkvz"),
    "in_proj_b": ("in_proj_b", "in_proj_ba"),
    "in_proj_a": ("in_proj_a", "in_proj_ba"),
}
"""Other names of a matrix."""

HEADS = ("lm_head", "head", "language_model.lm_head", "model.lm_head")
_LATENT = {"latent_down": "fc1_latent_proj", "latent_up": "fc2_latent_proj"}


def paths(x: Linear, *, arch: ModelArch) -> tuple[str, ...]:
    """Every path inside a layer under which checkpoints keep this matrix.

    >>> from planner.perf.arch import Linear
    >>> "self_attn.q_proj" in _paths("attn", "q_proj", False)
    True
    """
    return _paths(x.group, x.name, arch.architecture.startswith("Gemma4"))


@functools.cache
def _paths(group: Group, name: str, beside: bool) -> tuple[str, ...]:
    if name in _LATENT:
        return tuple(f"{place}.{_LATENT[name]}" for place in ("mixer", "mlp"))
    places = PLACES.get(group, (group,))
    if group == "routed_expert":
        # Gemma-4's experts stand beside its `mlp`, not inside.
        places = ("experts", "moe.experts") if beside else places
        return tuple(f"{p}.0.{n}" for p in places for n in NAMES.get(name, (name,))) + places
    return tuple(f"{p}.{n}" for p in places for n in NAMES.get(name, (name,)))


class _Matcher:
    """Which of a checkpoint's names mean a module; names with a layer number are looked up by that number."""

    def __init__(self, names: Iterable[tuple[str, str]]) -> None:
        self.by_layer: dict[int, list[tuple[str, str]]] = {}
        self.general: list[tuple[str, str]] = []
        for name, value in names:
            numbered = None if name.startswith("re:") else re.search(r"layers\.(\d+)(?=$|[.*])", name)
            if numbered is None:
                self.general.append((name, value))
                continue
            if "mtp" in name[: numbered.start()]:
                continue  # numbered apart: the prediction layers' own
            index, rest = int(numbered.group(1)), name[numbered.end() :]
            self.by_layer.setdefault(index, []).append((rest.removeprefix("."), value))

    def find(self, index: int, inside: tuple[str, ...]) -> str | None:
        """The value of the first name that means layer `index`'s module at one of the paths `inside`."""
        for rest, value in self.by_layer.get(index, ()):
            if any(_inside(rest, p) for p in inside):
                return value
        return self._general(inside)

    @functools.cached_property
    def _seen(self) -> dict[tuple[str, ...], str | None]:
        return {}

    def _general(self, inside: tuple[str, ...]) -> str | None:
        if inside not in self._seen:
            hits = (v for name, v in self.general for p in inside if _anywhere(name, p))
            self._seen[inside] = next(hits, None)
        return self._seen[inside]

    def top(self, modules: tuple[str, ...]) -> str | None:
        """The value of the first name that means one of the modules outside layers."""
        for name, value in self.general:
            for m in modules:
                exact = not name.startswith("re:") and fnmatch.fnmatchcase(m, name)
                if exact or (name.startswith("re:") and re.match(name[3:], m)):
                    return value
        return None


def _inside(rest: str, path: str) -> bool:
    """Does the rest of a name, behind its layer number, mean the module at `path` or a parent of it?"""
    if rest in ("", "*"):
        return True
    if "*" in rest:
        return fnmatch.fnmatchcase(path, rest) or fnmatch.fnmatchcase(f"{path}.weight", rest)
    return path == rest or path.startswith(f"{rest}.")


def _anywhere(name: str, path: str) -> bool:
    """Does a name without a layer number mean the module at `path` of any layer?"""
    full = f"model.layers.0.{path}"
    if name.startswith("re:"):
        return (
            re.match(name[3:], full) is not None
            or re.match(name[3:], f"model.language_model.layers.0.{path}") is not None
        )
    if "*" in name:
        plain = name.replace("layers.*.", "layers.0.")
        return any(fnmatch.fnmatchcase(t, plain) for t in (full, f"{full}.weight", path))
    # A bare name means a component of the path: "gate" is the router, not gate_proj.
    return f".{name}." in f".{path}." or path == name


@functools.lru_cache(maxsize=512)
def weight_plan(arch: ModelArch, checkpoint: Checkpoint) -> WeightPlan:
    """How each matrix of the model is stored in this checkpoint."""
    q = checkpoint.quantisation
    if q is None:
        scheme = _scheme(checkpoint.scheme)
        rules: list[tuple[str, Scheme]] = [(what, "bf16") for what in ("lm_head", *checkpoint.wide)]
        return WeightPlan(scheme, () if scheme == "bf16" else tuple(rules), _mtp(arch, checkpoint))
    found = _resolve(arch, q)
    default = _scheme(q.default)
    head = _head(q)
    return WeightPlan(
        default, (("lm_head", head), *((what, s) for what, s in found if s != default)), _mtp(arch, checkpoint)
    )


def _mtp(arch: ModelArch, checkpoint: Checkpoint) -> Scheme | None:
    """bf16 where the prediction layers are left wide though the rest is not; None: stored like the rest."""
    q = checkpoint.quantisation
    if q is None:
        return "bf16" if SCHEMES[_scheme(checkpoint.scheme)].bits == 4 and not checkpoint.mtp_quantised else None
    # Checkpoints name them by their own prefix, or by the number behind the last layer.
    apart = any(re.search(rf"(^|\.)mtp|layers\.{arch.layer_count}\*?$", n) for n in q.exclude)
    return "bf16" if apart or q.default == "bf16" else None


def _resolve(arch: ModelArch, q: Quantisation) -> list[tuple[str, Scheme]]:
    """("group:name", format of most layers) for every matrix that can be quantised."""
    exclude, named = _Matcher((n, "bf16") for n in q.exclude), _Matcher(q.layers)
    votes: dict[str, Counter[Scheme]] = {}
    for g in arch.layers:
        for x in g.linears:
            if not x.quantisable:
                continue
            inside = paths(x, arch=arch)
            for i in g.indices:
                default = q.experts if q.experts and x.group == "routed_expert" else q.default
                scheme = named.find(i, inside) or exclude.find(i, inside) or default
                votes.setdefault(f"{x.group}:{x.name}", Counter())[_scheme(scheme)] += x.weights
    return [(what, count.most_common(1)[0][0]) for what, count in votes.items()]


def exceptions(arch: ModelArch, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Layers that are stored otherwise than the plan says, because they differ from most of their kind."""
    q = checkpoint.quantisation
    if q is None:
        return ()
    plan = weight_plan(arch, checkpoint)
    exclude, named = _Matcher((n, "bf16") for n in q.exclude), _Matcher(q.layers)
    odd: dict[tuple[str, str], list[int]] = {}
    for g in arch.layers:
        for x in g.linears:
            for i in g.indices if x.quantisable else ():
                default = q.experts if q.experts and x.group == "routed_expert" else q.default
                inside = paths(x, arch=arch)
                scheme = named.find(i, inside) or exclude.find(i, inside) or default
                if scheme != plan.scheme_of(x):
                    odd.setdefault((x.group, scheme), []).append(i)
    return tuple(f"{group} of {len(set(at))} layers is {scheme}" for (group, scheme), at in odd.items())


def _head(q: Quantisation) -> Scheme:
    """The head is wide unless the checkpoint names it."""
    return _scheme(_Matcher(q.layers).top(HEADS) or "bf16")


def _scheme(name: str) -> Scheme:
    found = next((known for known in SCHEMES if known == name), None)
    assert found is not None, name
    return found


# ---------------------------------------------------------------- choosing one


def precisions(model: Model) -> tuple[str, ...]:
    """Precisions the model can be served in, its own first.

    >>> from planner.catalog.models import find_model
    >>> precisions(find_model("openai/gpt-oss-120b"))
    ('mxfp4',)
    """
    return tuple(dict.fromkeys(c.precision for c in model.checkpoints))


def checkpoint_for(model: Model, precision: str | None = None, *, where: Where | None = None) -> Checkpoint:
    """The preferred checkpoint of a precision, or the model's own without one; UserError names those there are."""
    if precision is None:
        return model.native
    for c in model.checkpoints:
        if c.precision == precision:
            return c
    known = precisions(model)
    every: tuple[str, ...] = get_args(Precision)
    raise UserError(
        "unknown-precision",
        f"{model.id} has no {precision} checkpoint in the catalogue",
        where,
        (f"it has {', '.join(known)}",) if precision in every else (f"precisions are {', '.join(every)}",),
        (f"write {' or '.join(known)}, or name a folder with the checkpoint's config.json",),
    )
