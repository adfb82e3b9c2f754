"""The model of a plan's service: the catalogue's, or the one that the plan embeds."""

from __future__ import annotations

from collections.abc import Iterable

from planner.catalog.models import Model, find_model, own_model
from planner.plan.document import OwnModel, Plan


def model_named(plan: Plan, name: str) -> Model:
    """What `name` meant when the plan was made."""
    for own in plan.own_models:
        if own.name == name:
            return own_model(name, own.config, hf_quant=own.hf_quant, weights_bytes=own.weights, source="plan.yaml")
    return find_model(name)


def embedded(models: Iterable[Model]) -> tuple[OwnModel, ...]:
    """The users' own among `models`, as a plan carries them."""
    own = {m.id: m for m in models if m.kind == "own"}
    return tuple(
        OwnModel(name=name, config=dict(m.config), hf_quant=m.hf_quant, weights=m.native.weights_bytes)
        for name, m in sorted(own.items())
    )
