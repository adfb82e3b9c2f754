"""`plan diff`: the right causes, proved by taking each back; the pods that restart; the words."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from planner.documents import dump_yaml
from planner.plan.document import OwnModel, Plan
from planner.report.causes import causes, revert
from planner.report.diff import diff
from planner.report.restarts import config_changes, files, restarts

Make = Callable[..., Plan]
Edit = Callable[[dict[str, Any]], Any]


def chat(**kw: Any) -> Edit:
    return lambda d: d["services"][0].update(kw)


def chat_slo(**kw: str) -> Edit:
    return lambda d: d["services"][0]["slo"].update({k.replace("_", "."): v for k, v in kw.items()})


def traffic(service: int, **kw: Any) -> Edit:
    return lambda d: d["services"][service]["traffic"][0].update(kw)


def pool(**kw: Any) -> Edit:
    return lambda d: d["pools"][0].update(kw)


def both(*edits: Edit) -> Edit:
    return lambda d: [e(d) for e in edits]


CHEAPER = {"per_gpu_hour": "$2.10/h", "source": "price list", "as_of": "2026-11"}

# (what changes, the causes by path). Twelve pairs with one input changed, four with two.
ONE: list[tuple[dict[str, Any], list[str]]] = [
    ({"intent": chat_slo(itl_p99="65ms")}, ["intent services.chat.slo.itl.p99: 50ms -> 65ms"]),
    ({"intent": chat_slo(itl_p99="25ms")}, ["intent services.chat.slo.itl.p99: 50ms -> 25ms"]),
    ({"intent": traffic(0, rate="36/s")}, ["intent services.chat.traffic.default.rate: 24/s -> 36/s"]),
    ({"intent": traffic(1, rate="80/s")}, ["intent services.autocomplete.traffic.default.rate: 40/s -> 80/s"]),
    ({"intent": chat(survive="none")}, ["intent services.chat.survive: 1 node -> none"]),
    ({"intent": chat(precisions=["bf16"])}, ["intent services.chat.precisions: [fp8] -> [bf16]"]),
    ({"intent": chat(fixed={"tp": 8})}, ["intent services.chat.fixed.tp: none -> 8"]),
    ({"intent": chat(load_cap=0.5)}, ["intent services.chat.load_cap: 0.8 -> 0.5"]),
    ({"intent": chat(max_context=32768)}, ["intent services.chat.max_context: none -> 32768"]),
    ({"intent": chat(gpu_memory_utilization=0.85)}, ["intent services.chat.gpu_memory_utilization: none -> 0.85"]),
    ({"fleet": pool(price=CHEAPER)}, ["fleet pools.h100.price.per_gpu_hour: $2.95/h -> $2.1/h"]),
    ({"intent": chat(engine_version="0.34.0")}, ["intent services.chat.engine_version: none -> 0.34.0"]),
]
TWO: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"intent": both(chat_slo(itl_p99="65ms"), traffic(1, rate="80/s"))},
        [
            "intent services.chat.slo.itl.p99: 50ms -> 65ms",
            "intent services.autocomplete.traffic.default.rate: 40/s -> 80/s",
        ],
    ),
    (
        {"intent": chat(fixed={"tp": 2}), "fleet": pool(price=CHEAPER)},
        ["intent services.chat.fixed.tp: none -> 2", "fleet pools.h100.price.per_gpu_hour: $2.95/h -> $2.1/h"],
    ),
    (
        {"intent": both(chat(survive="1 replica", load_cap=0.6))},
        ["intent services.chat.survive: 1 node -> 1 replica", "intent services.chat.load_cap: 0.8 -> 0.6"],
    ),
    (
        {"intent": both(traffic(0, rate="12/s"), chat(precisions=["bf16"]))},
        [
            "intent services.chat.traffic.default.rate: 24/s -> 12/s",
            "intent services.chat.precisions: [fp8] -> [bf16]",
        ],
    ),
]


@pytest.mark.parametrize(("change", "expected"), ONE + TWO)
def test_names_the_causes_and_taking_each_back_proves_it(
    make: Make, replan: Callable[..., Plan], change: dict[str, Any], expected: list[str]
) -> None:
    a, b = make(), make(**change)
    found = causes(a, b)
    assert sorted(str(c) for c in found) == sorted(expected)
    for cause in found:
        inputs = revert(cause, a, b)
        assert inputs is not None
        # Taken back, exactly this cause is gone and the others stay.
        left = causes(a, replan(*inputs))
        assert [str(c) for c in left] == [str(c) for c in found if c != cause]
    d = diff(a, b, replan=replan)
    assert not d.same
    if len(expected) == 1:
        assert [p.undoes for p in d.proofs] == ["nothing" if d.same_answer else "all"]


def test_two_causes_are_told_apart_by_their_share(make: Make, replan: Callable[..., Plan]) -> None:
    a = make()
    b = make(intent=both(chat_slo(itl_p99="65ms"), traffic(1, rate="80/s")))
    d = diff(a, b, replan=replan)
    assert {p.undoes for p in d.proofs} == {"part"}
    gpus = {p.cause.path: p.gpus for p in d.proofs}
    assert gpus["services.autocomplete.traffic.default.rate"] < b.totals.gpus


def test_an_idle_cause_is_named_and_proved_to_change_nothing(make: Make, replan: Callable[..., Plan]) -> None:
    a = make()
    b = make(intent=both(chat_slo(ttft_p95="900ms"), traffic(1, rate="80/s")))
    undoes = {p.cause.path: p.undoes for p in diff(a, b, replan=replan).proofs}
    assert undoes["services.chat.slo.ttft.p95"] == "nothing"
    assert undoes["services.autocomplete.traffic.default.rate"] == "all"


def test_same_plan_is_the_same(make: Make, render: Callable[[Plan], dict[str, str]]) -> None:
    d = diff(make(), make(), render=render)
    assert d.same
    assert d.causes == d.changes == d.restarts == d.files == ()
    assert "same" in d.to_text().splitlines()[0]


def test_a_newer_planner_with_the_same_answer_is_no_difference(
    make: Make, render: Callable[[Plan], dict[str, str]]
) -> None:
    d = diff(make(), make(version="0.2.0", catalog="b", calibration="c"), render=render)
    assert d.same
    assert [c.kind for c in d.causes] == ["catalogue", "calibration", "planner"]
    assert {f.status for f in d.files} == {"comments only"}
    assert not d.restarts
    assert "nothing restarts" in d.to_text()


def test_catalogue_and_calibration_are_causes_of_another_answer(make: Make) -> None:
    d = diff(make(), make(calibration="c", speed=0.8))
    assert not d.same
    assert [str(c) for c in d.causes] == ["calibration: aaaaaaaa -> cccccccc"]
    assert any(c.what == "chat pool" for c in d.changes)


def test_another_pool_is_a_choice_unless_the_fleet_changed(make: Make) -> None:
    other = make(fleet=pool(name="h200", gpu="h200-sxm"))
    same_fleet = other.model_copy(update={"digests": make().digests})
    assert causes(make(), same_fleet) == ()
    (cause,) = causes(make(), other)
    assert cause.kind == "fleet"
    assert cause.note == "h100 is no longer used; h200 is newly used"


def test_slack_and_misses(make: Make) -> None:
    a = make()
    b = make(intent=chat_slo(ttft_p95="400ms"))
    slo = next(s for s in diff(a, b).slos if s.metric == "ttft.p95")
    assert slo.slack_before == pytest.approx(0.35)
    assert slo.slack_after == pytest.approx(-0.3)
    assert "520ms MISS" in diff(a, b).to_text()
    assert "1 SLO MISSED" in diff(a, b).to_markdown()


def test_restarts_by_template_not_by_comment_or_replicas(make: Make, render: Callable[[Plan], dict[str, str]]) -> None:
    d = diff(make(), make(intent=traffic(0, rate="36/s")), render=render)
    assert [(r.action, r.workload, r.pods) for r in d.restarts] == [("scale", "Deployment/chat", 3)]
    d = diff(make(), make(intent=chat(fixed={"tp": 8})), render=render)
    hit = next(r for r in d.restarts if r.action == "restart")
    assert hit.because == ("--tensor-parallel-size: 4 -> 8",)
    assert hit.file == "chat/deployment.yaml"
    assert "restarts 4 pods of Deployment/chat" in d.to_text()


def test_widths_and_forms(make: Make, render: Callable[[Plan], dict[str, str]]) -> None:
    d = diff(make(), make(intent=chat(fixed={"tp": 8}), version="0.2.0"), render=render)
    for width in (60, 80, 120):
        assert max(len(line) for line in d.to_text(width).splitlines()) <= width
    data = json.loads(d.to_json())
    assert data["same"] is False
    assert data["causes"][0]["path"] == "services.chat.fixed.tp"
    assert "| chat pool |" in d.to_markdown()


def test_markdown_escapes_cells(make: Make) -> None:
    a, b = make(), make(intent=chat(model="a|b<script>"))
    text = diff(a, b).to_markdown()
    assert "<script>" not in text.replace("`a|b<script>`", "")


def test_groups_sets_and_graphs_restart_by_component() -> None:
    def dgd(tokens: int, replicas: int) -> dict[str, Any]:
        main = {"name": "main", "image": "x:1", "args": ["--max-num-seqs", str(tokens)]}
        component = {
            "name": "Decode",
            "type": "decode",
            "replicas": replicas,
            "podTemplate": {"spec": {"containers": [main]}},
        }
        front = {"name": "Frontend", "replicas": 1, "podTemplate": {"spec": {"containers": [{"name": "main"}]}}}
        kind = {"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": "chat"}}
        return {**kind, "spec": {"components": [front, component]}}

    a, b = {"d.yaml": dump_yaml(dgd(64, 3))}, {"d.yaml": dump_yaml(dgd(96, 3))}
    (one,) = restarts(a, b)
    assert (one.action, one.workload, one.pods) == ("restart", "DynamoGraphDeployment/chat/Decode", 3)
    assert one.because == ("--max-num-seqs: 64 -> 96",)

    def lws(image: str) -> dict[str, str]:
        pod = {"spec": {"containers": [{"name": "w", "image": image}]}}
        spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod}}
        return {"l.yaml": dump_yaml({"kind": "LeaderWorkerSet", "metadata": {"name": "big"}, "spec": spec})}

    (one,) = restarts(lws("a:1"), lws("a:2"))
    assert (one.pods, one.because) == (8, ("worker.spec.containers.w.image: a:1 -> a:2",))


def test_config_maps_restart_nothing_and_are_said() -> None:
    def tree(value: str) -> dict[str, str]:
        return {"c.yaml": f"# note\nkind: ConfigMap\nmetadata:\n  name: conf\ndata:\n  a: {value}\n"}

    assert restarts(tree("x"), tree("y")) == ()
    assert config_changes(tree("x"), tree("y")) == ("ConfigMap/conf",)
    assert [(f.path, f.status, f.added, f.removed) for f in files(tree("x"), tree("y"))] == [
        ("c.yaml", "changed", 1, 1)
    ]
    assert [f.status for f in files(tree("x"), {})] == ["removed"]


def test_an_own_model_whose_config_changed_is_a_cause(make: Make) -> None:
    def with_config(layers: int) -> Plan:
        own = OwnModel(name="/models/mine", config={"architectures": ["X"], "num_hidden_layers": layers})
        return make().model_copy(update={"own_models": (own,)})

    (cause,) = causes(with_config(32), with_config(40))
    assert str(cause) == "catalogue /models/mine.config.num_hidden_layers: 32 -> 40"
    assert revert(cause, with_config(32), with_config(40)) is None


def test_power_that_is_not_known(make: Make) -> None:
    a = make()
    b = a.model_copy(update={"totals": a.totals.model_copy(update={"power": None})})
    assert [(c.what, c.after) for c in diff(a, b).changes] == [("power", "unknown")]
