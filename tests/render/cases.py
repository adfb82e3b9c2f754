"""The matrix of golden trees: engine x target x aggregated or P/D x one or several nodes x dense, MoE, MLA x vendor.

Each case is named after what it shows and keeps only the folders that show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.intent.platform import Platform
from planner.plan.document import Plan, PoolDoc, SpeculationDoc
from tests.render.plans import fleet, plan, pool, service


@dataclass(frozen=True, slots=True)
class Case:
    """A plan and the parts of its tree that are held as golden files."""

    plan: Plan
    keep: tuple[str, ...]
    gpu: str
    """The GPU by the name that the engines' own checkers know, or `amd`."""


ROUTER = {"vllm-router": "registry.example/vllm-router:0.1.17"}
FULL: dict[str, Any] = {
    "namespace": "inference",
    "labels": {"team": "search"},
    "annotations": {"example.com/cost-center": "4711"},
    "pull_secrets": ["registry"],
    "priority_class": "production",
    "prometheus_url": "http://prometheus.monitoring:9090",
    "monitoring": True,
    "network_policy": True,
    "autoscaling": "keda",
    "images": ROUTER,
}


def platform(**more: Any) -> Platform:
    return Platform.model_validate(more)


def pair(
    tp_prefill: int = 2, tp_decode: int = 4, *, name: str = "chat", replicas: tuple[int, int] = (2, 2), **more: Any
) -> tuple[PoolDoc, PoolDoc]:
    """Prefill and decode pools."""
    return (
        pool(f"{name}-prefill", role="prefill", tp=tp_prefill, replicas=replicas[0], seqs=32, tokens=8192, **more),
        pool(f"{name}-decode", role="decode", tp=tp_decode, replicas=replicas[1], seqs=128, tokens=512, **more),
    )


def dep(**more: Any) -> PoolDoc:
    """Attention data parallelism and expert parallelism over two nodes."""
    return pool(dp=16, ep=True, nodes=2, replicas=1, **more)


