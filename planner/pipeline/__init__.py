"""From a question to a plan: the table of contents.

    question -> asks -> candidates + what perf says -> solver's choice -> simulation checks and lifts it -> plan

Each arrow is a function from frozen values to frozen values; nothing is filled in later, nothing reaches back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import Exit, UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.pipeline.question import Question, ask, question_from, question_of, scale_prices
from planner.plan.document import Plan

if TYPE_CHECKING:
    from planner.pipeline.verify import Settled, Solve

__all__ = ["Question", "ask", "make_plan", "replan", "resolve_again", "scale_prices"]


def make_plan(question: Question, *, verify: bool = True, progress: Callable[[str], None] = lambda _t: None) -> Plan:
    """The answer to a question, checked by simulation unless `verify` is off.

    Raises UserError: exit code 3 where there is no plan (with the rules that clash), 5 where the time limit came first.
    """
    from planner.candidates import candidates, predict
    from planner.pipeline.bursts import without_bounds
    from planner.pipeline.days import simulated_days
    from planner.pipeline.places import placed
    from planner.pipeline.verify import Check, Settled
    from planner.plan.assemble import assemble
    from planner.plan.solution import Solution
    from planner.solve import Cut, Lift, solve

    def solved(cuts: tuple[Cut, ...], lifts: tuple[Lift, ...], explain: bool) -> Solution:
        return solve(
            question.asks, question.fleet, evaluate=candidates, predict=predict,
            objective=question.intent.objective, cuts=cuts, lifts=lifts, baseline=question.baseline_pools,
            change_cost=question.intent.change_cost, keep=question.keep,
            workers=2 if len(question.asks) > 2 else 1, explain=explain, progress=progress,
        )  # fmt: skip

    progress("solving")
    try:
        if verify:
            answer = _verified(question, solved, progress)
            answer = replace(
                answer,
                solution=without_bounds(answer.solution, answer.checked.replayed),
                checked=replace(answer.checked, days=simulated_days(question, answer)),
            )
        else:
            answer = Settled(solved((), (), True), Check())
    except UserError as e:
        raise placed(e, question.places) from e
    progress("writing the plan")
    return assemble(question, answer.solution, answer.checked)


def _verified(question: Question, solve: Solve, progress: Callable[[str], None]) -> Settled:
    """The best answer that the simulation confirms."""
    from planner.pipeline.bursts import replayed
    from planner.pipeline.lift import lifted, rescued
    from planner.pipeline.verify import settled

    seen = replayed(question)
    try:
        first = settled(question, solve, cuts=seen.cuts, lifts=seen.lifts, progress=progress)
    except UserError as e:
        if e.exit_code is not Exit.NO_PLAN:
            raise
        rescue = rescued(question, (seen.cuts, seen.lifts), solve)
        if rescue.answer is None:
            if rescue.looked:
                raise e.noted("nor does the simulation find one: it was asked too") from e
            raise
        return rescue.answer
    return lifted(question, first, solve)


def replan(intent: Intent, fleet: Fleet, platform: Platform) -> Plan:
    """Plan an intent that is a value already (a plan's own, with something put back)."""
    return make_plan(question_from(intent, fleet, platform))


def resolve_again(plan: Plan, folder: Path) -> list[str]:
    """Solve a plan's own question again, its traces looked for around the folder; what differs today, one line each."""
    from planner.pipeline.traces import near
    from planner.report.diff import diff

    again = make_plan(near(question_of(plan), folder), verify=plan.verification.by == "simulation")
    found = diff(plan, again)
    return found.to_text(100).splitlines() if found else []
