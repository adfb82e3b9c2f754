"""From a question to a plan: the table of contents.

    question -> asks -> candidates + what perf says -> solver's choice -> simulation checks it -> plan

Each arrow is a function from frozen values to frozen values; nothing is filled in later, nothing reaches back.
"""

from __future__ import annotations

from collections.abc import Callable

from planner.errors import UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.pipeline.question import Question, ask, question_from, question_of, scale_prices
from planner.plan.document import Plan

__all__ = ["Question", "ask", "make_plan", "replan", "resolve_again", "scale_prices"]

# Solve, simulate, send a cut back, solve again: at most so often.
MOST_ROUNDS = 3


def make_plan(question: Question, *, verify: bool = True, progress: Callable[[str], None] = lambda _t: None) -> Plan:
    """The answer to a question, checked by simulation unless `verify` is off.

    Raises UserError: exit code 3 where there is no plan (with the rules that clash), 5 where the time limit came first.
    """
    from planner.candidates import candidates, predict
    from planner.pipeline.places import placed
    from planner.pipeline.verify import Check, check
    from planner.plan.assemble import assemble
    from planner.solve import Cut, solve

    cuts: tuple[Cut, ...] = ()
    checked = Check()
    progress("solving")
    for round_number in range(1, MOST_ROUNDS + 1):
        try:
            solution = solve(
                question.asks, question.fleet, evaluate=candidates, predict=predict,
                objective=question.intent.objective, cuts=cuts, baseline=question.baseline_pools,
                change_cost=question.intent.change_cost, keep=question.keep,
                workers=2 if len(question.asks) > 2 else 1, progress=progress,
            )  # fmt: skip
        except UserError as e:
            raise placed(e, question.places) from e
        if not verify:
            break
        progress(f"checking by simulation, round {round_number}")
        checked = check(question, solution, rounds=round_number)
        if not checked.cuts or round_number == MOST_ROUNDS:
            break
        cuts = (*cuts, *checked.cuts)
    progress("writing the plan")
    return assemble(question, solution, checked)


def replan(intent: Intent, fleet: Fleet, platform: Platform) -> Plan:
    """Plan an intent that is a value already (a plan's own, with something put back)."""
    return make_plan(question_from(intent, fleet, platform))


def resolve_again(plan: Plan) -> list[str]:
    """Solve a plan's own question again; what differs today, one line each."""
    from planner.report.diff import diff

    again = make_plan(question_of(plan), verify=plan.verification.by == "simulation")
    found = diff(plan, again)
    return found.to_text(100).splitlines() if found else []
