"""Reading what the planner did not write: twenty manifests as people have them, and command lines."""

# Manifests stand here as people write them, long lines included.
# ruff: noqa: E501

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from planner.assess.found import Found
from planner.assess.read import read_argv, read_deployment, read_files, read_revision
from planner.errors import UserError


@dataclass(frozen=True)
class Case:
    """Files, what must be read out of them (fields of each Found, in order), and words that must be said to be unknown."""

    files: dict[str, str]
    expect: list[dict[str, Any]]
    unknown: tuple[str, ...] = ()


def one(text: str, *expect: dict[str, Any], unknown: tuple[str, ...] = (), **more: str) -> Case:
    files = {"a.yaml": dedent(text)} | {k.replace("_", "."): dedent(v) for k, v in more.items()}
    return Case(files, list(expect), unknown)


DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 9
  template:
    spec:
"""

CASES: dict[str, Case] = {
    "plain deployment": one(
        DEPLOYMENT
        + """\
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        args: ["meta-llama/Llama-3.3-70B-Instruct", "--tensor-parallel-size=4", "--max-num-seqs=96", "--max-num-batched-tokens=2048", "--quantization=fp8"]
        resources: {limits: {nvidia.com/gpu: "4"}}
""",
        {
            "engine": "vllm", "engine_version": "0.33.0", "model": "meta-llama/Llama-3.3-70B-Instruct", "tp": 4, "replicas": 9,
            "gpus": 36, "gpu": "h100-sxm", "max_num_seqs": 96, "max_num_batched_tokens": 2048, "quantization": "fp8",
        },
    ),
    "helm-rendered: quoted numbers, args split over lines, an autoscaler": one(
        """\
---
# Source: stack/templates/deployment.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: stack-qwen}
spec:
  template:
    metadata: {labels: {app.kubernetes.io/managed-by: Helm}}
    spec:
      containers:
        - name: engine
          image: "docker.io/vllm/vllm-openai:v0.32.1"
          command: ["vllm", "serve", "Qwen/Qwen3-32B"]
          args:
            - "--tensor-parallel-size"
            - "2"
            - "--max-model-len"
            - "32768"
            - --gpu-memory-utilization
            - "0.95"
            - --enable-expert-parallel
            - --max-num-seqs
            - "128"
          resources: {requests: {nvidia.com/gpu: 2}, limits: {nvidia.com/gpu: 2}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: stack-qwen}
spec: {scaleTargetRef: {kind: Deployment, name: stack-qwen}, minReplicas: 3, maxReplicas: 8}
""",
        {
            "model": "Qwen/Qwen3-32B", "tp": 2, "ep": True, "max_model_len": 32768, "memory_ratio": 0.95, "max_num_seqs": 128,
            "replicas": 3, "replicas_max": 8, "engine_version": "0.32.1",
        },
    ),
    "environment substituted: values, a ConfigMap, and one that only the cluster knows": one(
        DEPLOYMENT
        + """\
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        args: [--model=$(MODEL), --tensor-parallel-size=$(TP), --max-num-seqs=$(SEQS), --max-model-len=$(LEN)]
        env:
        - {name: MODEL, value: Qwen/Qwen3-8B}
        - {name: TP, valueFrom: {configMapKeyRef: {name: sizes, key: tp}}}
        - {name: LEN, valueFrom: {secretKeyRef: {name: s, key: len}}}
        envFrom: [{configMapRef: {name: more}}]
""",
        {"model": "Qwen/Qwen3-8B", "tp": 2, "max_num_seqs": 64, "max_model_len": None},
        unknown=("--max-model-len depends on $(LEN)",),
        b_yaml="""\
kind: ConfigMap
metadata: {name: sizes}
data: {tp: "2"}
---
kind: ConfigMap
metadata: {name: more}
data: {SEQS: "64"}
""",
    ),
    "shell -c with exports, comments and continuations": one(
        DEPLOYMENT
        + """\
      containers:
      - name: server
        image: registry.internal/serving/vllm-custom:2026-11
        command: ["/bin/bash", "-lc"]
        args:
        - |
          set -euo pipefail
          export TP=8   # one node
          MODEL="deepseek-ai/DeepSeek-V3"
          pip list | grep vllm > /tmp/versions 2>&1
          exec python3 -m vllm.entrypoints.openai.api_server \\
            --model "$MODEL" --trust-remote-code \\
            --tensor-parallel-size $TP \\
            --max-model-len ${CTX:-16384} \\
            --speculative-config '{"method": "mtp", "num_speculative_tokens": 1}' $EXTRA
        resources: {limits: {nvidia.com/gpu: 8}}
