"""Why two plans differ: the inputs that differ, by the user's own field and value, and how to take one back.

A plan embeds everything that decided it: the intent, the fleet pools it uses, the platform; catalogue, calibration
and planner stand in it as digests and versions. Comparing those names the causes; `revert` puts one of them back,
so that a cause can be proved by planning again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.plan.document import Plan

Kind = Literal["intent", "fleet", "platform", "catalogue", "calibration", "planner", "solver"]
Replan = Callable[[Intent, Fleet, Platform], Plan]


@dataclass(frozen=True, slots=True)
class Cause:
    """One input that differs. `path` reads as the user's field, e.g. `services.chat.slo.itl.p99`."""

    kind: Kind
    path: str
    before: str
    after: str
    note: str = ""

    def __str__(self) -> str:
        name = f"{self.kind} {self.path}" if self.path else self.kind
        return f"{name}: {self.before} -> {self.after}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, slots=True)
class Proof:
    """What taking one cause back does to the answer, everything else as in the later plan."""

    cause: Cause
    gpus: int
    cost_per_hour: float
    undoes: Literal["all", "part", "nothing"]
    """How much of the change in the answer goes back with this cause alone."""


def causes(a: Plan, b: Plan) -> tuple[Cause, ...]:
    """Inputs of `b` that differ from those of `a`, in the order in which a plan is read."""
    found: list[Cause] = []
    for path, before, after in _walk(_plain(a.intent), _plain(b.intent), ""):
        found.append(Cause("intent", path, before, after))
    found += _fleet(a, b)
    for path, before, after in _walk(_plain(a.platform), _plain(b.platform), ""):
        found.append(Cause("platform", path, before, after))
    old_own, new_own = {m.name: m for m in a.own_models}, {m.name: m for m in b.own_models}
    for name in sorted(old_own.keys() & new_own.keys()):
        # The user's own config.json changed under the same name.
        for path, before, after in _walk(_plain(old_own[name]), _plain(new_own[name]), name):
            found.append(Cause("catalogue", path, before, after))
    if a.digests.catalog != b.digests.catalog:
        found.append(Cause("catalogue", "", *_digests(a.digests.catalog, b.digests.catalog), _model_note(a, b)))
    if a.digests.calibration != b.digests.calibration:
        found.append(Cause("calibration", "", *_digests(a.digests.calibration, b.digests.calibration)))
    if a.planner_version != b.planner_version:
        found.append(Cause("planner", "", a.planner_version, b.planner_version))
    if a.solver.version != b.solver.version:
        found.append(Cause("solver", "", a.solver.version, b.solver.version))
    return tuple(found)


def _fleet(a: Plan, b: Plan) -> list[Cause]:
    """Fleet fields that differ. A pool that only one plan uses is a choice, not a cause, unless the fleet changed."""
    old, new = _plain(a.fleet), _plain(b.fleet)
    changed = a.digests.fleet != b.digests.fleet
    pools_a, pools_b = _by_name(old.pop("pools", [])), _by_name(new.pop("pools", []))
    found = [Cause("fleet", path, x, y) for path, x, y in _walk(old, new, "")]
    for name in sorted(pools_a.keys() & pools_b.keys()):
        found += [Cause("fleet", p, x, y) for p, x, y in _walk(pools_a[name], pools_b[name], f"pools.{name}")]
    only_a, only_b = sorted(pools_a.keys() - pools_b.keys()), sorted(pools_b.keys() - pools_a.keys())
    if changed and not found:
        # A plan holds only the pools it uses: what changed elsewhere shows in the digest alone.
        note = "; ".join([*(f"{n} is no longer used" for n in only_a), *(f"{n} is newly used" for n in only_b)])
        note = note or "in pools that neither plan uses"
        found.append(Cause("fleet", "", *_digests(a.digests.fleet, b.digests.fleet), note))
    return found


def _model_note(a: Plan, b: Plan) -> str:
    """Which of the plan's own models the catalogue now sees differently."""
    old = {s.model.id: s.model for s in a.services}
    parts = []
    for s in b.services:
        before = old.get(s.model.id)
        if before is None or before.precision != s.model.precision:
            continue
        for name in ("params_total", "params_active", "weights", "family", "accuracy_prior"):
            x, y = getattr(before, name), getattr(s.model, name)
            if x != y:
                parts.append(f"{s.model.id} {name} {x} -> {y}")
    return "; ".join(sorted(set(parts)))


def _digests(a: str, b: str) -> tuple[str, str]:
    return _digest(a), _digest(b)


