"""What is enumerated, and that pruning it never loses the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handmade import fleet
from hypothesis import given, settings
from hypothesis import strategies as st
from questions import real_ask

from planner.candidates import candidates, frontier, handover_of, predict
from planner.candidates.ask import class_groups
from planner.candidates.enumerate import roles_of
from planner.candidates.handover import decode_slos, prefill_slos
from planner.candidates.replica import classes_of, hardware_of, load_model, table_of
from planner.candidates.shapes import nodes_of, shapes, staged_shapes
from planner.candidates.sizing import graph_size
from planner.errors import Exit, UserError
from planner.intent.document import Fixed
from planner.perf.arch import Shape
from planner.solve import solve

H100 = fleet({"name": "h", "gpu": "h100-sxm", "nodes": 2, "rdma": True, "nic": "400Gbit/s"})
MIXED = fleet({"name": "h", "gpu": "h100-sxm", "nodes": 1}, {"name": "l", "gpu": "l40s", "nodes": 2, "price": "$0.5/h"})


def test_every_candidate_fits_and_is_told_apart() -> None:
    found = candidates(real_ask(MIXED, pools="auto", survive="1 node"))
    assert len({(c.key, c.class_names) for c in found}) == len(found)
    assert {c.fleet_pool for c in found} == {"h", "l"}
    assert {c.deployment.shape.tp for c in found if c.fleet_pool == "h"} == {1, 2, 4, 8}
    for c in found:
        assert c.memory.fits
        assert c.memory.fits_one(c.caps.max_model_len)
        assert c.caps.max_num_batched_tokens >= c.caps.max_num_seqs or c.role == "prefill"
        assert c.caps.max_num_seqs == graph_size(c.caps.max_num_seqs, 512)
        assert c.gpus <= 16
        assert 0 <= c.load.planned_rps <= 0.8 * c.load.lambda_max_rps + 1e-9
        assert c.load.planned_rps <= c.load.degraded_rps <= 0.95 * c.load.lambda_max_rps + 1e-9
        assert c.load.planned_rps <= c.load.lambda_slo_rps + 1e-9


def test_planned_rate_holds_every_promise_with_its_margin() -> None:
    ask = real_ask(H100, slo={"itl": "40ms", "ttft": "1s"})
    for c in candidates(ask):
        if c.load.planned_rps > 0:
            figures = load_model(ask, c).evaluate(c.load.planned_rps).classes[0]
            assert figures.itl.stat("p99") <= 0.04
            assert figures.ttft.stat("p99") <= 1.0


def test_pruning_keeps_the_answer() -> None:
    """Brute force: every pair of caps evaluated to the end, none set aside."""
    on = fleet({"name": "h", "gpu": "h100-sxm", "nodes": 4, "gpus_per_node": 2, "rdma": True, "nic": "400Gbit/s"})
    for kw in (
        {"slo": {"itl": "40ms", "ttft": "800ms"}, "traffic": {"input": 2000, "output": 200, "rate": "30/s"}},
        {"slo": {"itl": "25ms"}, "traffic": {"input": 500, "output": 300, "rate": "60/s"}, "survive": "1 node"},
        {"slo": {"itl.mean": "15ms", "e2e": "9s"}, "traffic": {"input": 900, "output": 300}},
    ):
        ask = real_ask(on, **kw)
        few, every = candidates(ask), candidates(ask, prune=False)
        assert {c.key for c in few} < {c.key for c in every}
        answers = [
            solve([ask], on, evaluate=lambda a, p=p: candidates(a, prune=p), predict=predict, explain=False)
            for p in (True, False)
        ]
        lean = candidates(replace(ask, lean=True))
        assert len(lean) < len(few)
        answers.append(solve([replace(ask, lean=True)], on, evaluate=candidates, predict=predict, explain=False))
        assert answers[0].services == answers[1].services == answers[2].services
        assert len({(a.value, a.scale) for a in answers}) == 1


@settings(max_examples=8)
@given(st.integers(12, 90), st.integers(1, 60))
def test_stricter_promise_never_carries_more(limit_ms: int, more_ms: int) -> None:
    """At a fixed shape and fixed caps: whatever the search does, the planned rate is monotone."""
    fixed = {"tp": 2, "max_num_seqs": 128, "max_num_batched_tokens": 2048}

    def planned(limit: int) -> float:
        (c,) = candidates(real_ask(H100, fixed=fixed, slo={"itl": f"{limit}ms"}, margins=()))
        return c.load.planned_rps

    assert planned(limit_ms) <= planned(limit_ms + more_ms)


def test_a_promise_holds_at_every_rate_below_the_planned_one() -> None:
    """p99 of gaps jumps where every hundredth gap meets a prompt, at a rate far below what the replica is stable at."""
    ask = real_ask(
        H100, model="meta-llama/Llama-3.3-70B-Instruct", precisions=["fp8"], slo={"itl": "13ms"},
        traffic={"input": 1000, "output": 200},
    )  # fmt: skip
    found = [c for c in candidates(ask) if c.load.planned_rps > 0]
    assert found
    for c in found:
        model = load_model(ask, c)
        for share in (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 1.0):
            figures = model.evaluate(share * c.load.planned_rps).classes[0]
            assert figures.itl.stat("p99") <= 0.013, (c.key, share)


def test_caps_of_a_stricter_promise_are_asked_about_under_a_looser_one_too() -> None:
    from planner.candidates.sizing import Mix, cap_pairs

    ask = real_ask(H100, fixed={"tp": 2})
    d = candidates(ask)[0].deployment
    table = table_of(d, budget=16384, seqs=512)
    before: set[tuple[int, int]] = set()
    for limit_s in (0.005, 0.009, 0.012, 0.02, 0.021, 0.05, 0.3, None):
        pairs = cap_pairs(table, Mix(3750, 3500, limit_s), kv_sequences=310, largest=512)
        now = {*pairs.sized, *pairs.others}
        assert before <= now
        assert len(now) == len((*pairs.sized, *pairs.others)) <= 120
        assert any(b == 128 and s <= 128 for s, b in now)
        before = now


def test_stages_are_asked_about_where_replicas_span_nodes() -> None:
    four = fleet({"name": "h", "gpu": "h100-sxm", "nodes": 4, "rdma": True, "nic": "400Gbit/s"})
    ask = real_ask(four, model="deepseek-ai/DeepSeek-V3", traffic={"input": 1000, "output": 200})
    best = max(candidates(ask), key=lambda c: c.load.planned_rps / c.gpus)
    assert best.deployment.shape.pp > 1


def test_fixed_caps_that_cannot_go_together_say_so() -> None:
    found = candidates(real_ask(H100, fixed={"max_num_batched_tokens": 128}))
    assert all(c.caps.max_num_seqs <= 128 for c in found)
    with pytest.raises(UserError, match="one step of 256 sequences needs max_num_batched_tokens of 256 or more"):
        candidates(real_ask(H100, fixed={"max_num_seqs": 256, "max_num_batched_tokens": 128}))


def test_faster_memory_never_carries_less() -> None:
    def planned(bandwidth: str) -> list[float]:
        on = fleet({"name": "h", "gpu": "h100-sxm", "nodes": 1, "override": {"hbm_bandwidth": bandwidth}})
        fixed = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
        return [c.load.planned_rps for c in candidates(real_ask(on, fixed=fixed, slo={"itl": "30ms"}))]

    slow, usual, fast = planned("2TB/s"), planned("3.35TB/s"), planned("6TB/s")
    assert all(a <= b <= c for a, b, c in zip(slow, usual, fast, strict=True))


def test_same_candidates_every_time() -> None:
    ask = real_ask(MIXED, slo={"itl": "60ms", "ttft": "2s"})
    assert candidates(ask) == candidates(replace(ask))


def test_fixed_choices_are_kept() -> None:
    found = candidates(real_ask(H100, fixed={"tp": 4, "max_num_seqs": 77, "max_num_batched_tokens": 3000}))
    assert {(c.deployment.shape.tp, c.caps.max_num_seqs, c.caps.max_num_batched_tokens) for c in found} == {
        (4, 77, 3000)
    }
    assert {c.fleet_pool for c in candidates(real_ask(MIXED, fixed={"gpu": "L40S"}))} == {"l"}


def test_what_runs_today_stays_in() -> None:
    ask = real_ask(H100)
    key = "h h100-sxm tp8 bf16 kv-bf16 b16384 s24 aggregated"
    assert key not in {c.key for c in candidates(ask)}
    assert key in {c.key for c in candidates(replace(ask, today=(key,)))}


def test_accuracy_floor_marks_and_does_not_drop() -> None:
    found = candidates(real_ask(H100, precisions=["bf16", "fp8"], accuracy_floor=0.9999))
    assert {c.deployment.precision: c.rejected_by for c in found} == {"bf16": (), "fp8": ("accuracy-floor",)}


def test_announced_gpus_are_chosen_only_when_asked_for() -> None:
    on = fleet({"name": "v", "gpu": "vr200-nvl72", "nodes": 2, "gpus_per_node": 4, "override": {"memory": "270GB"}})
    with pytest.raises(UserError) as e:
        candidates(real_ask(on))
    assert e.value.code == "no-configuration"


def test_what_fits_nowhere_is_said_with_the_reason() -> None:
    on = fleet({"name": "l", "gpu": "l4", "nodes": 1, "gpus_per_node": 1})
    with pytest.raises(UserError) as e:
        candidates(real_ask(on, model="meta-llama/Llama-3.3-70B-Instruct"))
    assert e.value.exit_code is Exit.NO_PLAN
    text = str(e.value)
    assert "nothing on fleet toys runs meta-llama/Llama-3.3-70B-Instruct (bf16) with vllm" in text
    assert "l (l4) bf16 tp1: no memory is left for the cache" in text


def test_request_longer_than_the_model_reads() -> None:
    with pytest.raises(UserError) as e:
        candidates(real_ask(H100, max_context=200_000))
    assert e.value.code == "context-too-long"


def test_stages_only_where_nothing_else_fits() -> None:
    small = fleet({"name": "a", "gpu": "a100-40-sxm", "nodes": 2, "gpus_per_node": 2, "nic": "200Gbit/s"})
    found = candidates(
        real_ask(
            small,
            model="meta-llama/Llama-3.3-70B-Instruct",
            traffic={"input": 200, "output": 50},
            slo={},
            precisions=["fp8"],
        )
    )
    assert {c.deployment.shape.label for c in found} == {"tp2 pp2"}
    assert {(c.gpus, c.nodes) for c in found} == {(4, 2)}


def test_groups_grow_to_the_fast_link_domain() -> None:
    rack = fleet({"name": "g", "gpu": "gb200-nvl72", "nodes": 18, "gpus_per_node": 4})
    ask = real_ask(rack, model="deepseek-ai/DeepSeek-V3")
    from planner.candidates.replica import arch_of, model_of

    hw = hardware_of(rack.pools[0])
    labels = {s.label for s in shapes(arch_of(model_of(ask)), hw, pool_gpus=72)}
    assert {"tp8", "tp16", "dp16 ep", "dp64 ep"} <= labels
    assert nodes_of(Shape(tp=8), hw) == 2
    assert nodes_of(Shape(tp=4), hw) == 0
    assert all(s.pp > 1 for s in staged_shapes(arch_of(model_of(ask)), hw, pool_gpus=72))
    assert shapes(arch_of(model_of(ask)), hw, pool_gpus=72, fixed=Fixed(tp=8, ep=True)) == (
        Shape(tp=8, ep=True), *(Shape(tp=8, dp=n, ep=True) for n in (4, 8)),
    )  # fmt: skip


# ---------------------------------------------------------------- prefill and decode


def test_roles_follow_the_service() -> None:
    hw = hardware_of(H100.pools[0])
    assert roles_of(real_ask(H100), hw) == ("aggregated",)
    assert roles_of(real_ask(H100, pools="auto"), hw) == ("aggregated", "prefill", "decode")
    assert roles_of(real_ask(H100, pools="disaggregated"), hw) == ("prefill", "decode")


def test_each_side_holds_its_part_of_the_promises() -> None:
    ask = real_ask(H100, pools="disaggregated", slo={"itl": "30ms", "ttft": "2s", "e2e": "20s"})
    found = candidates(ask)
    p = next(c for c in found if c.role == "prefill")
    classes = classes_of(ask, p.class_names)
    mine = prefill_slos(p.deployment, table_of(p.deployment, budget=8192, seqs=64), classes, decode_seqs=64)
    assert mine is not None
    limits = {s.stat: s.limit_s for s in mine["default"]}
    assert 0 < limits["p99"] < 2.0
    assert 0 < limits["p99.5"] < 5.0
    assert [str(s) for s in decode_slos(classes)["default"]] == ["e2e.p99.5=15s", "itl.p99=30ms"]


def test_pair_tells_ttft_once_and_moves_the_cache() -> None:
    ask = real_ask(
        H100,
        pools="disaggregated",
        traffic={"input": 3000, "output": 300, "rate": "20/s"},
        slo={"itl": "30ms", "ttft": "3s"},
    )
    s = solve([ask], H100, evaluate=candidates, predict=predict)
    p, d = sorted(s.services[0].pools, key=lambda x: x.candidate.role, reverse=True)
    assert {x.metric.split(".")[0] for x in p.predictions} == {"ttft"}
    assert {x.metric.split(".")[0] for x in d.predictions} == {"itl", "tpot", "e2e"}
    handover = handover_of(ask, p.candidate, d.candidate)
    assert handover.bytes_per_token == 131072
    assert p.rate_rps == d.rate_rps == 20


# ---------------------------------------------------------------- frontier


def test_frontier_trades_one_figure_for_the_other() -> None:
    f = frontier(real_ask(fleet({"name": "h", "nodes": 1}), slo={}))
    assert len(f.speed) > 5
    for points, a, b in (
        (f.speed, "user_tokens_per_s", "gpu_tokens_per_s"),
        (f.cost, "ttft_p99_s", "dollars_per_million_tokens"),
    ):
        first = [getattr(p, a) for p in points]
        second = [getattr(p, b) for p in points]
        assert first == sorted(first, reverse=a == "user_tokens_per_s")
        assert second == sorted(second, reverse=b == "dollars_per_million_tokens")
        assert len(set(second)) == len(second)


def test_class_groups_cover_every_class_once() -> None:
    for n in range(1, 6):
        names = tuple("abcde"[:n])
        for split in class_groups(names):
            assert sorted(x for g in split for x in g) == list(names)


# ---------------------------------------------------------------- speculation


def test_accepted_drafts_raise_what_a_replica_carries() -> None:
    """Under a promise that keeps batches small; a saturated replica has no arithmetic to spare for drafts."""

    def most(**speculation: object) -> float:
        kw = {"speculation": speculation} if speculation else {}
        on = fleet({"name": "h", "nodes": 1})
        slo = {"tpot.mean": "8ms"}
        found = candidates(real_ask(on, slo=slo, traffic={"input": 200, "output": 800}, fixed={"tp": 1}, **kw))
        return max(c.load.planned_rps for c in found)

    plain = most()
    assert most(method="ngram", tokens=3, acceptance=0.7) > plain
    assert most(method="ngram", tokens=3, acceptance=0.7) >= most(method="eagle3", tokens=3, acceptance=0.7)
    with pytest.raises(UserError) as e:
        most(method="draft_model", tokens=3, acceptance=0.7, draft_model="x")
    assert e.value.code == "not-supported"
