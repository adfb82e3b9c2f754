"""A pool whose classes differ in priority: the engines are told, clients are told, and Dynamo is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from planner.errors import UserError
from planner.intent.document import Service
from planner.plan.document import ClassDoc, Plan, ServiceDoc
from planner.render import render
from planner.render.flags import check
from planner.render.sglang import sglang_argv
from planner.render.vllm import vllm_argv
from tests.render.plans import figures, plan, pool, service

WHY = "lower is served first: chat 0, batch 10, as each request's `priority` says"
SGLANG_FLAGS = [
    "--enable-priority-scheduling",
    "--schedule-low-priority-values-first",
    "--default-priority-value=0",
    "--disable-priority-preemption",
    "--retraction-policy=priority",
]


def two_classes(engine: str = "vllm", *, target: str = "kubernetes", ranked: bool = True) -> tuple[ServiceDoc, Service]:
    """Chat at 0 beside batch at 10 in one pool."""
    places = {"chat": 0, "batch": 10 if ranked else 0}
    classes = tuple(
        ClassDoc.model_validate(
            {"name": n, "rate": "6/s", "priority": p if ranked else None, "input_mean_tokens": 3500.0,
             "output_mean_tokens": 500.0, "figures": figures()}
        )
        for n, p in places.items()
    )  # fmt: skip
    more: dict[str, Any] = {"classes": classes, "scheduling": "priority" if ranked else None}
    reasons = {"scheduling": WHY} if ranked else {}
    doc, intent = service(engine=engine, target=target, pools=(pool(reasons=reasons, **more),))
    traffic = tuple(intent.traffic[0].model_copy(update={"name": n, "priority": p}) for n, p in places.items())
    return doc, intent.model_copy(update={"traffic": traffic})


def rendered(engine: str = "vllm", **more: Any) -> dict[str, str]:
    return {str(f.path): f.text for f in render(plan(two_classes(engine, **more)))}


def _first(p: Plan) -> tuple[Any, Any, Plan]:
    return p.services[0], p.services[0].pools[0], p


def test_vllm_is_told() -> None:
    assert "--scheduling-policy=priority" in vllm_argv(*_first(plan(two_classes())))
    assert not any("scheduling" in w for w in vllm_argv(*_first(plan(two_classes(ranked=False)))))
    files = rendered()
    config = next(t for p, t in files.items() if p.endswith("vllm/chat.config.yaml"))
    assert yaml.safe_load(config)["scheduling-policy"] == "priority"
    deployment = next(t for p, t in files.items() if p.endswith("kubernetes/deployment.yaml"))
    assert f"--scheduling-policy=priority  # {WHY}" in deployment


def test_sglang_is_told_to_do_as_vllm_does() -> None:
    argv = sglang_argv(*_first(plan(two_classes("sglang"))))
    assert [w for w in argv if w in SGLANG_FLAGS] == SGLANG_FLAGS
    plain = sglang_argv(*_first(plan(two_classes("sglang", ranked=False))))
    assert not set(SGLANG_FLAGS) & set(plain)
    config = next(t for p, t in rendered("sglang").items() if p.endswith("sglang/chat.config.yaml"))
    told = yaml.safe_load(config)
    assert told["schedule-low-priority-values-first"] is True
    assert told["default-priority-value"] == 0


@pytest.mark.parametrize("target", ["kubernetes", "llm-d", "kserve", "compose", "none"])
def test_every_target_that_runs_vllm_itself_passes_it_on(target: str) -> None:
    assert any("scheduling-policy" in t for t in rendered(target=target).values())


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_dynamo_is_refused_by_name(engine: str) -> None:
    with pytest.raises(UserError, match=r"different priority in one pool.*target dynamo"):
        rendered(engine, target="dynamo")
    assert rendered(engine, target="dynamo", ranked=False)


def test_load_tests_send_each_class_at_its_place() -> None:
    files = rendered()
    for name, place in (("chat", 0), ("batch", 10)):
        bench = {p.rpartition("/")[2]: t for p, t in files.items() if f"/bench/{name}-" in p}
        assert f"--extra-body='{{\"priority\":{place}}}'" in bench[f"{name}-vllm.sh"]
        assert f"--extra-request-body='{{\"priority\":{place}}}'" in bench[f"{name}-sglang.sh"]
        assert f"--extra-inputs priority:{place} " in bench[f"{name}-aiperf.sh"]
        assert f'"extras":{{"body":{{"priority":{place}}}}}' in bench[f"{name}-guidellm.sh"]
        assert "no option of this client is known" in bench[f"{name}-inference-perf.yaml"]
        assert all(f"priority: {place}" in t for t in bench.values())
    readme = next(t for p, t in files.items() if p.endswith("bench/README.md"))
    assert "every request must carry" in readme
    assert not any("riority" in t for p, t in rendered(ranked=False).items() if "/bench/" in p)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--schedule-low-priority-values-first"], "needs --enable-priority-scheduling"),
        (["--default-priority-value=0"], "needs --enable-priority-scheduling"),
        (["--retraction-policy=priority"], "needs --enable-priority-scheduling"),
        (["--enable-priority-scheduling", "--schedule-policy=lpm"], "fcfs or lof"),
    ],
)
def test_what_sglang_would_refuse_or_ignore(argv: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check("sglang", "0.5.23", argv)


def test_what_sglang_takes() -> None:
    check("sglang", "0.5.23", SGLANG_FLAGS)
    check("sglang", "0.5.23", ["--retraction-policy=length", "--schedule-policy=lpm"])