""",
        {"model": "deepseek-ai/DeepSeek-V3", "tp": 8, "max_model_len": 16384, "speculation": "mtp", "engine": "vllm"},
        unknown=("$EXTRA",),
    ),
    "sidecars are left out, the engine is found": one(
        DEPLOYMENT
        + """\
      initContainers: [{name: proxy, image: "ghcr.io/llm-d/llm-d-routing-sidecar:v0.9", restartPolicy: Always}]
      containers:
      - {name: exporter, image: "nvcr.io/nvidia/k8s/dcgm-exporter:4.2.0"}
      - name: engine
        image: lmsysorg/sglang:v0.5.23
        command: [python3, -m, sglang.launch_server]
        args: [--model-path, Qwen/Qwen3-235B-A22B-Instruct-2507-FP8, --tp, "8", --ep-size, "8", --mem-fraction-static, "0.85"]
        resources: {limits: {nvidia.com/gpu: 8}}
      - {name: log-agent, image: "fluent/fluent-bit:3.1"}
""",
        {"engine": "sglang", "engine_version": "0.5.23", "tp": 8, "ep": True, "memory_ratio": 0.85, "gpus_per_pod": 8},
    ),
    "two engines in one pod": one(
        DEPLOYMENT
        + """\
      containers:
      - {name: a, image: "vllm/vllm-openai:v0.33.0", args: [m/a], resources: {limits: {nvidia.com/gpu: 1}}}
      - {name: b, image: "vllm/vllm-openai:v0.33.0", args: [m/b], resources: {limits: {nvidia.com/gpu: 1}}}
""",
        {"model": "m/a", "gpus_per_pod": 1},
        {"model": "m/b", "gpus_per_pod": 1},
    ),
    "a GPU container of another engine is named": one(
        DEPLOYMENT
        + """\
      containers:
      - name: tgi
        image: ghcr.io/huggingface/text-generation-inference:3.3
        args: [--model-id, meta-llama/Llama-3.1-8B]
        resources: {limits: {nvidia.com/gpu: 1}}
""",
        {"engine": None, "gpus": 9},
        unknown=("Text Generation Inference, which is not an engine the planner reads",),
    ),
    "an unknown image with GPUs is named": one(
        DEPLOYMENT
        + """\
      containers:
      - {name: x, image: "registry.internal/team/server:7", command: [/app/start], resources: {limits: {nvidia.com/gpu: 2}}}
""",
        {"engine": None, "gpus_per_pod": 2},
        unknown=("registry.internal/team/server:7",),
    ),
    "flags of another version": one(
        DEPLOYMENT
        + """\
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.6.3
        args: [--model, m/x, --swap-space, "16", --max_num_seqs, "64", --num-scheduler-steps=8, --block-size, "32"]
""",
        {"model": "m/x", "max_num_seqs": 64, "engine_version": "0.6.3"},
        unknown=("--swap-space is not a flag", "--num-scheduler-steps is not a flag"),
    ),
    "a config file in a ConfigMap": one(
        DEPLOYMENT
        + """\
      volumes: [{name: conf, configMap: {name: engine}}]
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        args: [--config, /etc/vllm/config.yaml, --max-num-seqs, "32"]
        volumeMounts: [{name: conf, mountPath: /etc/vllm}]
""",
        {"model": "m/y", "tp": 4, "max_num_seqs": 32, "prefix_caching": False},
        b_yaml="""\
kind: ConfigMap
metadata: {name: engine}
data:
  config.yaml: |
    model: m/y
    tensor-parallel-size: 4
    max-num-seqs: 128
    enable-prefix-caching: false
""",
    ),
    "a config file that is not there, and one that vllm ignores": one(
        DEPLOYMENT
        + """\
      containers:
      - {name: a, image: "vllm/vllm-openai:v0.33.0", args: [m/z, --config, /etc/none.yaml]}
      - {name: b, image: "vllm/vllm-openai:v0.33.0", args: [m/z, --config=/etc/none.yaml]}