def cases() -> dict[str, Case]:
    """Name -> case."""
    llama, deepseek, qwen = "llama-3.3-70b-fp8", "deepseek-v3", "qwen3-235b-fp8"
    k8s, engines = "chat/kubernetes/", ("chat/vllm/", "chat/sglang/")
    found: dict[str, Case] = {}

    def add(name: str, made: Plan, *keep: str, gpu: str = "h100") -> None:
        found[name] = Case(made, keep, gpu)

    add("whole-tree", plan(), "")
    add("every-policy", plan(service(trough=0.4, survive="1 node"), platform=platform(**FULL)), k8s, "SUMMARY.md")
    add("vllm-kubernetes-tp8-no-surge", plan(service(model=llama, pools=(pool(tp=8, replicas=4),))), k8s)
    add("vllm-kubernetes-two-shapes", plan(service(pools=(pool(), pool("chat-b", tp=2, replicas=1)))), k8s)
    add(
        "vllm-kubernetes-two-nodes-pp",
        plan(service(model=deepseek, pools=(pool(tp=8, pp=2, nodes=2, replicas=1),))),
        k8s,
        *engines,
    )
    add(
        "vllm-kubernetes-two-nodes-tp16-mla",
        plan(service(model=deepseek, pools=(pool(tp=16, nodes=2, replicas=1),))),
        k8s,
    )
    add("vllm-kubernetes-two-nodes-dep", plan(service(model=deepseek, pools=(dep(kv_dtype="fp8"),))), k8s, *engines)
    add(
        "vllm-kubernetes-ep-moe-one-node", plan(service(model=qwen, pools=(pool(tp=8, ep=True, replicas=1),))), *engines
    )
    add("vllm-kubernetes-pd", plan(service(model=llama, pools=pair()), platform=platform(**FULL)), k8s, *engines)
    add(
        "vllm-kubernetes-pd-set",
        plan(
            service(model=llama, pools=pair()),
            platform=platform(crds=["leaderworkerset", "disaggregatedset"], images=ROUTER),
        ),
        k8s,
    )
    add(
        "vllm-kubernetes-speculation-mtp",
        plan(
            service(model=deepseek, pools=(dep(),), speculation=SpeculationDoc(method="mtp", tokens=1, acceptance=0.7))
        ),
        *engines,
    )
    add(
        "vllm-kubernetes-speculation-eagle3",
        plan(
            service(
                speculation=SpeculationDoc(
                    method="eagle3", tokens=3, acceptance=0.7, draft_model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
                )
            )
        ),
        *engines,
    )
    add(
        "vllm-kubernetes-online-fp8",
        plan(service(model_changes={"precision": "fp8", "online_quantization": "fp8"}, pools=(pool(kv_dtype="fp8"),))),
        *engines,
    )
    add("vllm-kubernetes-prefix-cache", plan(service(prefix_cache=0.5)), *engines, "chat/bench/")
    add(
        "vllm-kubernetes-offline-claim",
        plan(platform=platform(model_source={"kind": "pvc", "claim": "weights", "path": "llama/8b"})),
        k8s,
    )
    add(
        "vllm-kubernetes-dra-oci-kueue",
        plan(
            platform=platform(
                resources="dra",
                kueue_queue="gpus",
                runtime_class="nvidia",
                model_source={"kind": "oci", "path": "registry.example/models/llama:8b"},
            )
        ),
        k8s,
    )
    add(
        "vllm-kubernetes-amd",
        plan(service(model=qwen, pools=(pool(gpu="mi300x", tp=4, ep=True),)), fleet_=fleet("mi300x")),
        k8s,
        gpu="amd",
    )
    add(
        "vllm-kubernetes-l40s",
        plan(service(pools=(pool(gpu="l40s"),)), fleet_=fleet("l40s", rdma=False)),
        k8s,
        gpu="l40s",
    )
    add("vllm-compose", plan(service(target="compose", pools=(pool(replicas=10, rate=40.0),))), "chat/compose/")
    add(
        "vllm-compose-amd",
        plan(service(target="compose", pools=(pool(gpu="mi300x", tp=2),)), fleet_=fleet("mi300x")),
        "chat/compose/",
        gpu="amd",
    )
    add(
        "vllm-dynamo",
        plan(service(target="dynamo"), platform=platform(**FULL | {"network_policy": False})),
        "chat/dynamo/",
    )
    add("vllm-dynamo-pd", plan(service(target="dynamo", model=llama, pools=pair())), "chat/dynamo/", "SUMMARY.md")
    add("vllm-dynamo-two-nodes-dep", plan(service(target="dynamo", model=deepseek, pools=(dep(),))), "chat/dynamo/")
    add(
        "vllm-kserve",
        plan(service(target="kserve"), platform=platform(namespace="inference", labels={"team": "search"})),
        "chat/kserve/",
    )
    add("vllm-kserve-pd", plan(service(target="kserve", model=llama, pools=pair())), "chat/kserve/")
    add("vllm-kserve-two-nodes-dep", plan(service(target="kserve", model=deepseek, pools=(dep(),))), "chat/kserve/")
    add(
        "vllm-llm-d-pd",
        plan(service(target="llm-d", model=llama, pools=pair()), platform=platform(namespace="inference")),
        "chat/llm-d/",
    )
    add("vllm-llm-d", plan(service(target="llm-d")), "chat/llm-d/")
    add("sglang-kubernetes", plan(service(engine="sglang"), platform=platform(**FULL)), k8s, *engines)
    add("sglang-kubernetes-pd", plan(service(engine="sglang", model=llama, pools=pair(4, 4))), k8s, *engines)
    add(
        "sglang-kubernetes-two-nodes-dep-deepep",
        plan(service(engine="sglang", model=deepseek, pools=(dep(all2all="deepep"),))),
        k8s,
        *engines,
    )
    add(
        "sglang-kubernetes-speculation-mtp",
        plan(
            service(
                engine="sglang",
                model=deepseek,
                pools=(dep(),),
                speculation=SpeculationDoc(method="mtp", tokens=3, acceptance=0.7),
            )
        ),
        *engines,
    )
    add(
        "sglang-kubernetes-b200",
        plan(
            service(engine="sglang", model=qwen, pools=(pool(gpu="b200", tp=8, ep=True, kv_dtype="fp8"),)),
            fleet_=fleet("b200"),
        ),
        *engines,
        gpu="b200",
    )
    add(
        "sglang-compose-pd",
        plan(service(engine="sglang", target="compose", model=llama, pools=pair(4, 4, replicas=(1, 1)))),
        "chat/compose/",
    )
    add(
        "sglang-dynamo-pd-two-nodes",
        plan(
            service(
                engine="sglang",
                target="dynamo",
                model=deepseek,
                pools=(dep(name="chat-prefill", role="prefill"), dep(name="chat-decode", role="decode")),
            )
        ),
        "chat/dynamo/",
    )
    add(
        "two-services-one-fleet",
        plan(service(), service("code", llama, pools=(pool("code", tp=4, replicas=2),))),
        "chat/kubernetes/",
        "code/kubernetes/",
        "SUMMARY.md",
    )
    add("target-none", plan(service(target="none", model=llama, pools=(pool(tp=4),))), "chat/", "SUMMARY.md")
    return found
