"""Laws of rendering, over generated plans: what the plan says, every file says."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from planner.errors import UserError
from planner.plan.document import Plan
from planner.render import RenderedFile, render
from planner.render.sglang import sglang_argv
from planner.render.vllm import vllm_argv
from tests.render.cases import cases
from tests.render.manifests import SECRET, compose_gpus, documents, pods, requested
from tests.render.plans import fleet, plan, pool, service
from tests.render.test_platform import PLATFORMS

CASES = cases()
LAYOUTS = [
    (1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1), (8, 1, 1, 1), (8, 2, 1, 2), (16, 1, 1, 2), (1, 1, 8, 1), (1, 1, 16, 2),
    (2, 1, 8, 2),
]  # fmt: skip
CAPS = {
    "vllm": ("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"),
    "sglang": ("--max-running-requests", "--chunked-prefill-size", "--context-length"),
}


@st.composite
def plans(draw: Any) -> Plan:
    """Plans of every target, layout and role that the targets take."""
    gpu = draw(st.sampled_from(["h100-sxm", "h200-sxm", "b200", "mi300x"]))
    engine = draw(st.sampled_from(["vllm", "sglang"]))
    target = draw(st.sampled_from(["none", "kubernetes", "dynamo", "kserve", "llm-d", "compose"]))
    model = draw(st.sampled_from(["llama-3.1-8b", "llama-3.3-70b-fp8", "qwen3-235b-fp8", "deepseek-v3"]))
    moe = model in ("qwen3-235b-fp8", "deepseek-v3")
    split = draw(st.booleans())
    made = []
    for role in ("prefill", "decode") if split else ("aggregated",):
        tp, pp, dp, nodes = draw(st.sampled_from(LAYOUTS))
        assume(dp == 1 or moe)
        made.append(
            pool(
                "chat" if role == "aggregated" else f"chat-{role}",
                role=role,
                gpu=gpu,
                tp=tp,
                pp=pp,
                dp=dp,
                ep=moe and dp > 1,
                nodes=nodes,
                replicas=draw(st.integers(1, 5)),
                seqs=draw(st.sampled_from([8, 96, 256])),
                tokens=draw(st.sampled_from([512, 2048, 8192])),
                kv_dtype="fp8" if draw(st.just(False)) else "bf16",
            )
        )
    policy = draw(st.sampled_from(PLATFORMS))
    return plan(
        service("chat", model, engine=engine, target=target, pools=tuple(made)),
        fleet_=fleet(gpu, nodes=64),
        platform=policy,
    )


def rendered(p: Plan) -> tuple[RenderedFile, ...]:
    """The tree, unless the combination is refused by name."""
    try:
        return render(p)
    except UserError as e:
        if e.code not in ("not-supported", "image-unknown", "namespace", "mixed-pools"):
            raise
        reject()


@given(plans())
def test_files_say_what_the_plan_says(p: Plan) -> None:
    """GPUs, caps, names, the hand-shake of prefill and decode, and that nothing leaks."""
    files = rendered(p)
    check_gpus(p, files)
    check_caps(p)
    check_names(p, files)
    check_pair(p)


def check_gpus(p: Plan, files: tuple[RenderedFile, ...]) -> None:
    (s,) = p.services
    want = sum(q.gpus for q in s.pools)
    resource = p.fleet.pools[0].kubernetes.gpu_resource or ""
    planned = {q.name: q.replicas for q in s.pools}
    if s.target == "compose":
        assert compose_gpus(files) == want
    elif s.target != "none" and p.platform.resources != "dra":
        assert sum(requested(d, resource, planned) for _, d in documents(files)) == want
    values = next(yaml.safe_load(f.text) for f in files if f.path.name == "values.yaml")
    for v in values["pools"]:
        par = v["parallelism"]
        assert (
            par["tensor"] * par["pipeline"] * par["data"]
            == v["gpusPerReplica"]
            == v["gpusPerNode"] * v["nodesPerReplica"]
        )
    assert sum(v["replicas"] * v["gpusPerReplica"] for v in values["pools"]) == want


def check_caps(p: Plan) -> None:
    (s,) = p.services
    for q in s.pools:
        ranks = q.shape.dp if s.engine == "sglang" and s.model.is_moe else 1
        argv = (vllm_argv if s.engine == "vllm" else sglang_argv)(s, q, p) if s.target != "dynamo" else None
        if argv is None:
            continue
        wanted = (q.max_num_seqs * ranks, q.max_num_batched_tokens * ranks, q.max_model_len)
        assert [f"{n}={w}" for n, w in zip(CAPS[s.engine], wanted, strict=True) if f"{n}={w}" not in argv] == []


def check_names(p: Plan, files: tuple[RenderedFile, ...]) -> None:
    seen = set()
    for _, d in documents(files):
        name = d["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), name
        assert len(name) <= 45
        assert (d["apiVersion"], d["kind"], name) not in seen
        seen.add((d["apiVersion"], d["kind"], name))
        assert d["metadata"].get("namespace") == p.platform.namespace
    for f in files:
        assert not SECRET.search(f.text), f.path
        assert not re.search(r":latest\b", f.text), f.path
        assert not re.search(r"20\d\d-\d\d-\d\dT\d\d:", f.text), f.path


def check_pair(p: Plan) -> None:
    (s,) = p.services
    if len(s.pools) == 1 or s.target == "dynamo":
        return
    make = vllm_argv if s.engine == "vllm" else sglang_argv
    sides = [make(s, q, p) for q in s.pools]
    same = (
        "--kv-cache-dtype=",
        "--dtype=",
        "--model-path=",
        "--served-model-name=",
        "--quantization=",
        "--speculative",
    )
    first, second = ([a for a in side if a.startswith(same)] for side in sides)
    assert first == second
    if s.engine == "vllm":
        assert sides[0][2] == sides[1][2], "the model string is part of the hand-shake"


def pod_templates(files: tuple[RenderedFile, ...]) -> dict[str, Any]:
    """Everything whose change restarts a pod, and every ConfigMap's data."""
    found: dict[str, Any] = {}
    for path, d in documents(files):
        for i, pod in enumerate(pods(d)):
            found[f"{path} {d['kind']} {d['metadata']['name']} {i}"] = pod
        t = d.get("spec", {}).get("template", {}) if d["kind"] == "Deployment" else {}
        found[f"{path} {d['kind']} {d['metadata']['name']} labels"] = t.get("metadata")
    for f in files:
        if f.path.suffix == ".json":
            found[f.path.as_posix()] = f.text
    return found