""",
        {"model": "m/z"},
        {"model": "m/z"},
        unknown=("/etc/none.yaml, which is not among the files", "--config=/etc/none.yaml is ignored by vllm"),
    ),
    "LeaderWorkerSet over two nodes": one(
        """\
        apiVersion: leaderworkerset.x-k8s.io/v1
        kind: LeaderWorkerSet
        metadata: {name: r1}
        spec:
          replicas: 3
          leaderWorkerTemplate:
            size: 2
            leaderTemplate:
              spec:
                containers:
                - name: leader
                  image: lmsysorg/sglang:v0.5.23
                  command: [sh, -c, "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp-size 16 --attn-dp-size 8 --dist-init-addr $(LWS_LEADER_ADDRESS):20000 --nnodes $(LWS_GROUP_SIZE) --node-rank $(LWS_WORKER_INDEX) --max-running-requests 1024"]
                  resources: {limits: {nvidia.com/gpu: 8}}
            workerTemplate:
              spec:
                containers:
                - name: worker
                  image: lmsysorg/sglang:v0.5.23
                  command: [python3, -m, sglang.launch_server]
                  args: [--model-path, deepseek-ai/DeepSeek-R1, --tp-size, "16"]
                  resources: {limits: {nvidia.com/gpu: 8}}
        """,
        {"engine": "sglang", "tp": 2, "dp": 8, "pods_per_replica": 2, "replicas": 3, "gpus": 48, "max_num_seqs": 128},
    ),
    "Dynamo graph, prefill and decode": one(
        """\
        apiVersion: nvidia.com/v1beta1
        kind: DynamoGraphDeployment
        metadata: {name: chat}
        spec:
          components:
          - name: Frontend
            type: frontend
            replicas: 1
            podTemplate: {spec: {containers: [{name: main, image: "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1", command: [python3, -m, dynamo.frontend]}]}}
          - name: Prefill
            type: prefill
            replicas: 2
            podTemplate:
              spec:
                containers:
                - name: main
                  image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1
                  command: [python3, -m, dynamo.vllm]
                  args: [--model, m/x, --tensor-parallel-size, "2", --disaggregation-mode, prefill, --kv-transfer-config, '{"kv_connector":"NixlConnector","kv_role":"kv_both"}']
                  resources: {limits: {nvidia.com/gpu: "2"}}
          - name: Decode
            type: decode
            replicas: 3
            multinode: {nodeCount: 2}
            podTemplate:
              spec:
                containers:
                - name: main
                  image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1
                  command: [python3, -m, dynamo.vllm]
                  args: [--model, m/x, --tensor-parallel-size=16, --disaggregation-mode=decode]
                  resources: {limits: {nvidia.com/gpu: "8"}}
        """,
        {"name": "chat-Prefill", "role": "prefill", "tp": 2, "replicas": 2, "gpus": 4, "engine_version": "0.31.0", "transfer": "NixlConnector"},
        {"name": "chat-Decode", "role": "decode", "tp": 16, "pods_per_replica": 2, "gpus": 48},
    ),
    "Dynamo v1alpha1": one(
        """\
        apiVersion: nvidia.com/v1alpha1
        kind: DynamoGraphDeployment
        metadata: {name: old}
        spec:
          services:
            Frontend: {replicas: 1}
            Worker:
              replicas: 4
              resources: {limits: {gpu: "1"}}
              extraPodSpec:
                mainContainer:
                  image: nvcr.io/nvidia/ai-dynamo/sglang-runtime:1.6.1
                  command: [python3, -m, dynamo.sglang]
                  args: [--model-path, m/x, --tp, "1", --is-decode-worker]
        """,
        {"engine": "sglang", "replicas": 4, "gpus": 4, "model": "m/x", "engine_version": "0.5.21"},
        unknown=("--is-decode-worker is not a flag",),
    ),
    "KServe LLMInferenceService": one(
        """\
        apiVersion: serving.kserve.io/v1alpha2
        kind: LLMInferenceService
        metadata: {name: llama}
        spec:
          model: {uri: "hf://meta-llama/Llama-3.1-8B-Instruct", name: llama}
          replicas: 5
          parallelism: {tensor: 2}
          template:
            containers:
            - name: main
              env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-num-seqs 48 --max-model-len=8192"}]
              resources: {limits: {nvidia.com/gpu: "2"}}
          prefill:
            replicas: 2
            parallelism: {tensor: 4}
            template: {containers: [{name: main, resources: {limits: {nvidia.com/gpu: "4"}}}]}
        """,
        {"model": "meta-llama/Llama-3.1-8B-Instruct", "tp": 2, "replicas": 5, "max_num_seqs": 48, "max_model_len": 8192, "role": "decode"},
        {"tp": 4, "replicas": 2, "role": "prefill", "gpus": 8},
    ),
    "Compose with anchors, defaults and an env file": one(
        """\
        x-gpu: &gpu
          deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}
        services:
          llm:
            <<: *gpu
            image: vllm/vllm-openai:${VLLM_TAG:-v0.33.0}
            command: >
              --model ${MODEL} --tensor-parallel-size ${TP:-2}
              --served-model-name "my model"
          web:
            image: nginx:1.27
        """,
        {"name": "llm", "model": "Qwen/Qwen3-14B", "tp": 2, "gpus": 2, "engine_version": "0.33.0"},
        **{".env": "# sizes\nMODEL=Qwen/Qwen3-14B\n"},
    ),
    "Compose with a shell and device ids": one(
        """\
        services:
          llm:
            image: lmsysorg/sglang:v0.5.23
            entrypoint: ["/bin/sh", "-c"]
            command: ["python3 -m sglang.launch_server --model-path $$MODEL --dp-size 2 --tp-size 1 --enable-metrics"]
            environment: [MODEL=m/x]
            deploy: {resources: {reservations: {devices: [{device_ids: ["0", "1"], capabilities: [gpu]}]}}}
        """,
        {"engine": "sglang", "model": "m/x", "copies": 2, "tp": 1, "gpus": 2},
    ),
    "StatefulSet with a List around it and a local model": one(
        """\
        apiVersion: v1
        kind: List
        items:
        - apiVersion: apps/v1
          kind: StatefulSet
          metadata: {name: s}
          spec:
            replicas: 2
            template:
              spec:
                affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: nvidia.com/gpu.product, operator: In, values: [NVIDIA-H200]}]}]}}}
                containers:
                - name: c
                  image: vllm/vllm-openai:v0.33.0
                  command: [numactl, --cpunodebind=0, /usr/local/bin/vllm, serve, /models/llama, -tp, "2", -dp, "2", --kv-cache-dtype, fp8]
                  resources: {limits: {nvidia.com/gpu: 4}}
        - {apiVersion: v1, kind: Service, metadata: {name: s}}
        """,
        {"model": "/models/llama", "tp": 2, "dp": 2, "kv_cache_dtype": "fp8", "replicas": 2, "gpu": "h200-sxm", "gpus": 8},
    ),
    "all flags in one argument": one(
        DEPLOYMENT
        + """\
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.33.0
        args: ["m/x", "--tensor-parallel-size 4 --max-num-seqs 64"]
