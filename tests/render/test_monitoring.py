"""Alerts stand on bucket edges, scaling on the plan's concurrency, load tests on its traffic."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
import yaml

from planner.catalog.engines import find_engine
from planner.intent.document import Lengths
from planner.intent.platform import Platform
from planner.plan.document import Plan
from planner.render import render
from planner.render.bench import cv, slug
from planner.render.monitoring import edge
from tests.render.manifests import documents
from tests.render.plans import plan, pool, service

MONITORED = Platform(monitoring=True)


def rules(p: Plan) -> dict[str, str]:
    rule = next(d for _, d in documents(render(p)) if d["kind"] == "PrometheusRule")
    return {r["alert"]: r["expr"] for r in rule["spec"]["groups"][0]["rules"]}


def args(p: Plan) -> list[str]:
    d = next(d for _, d in documents(render(p)) if d["kind"] == "Deployment")
    return list(d["spec"]["template"]["spec"]["containers"][0]["args"])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_alerts_stand_on_edges_that_the_engine_exports(engine: str) -> None:
    """50 ms and 800 ms: vLLM has no edge at 0.8 s and SGLang none at 50 ms of its own; the launch adds it."""
    p = plan(service(engine=engine), platform=MONITORED)
    found = rules(p)
    itl = re.search(r'le="([\d.]+)"', found["ChatItlP99"])
    ttft = re.search(r'le="([\d.]+)"', found["ChatTtftP95"])
    assert itl is not None
    assert ttft is not None
    assert (itl[1], ttft[1]) == ("0.05", "0.8")
    if engine == "vllm":
        flag = next(a for a in args(p) if a.startswith("--custom-histogram-buckets="))
        custom = json.loads(flag.partition("=")[2])
        assert 0.8 in custom["time_to_first_token"]
        assert "inter_token_latency" not in custom  # 50 ms is an edge of its own
    else:
        words = args(p)
        i = words.index("--bucket-inter-token-latency")
        assert "0.05" in words[i:]
        assert "--bucket-time-to-first-token" not in words  # 800 ms is


def test_edges_snap_honestly_where_they_cannot_be_set() -> None:
    fixed = find_engine("vllm").model_copy(update={"bucket_families": {}})
    # planned below the edge under the limit: that edge
    assert edge(fixed, "ttft", 0.8, 0.7) == (0.75, " (measured at 750ms, the nearest edge of the engine's histogram)")
    # planned above it: an alert there would never be silent, so the edge above
    assert edge(fixed, "ttft", 0.8, 0.78) == (1.0, " (measured at 1s, the nearest edge of the engine's histogram)")
    assert edge(fixed, "itl", 0.05, 0.044) == (0.05, "")
    assert edge(fixed, "ttft", 5000.0, 4000.0) is None
    assert edge(None, "itl", 0.05, 0.04) is None


def test_alert_share_is_the_percentile() -> None:
    found = rules(plan(platform=MONITORED))
    assert found["ChatItlP99"].endswith("> 0.01")
    assert found["ChatTtftP95"].endswith("> 0.05")
    assert ">= 96" in found["ChatBatchFull"]
    assert "> 12.0" in found["ChatRateAbovePlan"]
    assert "< 3" in found["ChatReplicasMissing"]


def test_every_metric_of_an_alert_is_the_engines_own() -> None:
    for engine in ("vllm", "sglang"):
        names = set(find_engine(engine).metrics.values())
        for expr in rules(plan(service(engine=engine), platform=MONITORED)).values():
            for name in re.findall(rf"{engine}:[a-z0-9_]+", expr):
                assert re.sub(r"_(bucket|count|sum)$", "", name) in names


def test_dashboard_shows_planned_beside_actual() -> None:
    files = {f.path.name: f.text for f in render(plan(platform=MONITORED))}
    board = json.loads(files["dashboard.json"])
    itl = next(p for p in board["panels"] if p["title"] == "chat: itl p99")
    assert {t["legendFormat"]: t["expr"] for t in itl["targets"]}["planned"] == "vector(0.044)"
    assert {t["legendFormat"]: t["expr"] for t in itl["targets"]}["limit"] == "vector(0.05)"
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])
    made = yaml.safe_load(files["kustomization.yaml"])["configMapGenerator"][0]
    assert made["files"] == ["dashboard.json"]


def scaled(**more: Any) -> dict[str, Any]:
    platform = Platform(autoscaling="keda", prometheus_url="http://p:9090")
    p = plan(service(pools=(pool(replicas=10, rate=40.0),), **more), platform=platform)
    documents_ = list(documents(render(p)))
    deployment = next(d for _, d in documents_ if d["kind"] == "Deployment")
    assert "replicas" not in deployment["spec"]
    found: dict[str, Any] = next(d for _, d in documents_ if d["kind"] == "ScaledObject")
    return found


def test_scaling_goes_from_the_trough_to_the_plan() -> None:
    spec = scaled(trough=0.31)["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (4, 10)
    assert scaled(trough=0.31, survive="1 node")["spec"]["minReplicaCount"] == 5
    # no trough known: scaling in would be a guess
    assert scaled()["spec"]["minReplicaCount"] == 10


def test_threshold_is_the_planned_concurrency_rounded_down() -> None:
    """41 running per replica at the planned peak: N replicas at the threshold carry what N are planned to."""
    trigger = scaled(trough=0.5)["spec"]["triggers"][0]
    assert trigger["metadata"]["threshold"] == "41"
    assert trigger["metricType"] == "AverageValue"
    assert trigger["metadata"]["query"].count('app_kubernetes_io_name="chat"') == 2


def test_cooldown_outlasts_a_start() -> None:
    assert scaled()["spec"]["cooldownPeriod"] >= 780


def test_surge_only_where_a_replica_surely_fits() -> None:
    """Pods of one size: a free slot; mixed sizes: the worst placement counts."""

    def strategy(*services: Any) -> dict[str, Any]:
        d = next(
            d
            for _, d in documents(render(plan(*services)))
            if d["metadata"]["name"] == "chat" and d["kind"] == "Deployment"
        )
        return dict(d["spec"]["strategy"]["rollingUpdate"])

    up, down = {"maxSurge": 1, "maxUnavailable": 0}, {"maxSurge": 0, "maxUnavailable": 1}
    assert strategy(service(pools=(pool(tp=8, replicas=3),))) == up
    assert strategy(service(pools=(pool(tp=8, replicas=4),))) == down
    # 28 GPUs are free, but four pods of one GPU can stand on four nodes: no eight in a row
    small = service("code", pools=(pool("code", tp=1, replicas=4),))
    assert strategy(service(pools=(pool(tp=8, replicas=1),)), small) == down
    few = service("code", pools=(pool("code", tp=1, replicas=1),))
    assert strategy(service(pools=(pool(tp=8, replicas=1),)), few) == up


@pytest.mark.parametrize("p", ["p90", "p95", "p99"])
def test_spread_of_a_lognormal(p: str) -> None:
    """A lognormal of CV 0.8: its percentile gives the CV back."""
    from statistics import NormalDist

    s = math.sqrt(math.log(1 + 0.8**2))
    z = NormalDist().inv_cdf(int(p[1:]) / 100)
    value = round(1_000_000 * math.exp(z * s - s * s / 2))
    assert cv(Lengths.model_validate({"mean": 1_000_000, p: value})) == pytest.approx(0.8, rel=1e-4)


def test_spread_of_a_histogram_and_a_constant() -> None:
    assert cv(Lengths(histogram=((100, 1.0), (300, 1.0)))) == pytest.approx(0.5)
    assert cv(Lengths(mean=100.0, cv=0.0)) == 0
    assert cv(Lengths(mean=100.0, p50=80)) == pytest.approx(math.sqrt(math.expm1(2 * math.log(1.25))))


def test_class_names_become_file_names() -> None:
    assert slug("Chat / EU (peak)") == "chat-eu-peak"
    assert slug("模型") == "class"


def test_load_test_carries_the_plans_traffic() -> None:
    """12/s for ten minutes; half the prompt in a shared prefix; SGLang's range closed: lengths are the nominal."""
    files = {f.path.name: f.text for f in render(plan(service(prefix_cache=0.5)))}
    assert "--num-prompts=7200" in files["default-vllm.sh"]
    assert "--request-rate=12.0" in files["default-vllm.sh"]
    assert "--random-prefix-len=1750" in files["default-vllm.sh"]
    assert "--random-input-len=1750" in files["default-vllm.sh"]
    assert "--goodput tpot:50.0 ttft:800.0" in files["default-vllm.sh"]
    assert "--random-range-ratio=1" in files["default-sglang.sh"]
    data = yaml.safe_load(files["default-inference-perf.yaml"])
    assert data["load"]["stages"] == [{"rate": 12.0, "duration": 600}]
    assert data["data"]["input_distribution"]["mean"] == 3500


def test_prefill_and_decode_are_tested_at_the_whole_rate_once() -> None:
    from tests.render.cases import cases

    files = {f.path.as_posix(): f.text for f in render(cases()["sglang-kubernetes-pd"].plan)}
    assert "--request-rate=12.0" in files["chat/bench/default-vllm.sh"]


def test_summary_says_how_to_apply_and_take_back() -> None:
    text = next(f.text for f in render(plan()) if f.path.name == "SUMMARY.md")
    for part in (
        "3 of 32 GPUs, $9.00/h",
        "kubectl apply -k chat/kubernetes",
        "git revert COMMIT",
        "50ms",
        "odds",
        "To decide",
    ):
        assert part in text