def _digest(text: str) -> str:
    return text.removeprefix("sha256:")[:8]


def _plain(model: Any) -> dict[str, Any]:
    data: dict[str, Any] = model.model_dump(mode="json")
    return data


def _by_name(items: list[Any]) -> dict[str, Any]:
    return {str(i["name"]): i for i in items}


def _named(value: Any) -> dict[str, Any] | None:
    if isinstance(value, list) and value and all(isinstance(v, dict) and "name" in v for v in value):
        return _by_name(value)
    return None


def _walk(a: Any, b: Any, path: str) -> Iterator[tuple[str, str, str]]:
    """Leaves that differ: (path, before, after), lists of named things by name."""
    if a == b:
        return
    named_a, named_b = _named(a), _named(b)
    if named_a is not None or named_b is not None:
        a, b = named_a or {}, named_b or {}
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            yield from _walk(a.get(key), b.get(key), f"{path}.{key}" if path else str(key))
        return
    yield path, _value(a), _value(b)


def _value(value: Any) -> str:
    """A value as the user writes it."""
    if value is None or value in ({}, []):
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        if "name" in value:
            return str(value["name"])
        inner = ", ".join(f"{k}: {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{{inner}}}" if len(inner) <= 60 else f"{{{inner[:57]}...}}"
    if isinstance(value, list):
        inner = ", ".join(_value(v) for v in value)
        return f"[{inner}]" if len(inner) <= 60 else f"[{inner[:57]}...]"
    return str(value)


# ---------------------------------------------------------------- proof by taking back


def revert(cause: Cause, a: Plan, b: Plan) -> tuple[Intent, Fleet, Platform] | None:
    """The inputs of `b` with one cause as in `a`; None for what no input can take back (catalogue, versions)."""
    intent, fleet, platform = b.intent, b.fleet, b.platform
    if cause.kind == "intent":
        intent = Intent.model_validate(_put_back(_plain(a.intent), _plain(b.intent), cause.path))
    elif cause.kind == "fleet":
        fleet = (
            a.fleet if not cause.path else Fleet.model_validate(_put_back(_plain(a.fleet), _plain(b.fleet), cause.path))
        )
    elif cause.kind == "platform":
        platform = Platform.model_validate(_put_back(_plain(a.platform), _plain(b.platform), cause.path))
    else:
        return None
    return intent, fleet, platform


def prove(a: Plan, b: Plan, replan: Replan) -> tuple[Proof, ...]:
    """For each cause that an input can take back: plan `b` without it, and see how much of the change goes back."""
    found = []
    for cause in causes(a, b):
        inputs = revert(cause, a, b)
        if inputs is None:
            continue
        plan = replan(*inputs)
        undoes: Literal["all", "part", "nothing"] = (
            "nothing" if answer(plan) == answer(b) else "all" if answer(plan) == answer(a) else "part"
        )
        found.append(Proof(cause, plan.totals.gpus, plan.totals.cost, undoes))
    return tuple(found)


def answer(plan: Plan) -> Any:
    """What was decided and what it costs, without the predictions: equal answers are the same deployment."""
    pools = [
        p.model_dump(
            mode="json",
            include={"name", "role", "fleet_pool", "gpu", "shape", "replicas", "gpus", "kv_dtype", "max_num_seqs",
                     "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization"},
        )
        for s in plan.services
        for p in s.pools
    ]  # fmt: skip
    models = [(s.name, s.model.repo, s.model.precision, s.engine, s.engine_version, s.target) for s in plan.services]
    return pools, models, plan.totals.gpus, plan.totals.cost, plan.totals.scale


def _put_back(old: dict[str, Any], new: dict[str, Any], path: str) -> dict[str, Any]:
    """`new` with the leaf at `path` as in `old`; steps are matched greedily, since SLO keys hold dots themselves."""
    result = dict(new)
    for key in sorted({*old, *new}, key=len, reverse=True):
        if path != key and not path.startswith(key + "."):
            continue
        x, y = old.get(key), new.get(key)
        named_x, named_y = _named(x), _named(y)
        rest = path[len(key) + 1 :]
        if rest and (named_x is not None or named_y is not None):
            inner = _put_back(named_x or {}, named_y or {}, rest)
            order = [*(named_y or {}), *(k for k in inner if k not in (named_y or {}))]
            result[key] = [inner[k] for k in order if inner.get(k) is not None]
        elif rest and isinstance(x, dict) and isinstance(y, dict):
            result[key] = _put_back(x, y, rest)
        elif x is None:
            result.pop(key, None)
        else:
            result[key] = x
        return result
    return result