""",
        {"model": "m/x", "tp": 4, "max_num_seqs": 64},
        unknown=("one argument holds several words",),
    ),
    "DisaggregatedSet": one(
        """\
        apiVersion: disaggregatedset.x-k8s.io/v1
        kind: DisaggregatedSet
        metadata: {name: pd}
        spec:
          slices: 2
          roles:
          - name: prefill
            spec:
              replicas: 1
              leaderWorkerTemplate:
                size: 1
                workerTemplate: {spec: {containers: [{name: m, image: "vllm/vllm-openai:v0.33.0", args: [m/x, -tp, "4"], resources: {limits: {nvidia.com/gpu: 4}}}]}}
          - name: decode
            spec:
              replicas: 3
              leaderWorkerTemplate:
                size: 1
                workerTemplate: {spec: {containers: [{name: m, image: "vllm/vllm-openai:v0.33.0", args: [m/x, -tp, "2"], resources: {limits: {nvidia.com/gpu: 2}}}]}}
        """,
        {"role": "prefill", "replicas": 2, "gpus": 8},
        {"role": "decode", "replicas": 6, "gpus": 12},
    ),
    "text where a list belongs, and a value from nowhere": one(
        DEPLOYMENT
        + """\
      containers:
      - name: vllm
        image: vllm/vllm-openai:${TAG}
        command: vllm serve {{MODEL}} --tensor-parallel-size 2
        resources: {limits: {nvidia.com/gpu: 2}}
