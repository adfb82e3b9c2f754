"""Every policy of platform.yaml is on every object, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from planner.documents import Document, read_as
from planner.errors import UserError
from planner.intent.platform import Platform
from planner.render import render
from tests.render.cases import ROUTER, pair
from tests.render.manifests import documents, pods
from tests.render.plans import plan, pool, service


def made(**fields: Any) -> Platform:
    return read_as(Platform, Document(fields, "platform.yaml"), what="a platform")


PLATFORMS = [
    made(images=ROUTER),
    made(namespace="inference", labels={"team": "a"}, annotations={"x.example/y": "on"}, images=ROUTER),
    made(autoscaling="keda", prometheus_url="http://p:9090", monitoring=True, images=ROUTER),
    made(security="baseline", pull_secrets=["one", "two"], service_account="engine", images=ROUTER),
    made(model_source={"kind": "pvc", "claim": "weights", "path": "a/b"}, network_policy=True, images=ROUTER),
    made(resources="dra", kueue_queue="gpus", images=ROUTER),
]


def pod_of(**fields: Any) -> dict[str, Any]:
    (_, d) = next((p, d) for p, d in documents(render(plan(platform=made(**fields)))) if d["kind"] == "Deployment")
    return next(pods(d))


def refusal(target: str = "kubernetes", engine: str = "vllm", pools: Any = None, **fields: Any) -> UserError:
    with pytest.raises(UserError) as e:
        render(plan(service(target=target, engine=engine, pools=pools), platform=made(**fields)))
    return e.value


def test_labels_and_annotations_are_on_every_object() -> None:
    files = render(plan(platform=made(namespace="n", labels={"team": "search"}, annotations={"a.b/c": "0755"})))
    for path, d in documents(files):
        assert d["metadata"]["labels"]["team"] == "search", path
        assert d["metadata"]["annotations"]["a.b/c"] == "0755", path
        assert d["metadata"]["namespace"] == "n", path
        if d["kind"] == "Deployment":
            assert d["spec"]["template"]["metadata"]["labels"]["team"] == "search"


def test_a_label_of_ours_is_not_replaced() -> None:
    assert refusal(labels={"app.kubernetes.io/name": "mine"}).code == "label-clash"


def test_registry_is_rewritten_and_images_can_be_pinned() -> None:
    assert pod_of(registry={"docker.io": "registry.example/hub"})["containers"][0]["image"] == (
        "registry.example/hub/vllm/vllm-openai:v0.33.0"
    )
    digest = "registry.example/vllm@sha256:" + "0" * 64
    assert pod_of(images={"vllm": digest})["containers"][0]["image"] == digest
    assert "vllm-router" in str(refusal(images={"vlm-router": "a/b:1"}))


def test_an_unknown_image_says_how_to_name_it() -> None:
    e = refusal(pools=pair())
    assert e.code == "image-unknown"
    assert "images: {vllm-router:" in str(e)


def test_pod_policies() -> None:
    pod = pod_of(
        pull_secrets=["reg"], service_account="sa", priority_class="high", runtime_class="nvidia", run_as_user=42
    )
    assert pod["imagePullSecrets"] == [{"name": "reg"}]
    assert pod["serviceAccountName"] == "sa"
    assert pod["automountServiceAccountToken"] is False
    assert pod["priorityClassName"] == "high"
    assert pod["runtimeClassName"] == "nvidia"
    assert pod["securityContext"]["runAsUser"] == 42


def test_baseline_may_be_root() -> None:
    assert "runAsNonRoot" not in pod_of(security="baseline")["securityContext"]


def test_hub_secret_and_cache_are_names_only() -> None:
    pod = pod_of(model_source={"secret": "hf", "claim": "cache", "offline": True})
    env = {e["name"]: e for e in pod["containers"][0]["env"]}
    assert env["HF_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "hf", "key": "HF_TOKEN"}}
    assert env["HF_HUB_OFFLINE"]["value"] == "1"
    assert {"name": "hub-cache", "persistentVolumeClaim": {"claimName": "cache"}} in pod["volumes"]


def test_claim_is_read_only_and_offline() -> None:
    pod = pod_of(model_source={"kind": "pvc", "claim": "weights", "path": "llama/8b"})
    assert pod["containers"][0]["args"][0] == "/models/llama/8b"
    assert {"name": "models", "mountPath": "/models", "readOnly": True} in pod["containers"][0]["volumeMounts"]
    assert {"name": "HF_HUB_OFFLINE", "value": "1"} in pod["containers"][0]["env"]


def test_s3_is_streamed_with_a_secret() -> None:
    pod = pod_of(model_source={"kind": "s3", "path": "s3://bucket/llama", "secret": "bucket"})
    assert pod["containers"][0]["args"][0] == "s3://bucket/llama"
    assert "--load-format=runai_streamer" in pod["containers"][0]["args"]
    assert refusal(engine="sglang", model_source={"kind": "s3", "path": "s3://b/x"}).code == "not-supported"


def test_oci_needs_a_new_enough_cluster() -> None:
    source = {"kind": "oci", "path": "registry.example/m:1"}
    assert {"name": "models", "image": {"reference": "registry.example/m:1", "pullPolicy": "IfNotPresent"}} in pod_of(
        model_source=source
    )["volumes"]
    assert refusal(model_source=source, kubernetes_version="1.30").code == "not-supported"
    assert refusal(model_source={"kind": "oci", "path": "registry.example/m"}).code == "bad-image"


def test_a_path_may_not_leave_its_claim() -> None:
    assert refusal(model_source={"kind": "pvc", "claim": "c", "path": "../etc"}).code == "model-source"


def test_pre_stop_suits_the_cluster() -> None:
    assert pod_of()["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 15}}
    old = pod_of(kubernetes_version="1.28")["containers"][0]["lifecycle"]["preStop"]
    assert old == {"exec": {"command": ["sleep", "15"]}}


def test_kueue_is_on_the_workload_not_on_its_pods() -> None:
    files = render(plan(platform=made(kueue_queue="gpus")))
    d = next(d for _, d in documents(files) if d["kind"] == "Deployment")
    assert d["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert "kueue.x-k8s.io/queue-name" not in d["spec"]["template"]["metadata"]["labels"]


def test_dra_replaces_the_device_plugin() -> None:
    files = render(plan(platform=made(resources="dra")))
    d = next(d for _, d in documents(files) if d["kind"] == "Deployment")
    pod = next(pods(d))
    assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"]
    assert pod["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    claim = next(d for _, d in documents(files) if d["kind"] == "ResourceClaimTemplate")
    assert pod["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": claim["metadata"]["name"]}]
    assert claim["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


@pytest.mark.parametrize(
    ("fields", "target", "code"),
    [
        ({"crds": []}, "dynamo", "missing-crd"),
        ({"crds": []}, "kserve", "missing-crd"),
        ({"crds": []}, "llm-d", "missing-crd"),
        ({"crds": [], "monitoring": True}, "kubernetes", "missing-crd"),
        ({"crds": [], "autoscaling": "keda", "prometheus_url": "http://p"}, "kubernetes", "missing-crd"),
        ({"autoscaling": "keda"}, "kubernetes", "prometheus-url"),
        ({"autoscaling": "keda", "prometheus_url": "http://me:hush@p:9090"}, "kubernetes", "secret"),
        ({"annotations": {"no key\n": "x"}}, "kubernetes", "bad-annotation"),
        ({"autoscaling": "keda", "prometheus_url": "p:9090"}, "kubernetes", "prometheus-url"),
        ({"kueue_queue": "q"}, "dynamo", "not-supported"),
        ({"kueue_queue": "q"}, "kserve", "not-supported"),
        ({"monitoring": True}, "kserve", "not-supported"),
        ({"network_policy": True}, "dynamo", "not-supported"),
        ({"resources": "dra"}, "dynamo", "not-supported"),
        ({"resources": "dra", "kubernetes_version": "1.33"}, "kubernetes", "not-supported"),
        ({"dynamo_version": "1.5.0"}, "dynamo", "not-supported"),
        ({"model_source": {"kind": "oci", "path": "a/b:1"}}, "compose", "not-supported"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], target: str, code: str) -> None:
    assert refusal(target, **fields).code == code


@pytest.mark.parametrize("target", ["kserve", "llm-d"])
def test_sglang_only_where_it_runs(target: str) -> None:
    assert "sglang" in str(refusal(target, engine="sglang"))


def test_several_nodes_need_lws() -> None:
    e = refusal(pools=(pool(tp=16, nodes=2, replicas=1),), crds=["keda"])
    assert e.code == "missing-crd"
    assert "leaderworkerset" in str(e)
