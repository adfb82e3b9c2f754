"""Everything that was asked, resolved against the catalogue: a value that planning depends on and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.candidates.ask import Ask
from planner.catalog.engines import DYNAMO_CARRIES, find_engine
from planner.catalog.gpus import find_gpu
from planner.catalog.models import Model, find_model
from planner.documents import load_yaml, read_as
from planner.errors import UserError, Where
from planner.intent.document import Intent, Service
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.intent.resolve import Words, load_intents, load_platform
from planner.perf.traffic import class_load
from planner.plan.document import Plan
from planner.plan.models import model_named

if TYPE_CHECKING:
    from planner.solve.question import BaselinePool


@dataclass(frozen=True, slots=True)
class Question:
    """One intent against one fleet."""

    intent: Intent
    fleet: Fleet
    platform: Platform
    asks: tuple[Ask, ...]
    assumed: tuple[str, ...] = ()
    baseline: Plan | None = None

    @property
    def baseline_pools(self) -> tuple[BaselinePool, ...]:
        """What runs today, in the solver's terms."""
        if self.baseline is None:
            return ()
        from planner.plan.assemble import candidate_key
        from planner.solve.question import BaselinePool

        return tuple(
            BaselinePool(s.name, candidate_key(s, p), p.replicas, p.gpus_per_replica)
            for s in self.baseline.services
            for p in s.pools
        )


def ask(
    *,
    fleet: Path,
    intent_files: Sequence[Path] = (),
    platform_file: Path | None = None,
    words: Words = Words(),  # noqa: B008 - frozen
    baseline: Path | None = None,
) -> Question:
    """Files and words -> a question, every name in it known to the catalogue."""
    from planner.plan.text import load

    fleet_document = load_yaml(fleet, what="fleet")
    asked_fleet = read_as(Fleet, fleet_document, what="a fleet")
    for i, pool in enumerate(asked_fleet.pools):
        find_gpu(pool.gpu, where=fleet_document.where(("pools", i, "gpu")))
    intent, assumed = load_intents(intent_files, words)
    return _question(
        intent,
        asked_fleet,
        load_platform(platform_file),
        assumed,
        load(baseline) if baseline is not None else None,
        _places(intent, intent_files, words),
    )


def question_of(plan: Plan) -> Question:
    """The question that a plan answers, from what it embeds."""
    own = {o.name: model_named(plan, o.name) for o in plan.own_models}
    return _question(plan.intent, plan.fleet, plan.platform, plan.defaults, None, {}, own)


def question_from(intent: Intent, fleet: Fleet, platform: Platform) -> Question:
    """An intent, a fleet and a platform as values -> a question."""
    return _question(intent, fleet, platform, (), None, {})


def scale_prices(question: Question, factor: float) -> Question:
    """The same question with every price of the fleet multiplied."""
    if factor == 1.0:
        return question
    pools = tuple(
        p
        if p.price is None
        else p.model_copy(update={"price": p.price.model_copy(update={"per_gpu_hour": p.price.per_gpu_hour * factor})})
        for p in question.fleet.pools
    )
    fleet = question.fleet.model_copy(update={"pools": pools})
    return replace(question, fleet=fleet, asks=tuple(a.with_fleet(fleet) for a in question.asks))


def _question(  # noqa: PLR0917 - one caller per argument
    intent: Intent,
    fleet: Fleet,
    platform: Platform,
    assumed: tuple[str, ...],
    baseline: Plan | None,
    places: dict[tuple[str, str], Where],
    own: Mapping[str, Model] | None = None,
) -> Question:
    asks = tuple(_ask(service, fleet, places, own or {}) for service in intent.services)
    return Question(intent, fleet, platform, asks, assumed, baseline)


def _ask(service: Service, fleet: Fleet, places: dict[tuple[str, str], Where], own: Mapping[str, Model]) -> Ask:
    where = places.get((service.name, "engine"))
    carried = DYNAMO_CARRIES.get(service.engine) if service.target == "dynamo" else None
    engine = find_engine(service.engine, service.engine_version or carried, where=where)
    if engine.predicts_only:
        raise UserError(
            "predicts-only",
            f"{engine.label} is known for prediction only, nothing is rendered for it",
            where,
            (),
            ("plan for vllm or sglang", "predict a configuration with: plan estimate --engine trtllm ..."),
        )
    model = own.get(service.model) or find_model(service.model, where=places.get((service.name, "model")))
    classes = tuple(class_load(c, slos=service.slo, trace=c.trace_summary) for c in service.traffic)
    return Ask(service, fleet, model=model, classes=classes, engine_version=engine.version)


def _places(intent: Intent, intent_files: Sequence[Path], words: Words) -> dict[tuple[str, str], Where]:
    """Where each service's model and engine were named, for errors that only the catalogue can find."""
    found: dict[tuple[str, str], Where] = {}
    for path in intent_files:
        document = load_yaml(path, what="intent")
        for i, service in enumerate(document.data.get("services", [])):
            for key in ("model", "engine"):
                found[str(service.get("name")), key] = document.where(("services", i, key))
    for key in ("model", "engine"):
        said = getattr(words, key)
        if said is not None:
            where = Where("command line", 1, len(key) + 4, f"--{key} {said}"[:200], max(1, min(len(said), 100)))
            found |= {(s.name, key): where for s in intent.services if words.service in (None, s.name)}
    return found