""",
        {"model": None, "tp": 2, "engine": "vllm"},
        unknown=("command is text where Kubernetes wants a list", "the model depends on {{MODEL}}", "depends on ${TAG}"),
    ),
}  # fmt: skip


def value(found: Found, name: str) -> object:
    return getattr(found.shape, name) if name in ("tp", "pp", "dp", "ep") else getattr(found, name)


@pytest.mark.parametrize("name", CASES)
def test_reads_what_is_readable_and_names_what_is_not(name: str) -> None:
    case = CASES[name]
    found = read_files(case.files)
    assert len(found) == len(case.expect), [f.place for f in found]
    for f, expect in zip(found, case.expect, strict=True):
        assert {k: value(f, k) for k in expect} == expect
    said = "\n".join(p for f in found for p in f.problems)
    for words in case.unknown:
        assert words in said
    if not case.unknown:
        assert said == ""


def test_there_are_twenty() -> None:
    assert len(CASES) >= 20


def test_places_have_lines() -> None:
    (found,) = read_files(CASES["plain deployment"].files)
    assert str(found.place) == "a.yaml:10 Deployment/chat vllm"


@pytest.mark.parametrize(
    ("line", "expect"),
    [
        ("vllm serve m/x -tp 4 --max-model-len 8k --max-num_seqs=64 -O3", {"tp": 4, "max_model_len": 8000, "max_num_seqs": 64}),
        ("vllm serve m/x --max-num-batched-tokens 8K --compilation-config.max_cudagraph_capture_size 96", {"max_num_batched_tokens": 8192, "graphs_max": 96}),
        ("HF_HUB_OFFLINE=1 sglang serve --model-path m/x --tp-size 8 --attn-dp-size 8 --ep-size 8", {"tp": 1, "dp": 8, "ep": True}),
        ("python3 -m sglang.launch_server --model m/x --tp 16 --dp 16 --enable-dp-attention", {"tp": 1, "dp": 16, "copies": 1}),
        ("vllm serve m/x --kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_producer\"}'", {"role": "prefill", "transfer": "NixlConnector"}),
        ("docker run --gpus '\"device=0,1\"' -v a:/b -p 80:80 vllm/vllm-openai:v0.33.0 m/x --tensor-parallel-size 2", {"tp": 2, "gpus_per_pod": 2, "model": "m/x"}),
        ("cd /srv && exec vllm serve hf://m/x --enforce-eager # note", {"model": "m/x", "eager": True}),
        ("vllm serve /cache/hub/models--Qwen--Qwen3-8B/snapshots/ab", {"model": "Qwen/Qwen3-8B"}),
    ],
)  # fmt: skip
def test_command_lines(line: str, expect: dict[str, Any]) -> None:
    (found,) = read_deployment(line)
    assert {k: value(found, k) for k in expect} == expect
    assert found.problems == ()


@pytest.mark.parametrize("line", ["", "nginx -g daemon", "vllm bench serve m/x", "echo vllm"])
def test_no_engine_is_said(line: str) -> None:
    with pytest.raises(UserError, match="launches no engine"):
        read_argv(line)


def test_a_chart_is_not_yaml() -> None:
    with pytest.raises(UserError, match="is a template, not YAML") as e:
        read_files({"t.yaml": "spec:\n{{- if .Values.x }}\n  a: {{ .Values.y }}\n{{- end }}\n"})
    assert e.value.where is not None
    assert e.value.where.line == 2


@pytest.mark.parametrize(
    "text",
    ["a: [", "a: *x", "&a [*a]", "kind: Deployment\nspec: 3", "kind: Deployment\nspec: {template: {spec: {containers: x}}}",
     "kind: LeaderWorkerSet\nspec: {replicas: many}", "services: {a: }", "services: {a: {image: 3, command: {x: 1}}}", "- 1\n- 2", ""],
)  # fmt: skip
def test_odd_files_give_no_traceback(text: str) -> None:
    with contextlib.suppress(UserError):
        read_files({"x.yaml": text})


def test_anchors_that_multiply_are_refused() -> None:
    bomb = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefg", "bcdefgh", strict=True)
    )
    with pytest.raises(UserError, match="anchors"):
        read_files({"x.yaml": bomb})


def test_folders_and_revisions(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "deploy" / "sub").mkdir(parents=True)
    path = repo / "deploy" / "sub" / "a.yaml"
    path.write_text(CASES["plain deployment"].files["a.yaml"])
    (repo / "deploy" / "README.md").write_text("not a manifest")

    def git(*words: str) -> None:
        base = ["git", "-C", str(repo), "-c", "user.name=t", "-c", "user.email=t@example.org"]
        subprocess.run([*base, *words], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    path.write_text(path.read_text().replace("tensor-parallel-size=4", "tensor-parallel-size=8"))
    (before,) = read_revision("HEAD", ["deploy"], repository=repo)
    (after,) = read_deployment([repo / "deploy"])
    assert (before.shape.tp, after.shape.tp) == (4, 8)
    with pytest.raises(UserError, match="git ls-tree failed"):
        read_revision("no-such", [], repository=repo)
    with pytest.raises(UserError, match="not a git revision"):
        read_revision("--upload-pack=x", [], repository=repo)