@pytest.mark.parametrize("name", sorted(CASES))
def test_comments_digests_and_versions_restart_nothing(name: str) -> None:
    """Reasons, digests, planner version, solver and an unrelated service: no pod template and no ConfigMap changes."""
    p = CASES[name].plan
    before = pod_templates(render(p))
    data = p.model_dump(mode="json", exclude_none=True)
    data["planner_version"] = "9.9.9"
    data["digests"] = dict.fromkeys(data["digests"], "sha256:other")
    data["warnings"] = ["something new"]
    for s in data["services"]:
        s["why"] = ["for another reason"]
        for q in s["pools"]:
            q["reasons"] = {k: f"said otherwise: {v}" for k, v in q["reasons"].items()}
    changed = Plan.model_validate(data)
    assert pod_templates(render(changed)) == before
    other_doc, other_intent = service("other", pools=(pool("other", gpu=p.services[0].pools[0].gpu, replicas=1),))
    wider = p.model_copy(
        update={
            "services": (*p.services, other_doc),
            "intent": p.intent.model_copy(update={"services": (*p.intent.services, other_intent)}),
        }
    )
    try:
        after = pod_templates(render(wider))
    except UserError as e:  # the second service's target may need what this platform has not
        pytest.skip(e.message)
    assert {k: v for k, v in after.items() if not k.startswith("other/")} == before


def test_same_plan_same_bytes() -> None:
    for case in CASES.values():
        assert render(case.plan) == render(Plan.model_validate(case.plan.model_dump(mode="json", exclude_none=True)))
