"""Everything that was asked, resolved against the catalogue: a value that planning depends on and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.candidates.ask import Ask
from planner.catalog.engines import DYNAMO_CARRIES, find_engine
from planner.catalog.gpus import find_gpu
from planner.catalog.models import Model, find_model
from planner.documents import load_yaml, read_as
from planner.errors import UserError, Where, did_you_mean
from planner.intent.document import Intent, Service
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.intent.resolve import Words, load_intents, load_platform
from planner.perf.traffic import ClassLoad, class_load
from planner.pipeline.places import places
from planner.plan.document import Plan
from planner.plan.models import model_named
from planner.plan.today import Today

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
    today: Today | None = None
    keep: tuple[str, ...] = ()
    """Services that stay as they run today."""
    traces: Mapping[tuple[str, str], Path] = field(default_factory=dict, compare=False)
    """By service and class: the file that was read; none for a question that comes from a plan."""
    places: Mapping[tuple[str, ...], Where] = field(default_factory=dict, compare=False)
    """Where things were said (`places.py`), so that an answer can point at them."""

    @property
    def baseline_pools(self) -> tuple[BaselinePool, ...]:
        """What runs today, in the solver's terms."""
        if self.today is None:
            return ()
        from planner.solve.question import BaselinePool

        return tuple(BaselinePool(p.service, p.key, p.replicas, p.gpus_per_replica) for p in self.today.pools)


def ask(
    *,
    fleet: Path,
    intent_files: Sequence[Path] = (),
    platform_file: Path | None = None,
    words: Words = Words(),  # noqa: B008 - frozen
    baseline: Path | None = None,
    keep: Sequence[str] = (),
) -> Question:
    """Files and words -> a question, every name in it known to the catalogue."""
    fleet_document = load_yaml(fleet, what="fleet")
    asked_fleet = read_as(Fleet, fleet_document, what="a fleet")
    for i, pool in enumerate(asked_fleet.pools):
        find_gpu(pool.gpu, where=fleet_document.where(("pools", i, "gpu")))
    loaded = load_intents(intent_files, words)
    intent = loaded.intent
    for name in keep:
        if name not in [x.name for x in intent.services]:
            raise UserError(
                "unknown-service",
                f"no service {name!r} to keep",
                None,
                (),
                did_you_mean(name, [x.name for x in intent.services]),
            )
    said = places(intent, intent_files, words)
    question = _question(intent, asked_fleet, load_platform(platform_file), loaded.assumed, said, {})
    today = _today(intent, asked_fleet, baseline, intent_files)
    if keep and today is None:
        raise UserError(
            "keep-without-baseline", f"--keep {keep[0]} needs a baseline", None, (), ("add --baseline PLAN",)
        )
    return replace(question, today=today, keep=tuple(keep), traces=loaded.traces)


def _today(intent: Intent, fleet: Fleet, baseline: Path | None, intent_files: Sequence[Path]) -> Today | None:
    """The baseline of the command line, else what the services of the intent name (relative to the intent file)."""
    if baseline is None and not any(s.baseline for s in intent.services):
        return None
    from planner.pipeline.baseline import joined, read_today

    if baseline is not None:
        return read_today(baseline, intent=intent, fleet=fleet)
    folder = intent_files[0].parent if intent_files else Path()
    found = []
    for service in intent.services:
        if service.baseline is not None:
            all_of_it = read_today(folder / service.baseline, intent=intent, fleet=fleet)
            found.append(replace(all_of_it, pools=tuple(p for p in all_of_it.pools if p.service == service.name)))
    return joined(found)


def question_of(plan: Plan) -> Question:
    """The question that a plan answers, from what it embeds."""
    own = {o.name: model_named(plan, o.name) for o in plan.own_models}
    return _question(plan.intent, plan.fleet, plan.platform, plan.defaults, {}, own)


def question_from(intent: Intent, fleet: Fleet, platform: Platform) -> Question:
    """An intent, a fleet and a platform as values -> a question."""
    return _question(intent, fleet, platform, (), {}, {})


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
    said: Mapping[tuple[str, ...], Where],
    own: Mapping[str, Model],
) -> Question:
    asks = tuple(_ask(service, fleet, said, own) for service in intent.services)
    return Question(intent, fleet, platform, asks, assumed, places=said)


def _ask(service: Service, fleet: Fleet, said: Mapping[tuple[str, ...], Where], own: Mapping[str, Model]) -> Ask:
    where = said.get((service.name, "engine"))
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
    model = own.get(service.model) or find_model(service.model, where=said.get((service.name, "model")))
    classes = tuple(class_load(c, slos=service.slo, trace=c.trace_summary) for c in service.traffic)
    _check_traffic(service, classes, said)
    return Ask(service, fleet, model=model, classes=classes, engine_version=engine.version)


def _check_traffic(service: Service, classes: Sequence[ClassLoad], said: Mapping[tuple[str, ...], Where]) -> None:
    """Promises that nothing could ever measure, and a context that the service's own requests exceed."""
    for c in classes:
        whose = f" of class {c.name!r}" if c.name != "default" else ""
        for slo in c.slos:
            where = said.get((service.name, f"slo of {c.name}", slo.key)) or said.get((service.name, "slo", slo.key))
            if slo.metric == "ttfa" and c.lengths.thinking is None:
                raise UserError(
                    "slo-without-meaning",
                    f"{slo.key}{whose}: without thinking tokens there is no first answer token apart from the first",
                    where,
                    (),
                    ("promise ttft instead, or say how long the class thinks: thinking: 500",),
                )
            if slo.metric in ("itl", "tpot") and c.lengths.thinking is None and c.lengths.output.longest <= 1:
                raise UserError(
                    "slo-without-meaning",
                    f"{slo.key}{whose}: answers of one token have no gap between tokens",
                    where,
                    (),
                    ("promise ttft or e2e instead",),
                )
    longest = max(c.lengths.longest for c in classes)
    if service.max_context is not None and service.max_context < longest:
        raise UserError(
            "context-below-requests",
            f"max_context {service.max_context:,} is below the service's own requests of up to {longest:,.0f} tokens",
            said.get((service.name, "max_context")),
            ("the engine would refuse them",),
            (f"set max_context to {math.ceil(longest)} or more, or cut the lengths with max",),
        )
