"""Traces replayed while planning: as few replicas as survive them, and what a plan says of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.errors import Exit, UserError
from planner.intent.resolve import Words
from planner.pipeline import ask, make_plan, resolve_again, traces
from planner.pipeline.question import Question, question_of
from planner.pipeline.replay import candidate_of, replay, replay_text
from planner.pipeline.traces import traces_of
from planner.pipeline.verify import unit_spec
from planner.plan.document import Plan
from planner.plan.solution import ChosenPool
from planner.simulate.sizing import survives

FLEET = Path(__file__).resolve().parents[2] / "fleets" / "h100.yaml"
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
HEAD = "timestamp_s,input_tokens,output_tokens\n"


def bursty(path: Path, *, at_once: int = 120, every_s: float = 30.0, bursts: int = 10) -> Path:
    """So many requests within a second, again and again."""
    rows = [
        f"{every_s * b + i / at_once:.6f},{1800 + 3 * i},{40 + i % 40}" for b in range(bursts) for i in range(at_once)
    ]
    path.write_text(HEAD + "\n".join(rows) + "\n")
    return path


def asked(trace: Path, *, rate: str | None = None, fleet: Path = FLEET, slo: tuple[str, ...] = ()) -> Question:
    words = Words(
        model=MODEL, trace=str(trace), rate=rate, slo=slo or ("ttft.p99=900ms", "itl.p99=60ms"), tp=1,
        objective="gpus", target="none",
    )  # fmt: skip
    return ask(fleet=fleet, words=words)


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    path = bursty(tmp_path_factory.mktemp("trace") / "burst.csv")
    return path, make_plan(asked(path))


def kept(plan: Plan, path: Path, replicas: int) -> bool:
    """Whether so many replicas of the plan's pool survive its trace."""
    service, q = plan.services[0], replace(question_of(plan), traces={(plan.services[0].name, "default"): path})
    a = q.asks[0]
    pool = ChosenPool(candidate_of(plan, service, service.pools[0]), replicas, a.rates[0][1], ())
    return survives(unit_spec(a, (pool,), traces=traces_of(q, a, dict(a.rates))))[0]


def test_a_trace_alone_is_replayed_and_the_plan_is_the_smallest_that_survives(planned: tuple[Path, Plan]) -> None:
    path, plan = planned
    cls = plan.intent.services[0].traffic[0]
    assert cls.arrivals.process == "replay"
    assert cls.rate_source == "busiest minute of burst.csv"
    assert plan.defaults == ("arrivals as in burst.csv, at its own pace",)
    assert "the whole trace" in plan.verification.note
    (seen,) = replay(plan, trace=path)
    assert all(v.holds for v in seen.verdicts)
    assert seen.result.books.arrived == seen.result.books.finished == 1200
    count = plan.services[0].pools[0].replicas
    assert kept(plan, path, count)
    # One replica less breaks the promise, or keeps it without the headroom that the step times' own error asks for.
    least = next(n for n in range(1, count + 1) if kept(plan, path, n))
    assert count - least <= 1
    assert least > 1


def test_poisson_arrivals_at_the_same_rate_take_fewer_and_miss_the_bursts(planned: tuple[Path, Plan]) -> None:
    path, plan = planned
    rate = plan.intent.services[0].traffic[0].rate
    smooth = make_plan(asked(path, rate=f"{rate}/s"))
    assert smooth.intent.services[0].traffic[0].arrivals.process == "poisson"
    assert smooth.totals.gpus < plan.totals.gpus
    (seen,) = replay(smooth, trace=path)
    assert not all(v.holds for v in seen.verdicts)


def test_its_figures_and_bad_days_come_from_replays(planned: tuple[Path, Plan]) -> None:
    path, plan = planned
    figures = {f.metric: f for f in plan.services[0].pools[0].classes[0].figures}
    (seen,) = replay(plan, trace=path)
    promised = figures["ttft.p99"]
    assert promised.method.startswith("replay of the trace; closed form ")
    assert promised.value == promised.simulated
    assert promised.value == pytest.approx(seen.result.classes[0].value("ttft", "p99"), rel=0.01)
    days = {d.name: d for d in plan.bad_days}
    assert {d.method for d in plan.bad_days if d.load > 0} == {"replay of the trace"}
    (faster,) = replay(plan, trace=path, rate_scale=1.5)
    told = [v for v in faster.verdicts if not v.holds]
    assert len(days["1.5x traffic"].misses) == len(told)


