"""No plan with a figure past its limit, whatever the planned rates said."""

from __future__ import annotations

import pytest
from handmade import Toy, ask, evaluator, fleet

from planner.candidates.ask import Ask
from planner.candidates.candidate import Candidate, Prediction
from planner.errors import UserError
from planner.solve.explain import carried_by
from planner.solve.packing import configurations
from planner.solve.prepare import prepare
from planner.solve.question import Question
from planner.solve.solver import solve

ON = fleet({"name": "h", "gpu": "h100-sxm", "nodes": 4})


def _figures(worst_rps: float) -> object:
    """A replica that misses its promise anywhere between half of `worst_rps` and twice it, and nowhere else."""

    def told(
        _ask: Ask, c: Candidate, rate: float, _other: tuple[Candidate, float] | None = None
    ) -> tuple[Prediction, ...]:
        value = 0.06 if c.gpus == 1 and worst_rps / 2 < rate < worst_rps * 2 else 0.02
        return (Prediction("default", "itl.p99", value, value, value, "by hand"),)

    return told


def test_what_misses_at_its_own_rate_is_not_the_answer() -> None:
    one, two = Toy("h", 1, 10.0), Toy("h", 2, 13.0)
    asked = ask(ON, slo={"itl": "50ms"}, traffic={"input": 100, "output": 100, "rate": "10/s"})

    def gpus(worst_rps: float) -> float:
        return solve(
            [asked],
            ON,
            evaluate=evaluator({"chat": [one, two]}),
            predict=_figures(worst_rps),
            objective="gpus",
            explain=False,
        ).value

    assert gpus(1000.0) == 2  # never there: two small ones share the rate, at 5/s each
    assert gpus(6.0) == 2  # the larger one, though two small ones would do by their planned rate
    solution = solve(
        [asked], ON, evaluate=evaluator({"chat": [one, two]}), predict=_figures(6.0), objective="gpus", explain=False
    )
    assert [p.candidate.gpus for p in solution.services[0].pools] == [2]


def test_where_nothing_keeps_the_promise_there_is_no_plan() -> None:
    asked = ask(ON, slo={"itl": "50ms"}, traffic={"input": 100, "output": 100, "rate": "10/s"})

    def never(_a: Ask, _c: Candidate, _r: float, _o: object = None) -> tuple[Prediction, ...]:
        return (Prediction("default", "itl.p99", 0.06, 0.06, 0.06, "by hand"),)

    with pytest.raises(UserError):
        solve([asked], ON, evaluate=evaluator({"chat": [Toy("h", 1, 10.0)]}), predict=never, explain=False)


def test_what_others_carry_counts_what_may_be_lost() -> None:
    asked = ask(ON, traffic={"input": 100, "output": 100})
    prepared = prepare(Question((asked,), ON), _evaluator())
    (c,) = prepared.usable[asked.name]
    n = c.load.planned_rps, c.load.degraded_rps
    assert carried_by(c, 32, "none", prepared.spaces) == pytest.approx(32 * n[0])
    assert carried_by(c, 32, "1 node", prepared.spaces) == pytest.approx(min(32 * n[0], 24 * n[1]))
    assert carried_by(c, 8, "1 node", prepared.spaces) == 0


def _evaluator() -> object:
    from planner.solve.prepare import Evaluator

    return Evaluator(evaluator({"chat": [Toy("h", 1, 10.0)]}))


def test_too_many_fillings_are_refused_by_name() -> None:
    with pytest.raises(UserError) as e:
        configurations((1, 2, 3, 4, 6, 8, 16), 1000)
    assert e.value.code == "too-many-fillings"