def test_a_plan_asks_for_its_trace_when_it_is_solved_again(
    planned: tuple[Path, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = planned
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"replays burst\.csv, which is not here"):
        make_plan(question_of(plan))
    bursty(tmp_path / "burst.csv", at_once=119)
    with pytest.raises(UserError, match=r"burst\.csv is not the trace that the plan was made for"):
        make_plan(question_of(plan))
    (tmp_path / "burst.csv").write_text(path.read_text())
    assert make_plan(question_of(plan)) == plan


def test_a_plan_without_its_trace_is_simulated_as_poisson(
    planned: tuple[Path, Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, plan = planned
    monkeypatch.chdir(tmp_path)
    (smooth,) = replay(plan, requests=2000)
    monkeypatch.chdir(path.parent)
    (seen,) = replay(plan)
    assert smooth.result.books.arrived == 4000
    assert smooth.missing == ("burst.csv",)
    assert "burst.csv is not here: Poisson arrivals" in replay_text([smooth])
    assert seen.missing == ()
    assert seen.result.books.arrived == 1200
    assert seen.result.classes[0].value("ttft", "p99") > smooth.result.classes[0].value("ttft", "p99")


@pytest.mark.parametrize(
    ("at_once", "advice"), [(360, r"add [12] nodes? \(\d+ GPUs\) to pool h100"), (960, r"set ttft\.p99 to \d+ms")]
)
def test_where_no_count_survives_the_error_says_what_would(tmp_path: Path, at_once: int, advice: str) -> None:
    small = tmp_path / "fleet.yaml"
    small.write_text(FLEET.read_text().replace("nodes: 4", "nodes: 1"))
    trace = bursty(tmp_path / "wide.csv", at_once=at_once, bursts=3)
    with pytest.raises(UserError, match=r"keeps every promise of .* through the whole of wide\.csv") as caught:
        make_plan(asked(trace, fleet=small))
    assert caught.value.exit_code is Exit.NO_PLAN
    assert any(re.match(advice, h) for h in caught.value.helps), caught.value.helps


def test_classes_beside_a_replayed_one_keep_arriving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = bursty(tmp_path / "burst.csv", at_once=20)
    (tmp_path / "intent.yaml").write_text(
        f"""
objective: gpus
services:
  - name: mixed
    model: {MODEL}
    target: none
    fixed: {{tp: 1}}
    traffic:
      - {{name: bursts, trace: {trace.name}, arrivals: replay, slo: {{ttft.p99: 1s}}}}
      - {{name: chat, rate: 2/s, input: 500, output: 100, slo: {{ttft.p99: 1s}}}}
"""
    )
    plan = make_plan(ask(fleet=FLEET, intent_files=[tmp_path / "intent.yaml"]))
    monkeypatch.chdir(tmp_path)
    found = replay(plan)
    for r in found:
        assert all(v.holds for v in r.verdicts)
    assert {c.name for r in found for c in r.result.classes} == {"bursts", "chat"}


def test_a_trace_without_times_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n100,10\n")
    (tmp_path / "intent.yaml").write_text(
        f"services: [{{name: a, model: {MODEL}, traffic: [{{trace: lengths.csv, arrivals: replay}}]}}]\n"
    )
    with pytest.raises(UserError, match="has no arrival times"):
        ask(fleet=FLEET, intent_files=[tmp_path / "intent.yaml"])


def test_of_an_endless_trace_the_stretch_around_its_busiest_minute_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_ROWS", 200)
    quiet = [2.0 * i for i in range(600)]
    busy = [700.0 + i / 100 for i in range(100)]
    path = tmp_path / "long.csv"
    path.write_text(HEAD + "".join(f"{t:.2f},500,20\n" for t in sorted(quiet + busy)))
    q = asked(path)
    (found,) = traces_of(q, q.asks[0], dict(q.asks[0].rates)).values()
    times = [row.time_s for row in found.read()]
    assert len(times) == 200
    assert {t for t in times if t is not None} >= set(busy)
    assert "the busiest stretch of the trace" in make_plan(q).verification.note


def test_without_verification_a_plan_says_that_nothing_was_replayed(planned: tuple[Path, Plan]) -> None:
    path, plan = planned
    said = "burst.csv was not replayed; its busiest minute as Poisson arrivals stands for it"
    assert any(said in w for w in make_plan(asked(path), verify=False).warnings)
    assert not any("was not replayed" in w for w in plan.warnings)


def test_answers_after_the_last_arrival_count(tmp_path: Path) -> None:
    """A trace that ends in its burst asks for as much as one that goes on quietly after it."""
    quiet = [f"{2.0 * i:.2f},500,20" for i in range(60)]
    burst = [f"{120 + i / 1000:.3f},3000,300" for i in range(150)]
    ends, goes_on = tmp_path / "ends.csv", tmp_path / "goes_on.csv"
    ends.write_text(HEAD + "\n".join([*quiet, *burst]) + "\n")
    goes_on.write_text(HEAD + "\n".join([*quiet, *burst, "180,500,20"]) + "\n")
    slo = ("itl.p99=40ms", "ttft.p99=60s")
    plans = [make_plan(asked(path, slo=slo)) for path in (ends, goes_on)]
    assert plans[0].totals.gpus == plans[1].totals.gpus
    (seen,) = replay(plans[0], trace=ends)
    gaps = sum(b for c in seen.result.classes for b, _ in c.gap_sums)
    assert gaps == 60 * 19 + 150 * 299
    assert 0 < seen.result.pools[0].utilisation_ratio <= 1


def test_what_the_engine_would_refuse_is_refused(planned: tuple[Path, Plan], tmp_path: Path) -> None:
    _, plan = planned
    path = tmp_path / "long.csv"
    path.write_text(HEAD + "0,500,20\n1,200000,20\n2,500,20\n")
    (seen,) = replay(plan, trace=path)
    assert (seen.result.books.finished, seen.result.books.rejected) == (2, 1)
    assert "holds, but 1 request got no answer" in replay_text([seen])


def test_a_trace_is_found_around_its_plan(planned: tuple[Path, Plan], tmp_path: Path) -> None:
    path, plan = planned
    deploy = tmp_path / "service" / "deploy"
    deploy.mkdir(parents=True)
    assert replay(plan, folder=deploy, requests=500)[0].missing == ("burst.csv",)
    with pytest.raises(UserError, match="put it beside the plan"):
        resolve_again(plan, deploy)
    (deploy.parent / "burst.csv").write_text("timestamp_s,input_tokens,output_tokens\n0,1,1\n")  # another of its name
    (tmp_path / "burst.csv").write_text(path.read_text())
    (seen,) = replay(plan, folder=deploy)
    assert (seen.missing, seen.result.books.arrived) == ((), 1200)
    assert resolve_again(plan, deploy) == []
