"""The traps of both engines' notes: each is refused, with what to write instead."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.catalog.engines import find_engine, find_router
from planner.errors import UserError
from planner.render import render
from planner.render.flags import check, check_argv, check_config
from tests.render.cases import cases
from tests.render.manifests import documents, pods
from tests.render.plans import plan, pool, service

VLLM, SGLANG = ("vllm", "0.33.0"), ("sglang", "0.5.23")


@pytest.mark.parametrize(
    ("engine", "argv", "says"),
    [
        (VLLM, ["m", "--max_num_seqs=96"], "underscores"),
        (VLLM, ["m", "--config=x.yaml"], "ignored silently"),
        (VLLM, ["m", "--tensor=2"], "abbreviation"),
        (VLLM, ["m", "-tp", "2"], "short flags"),
        (VLLM, ["m", "--num-scheduler-steps=8"], "multi-step"),
        (VLLM, ["m", "--swap-space=4"], "no swap"),
        (VLLM, ["m", "--max-seq-len-to-capture=1"], "--max-cudagraph-capture-size"),
        (VLLM, ["m", "--kv-cache-dtype=int8"], "does not take 'int8'"),
        (VLLM, ["m", "--quantization=fp4"], "does not take 'fp4'"),
        (VLLM, ["m", "--max-num-seqs=1K"], "takes a number"),
        (VLLM, ["m", "--max-num-seqs=None"], "leave the flag out"),
        (VLLM, ["m", "--max-num-seqs=1", "--max-num-seqs=2"], "given twice"),
        (VLLM, ["m", "--max-num-seqs=1", "--max-num-seqs", "2"], "given twice"),
        (VLLM, ["m", "--enable-expert-parallel=true"], "takes no value"),
        (VLLM, ["m", "--max-num-seqs"], "has no value"),
        (VLLM, ["m", "stray"], "no long flag"),
        (VLLM, ["m", "--max-num-seqs=512", "--max-num-batched-tokens=256"], "below --max-num-seqs"),
        (VLLM, ["m", "--gpu-memory-utilization=1.7"], "not in (0, 1]"),
        (VLLM, ["m", "--all2all-backend=deepep"], "does not take 'deepep'"),
        (VLLM, ["m", '--kv-transfer-config={"kv_connector":"NixlConnector"}'], "without a role"),
        (VLLM, ["m", '--kv-transfer-config={"kv_role":"kv_both","kv_buffer_size":1}'], "'kv_buffer_size'"),
        (VLLM, ["m", '--speculative-config={"num_spec_tokens":1}'], "'num_spec_tokens'"),
        (VLLM, ["m", "--speculative-config={"], "is not JSON"),
        (VLLM, ["m", "--enable-eplb"], "needs --enable-expert-parallel"),
        (VLLM, ["m", "--max-num-sequences=1"], "write --max-num-seqs"),
        (SGLANG, ["--tp=8"], "works only as an abbreviation"),
        (SGLANG, ["--pp=2"], "ambiguous"),
        (SGLANG, ["--tensor-parallel-size=8"], "is an alias"),
        (SGLANG, ["--kv-cache-dtype=fp8"], "does not take 'fp8'"),
        (SGLANG, ["--cuda-graph-max-bs=64"], "--cuda-graph-max-bs-decode"),
        (SGLANG, ["--enable-dp-attention"], "deprecated"),
        (SGLANG, ["--disable-cuda-graph"], "deprecated"),
        (SGLANG, ["--mem-fraction-static=1.7"], "not in (0, 1)"),
        (SGLANG, ["--tp-size=4", "--ep-size=3"], "does not divide"),
        (SGLANG, ["--tp-size=8", "--attn-dp-size=3"], "does not divide"),
        (SGLANG, ["--tp-size=8", "--nnodes=3"], "not a multiple"),
        (SGLANG, ["--tp-size=8", "--dp-size=2", "--attn-dp-size=2"], "exclude each other"),
        (SGLANG, ["--dp-size=2", "--nnodes=2", "--tp-size=8"], "cannot span nodes"),
        (SGLANG, ["--disaggregation-decode-allocation-policy=prefill_complete"], "refused by SGLang"),
        (SGLANG, ["--speculative-algorithm=EAGEL"], "write EAGLE"),
        (SGLANG, ["--speculative-algorithm=EAGLE"], "runs 48"),
        (SGLANG, ["--config=x.yaml"], "ignored silently"),
        (SGLANG, ["m"], "no long flag"),
    ],
)
def test_trap(engine: tuple[str, str], argv: list[str], says: str) -> None:
    with pytest.raises(UserError) as e:
        check(*engine, argv)
    assert says in str(e.value)


@pytest.mark.parametrize(
    ("engine", "data", "says"),
    [
        (VLLM, {"enable_prefix_caching": False}, "underscores"),
        (VLLM, {"max-model-len": None}, "null becomes the text None"),
        (VLLM, {"enable-expert-parallel": "true"}, "is a switch"),
        (VLLM, {"max-num-seqs": [1, 2]}, "takes one value"),
        (VLLM, {"max-num-seqs": True}, "takes a value"),
        (VLLM, {"headless": False}, "dropped silently"),
        (VLLM, {"max-num-sequences": False}, "write --max-num-seqs"),
        (SGLANG, {"tp_size": 2}, "underscores"),
        (SGLANG, {"tp": 2}, "works only as an abbreviation"),
        (SGLANG, {"enable-metrics": False}, "dropped silently"),
        (SGLANG, {"lora-paths": ["a"]}, "refused in a config file"),
        (SGLANG, {"bucket-inter-token-latency": []}, "takes one value"),
    ],
)
def test_config_trap(engine: tuple[str, str], data: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as e:
        check_config(find_engine(*engine), data)
    assert says in str(e.value)


def test_false_with_a_negation_is_fine() -> None:
    check_config(find_engine("vllm"), {"enable-prefix-caching": False, "model": "m"})
    check("vllm", "0.33.0", ["m", "--no-enable-prefix-caching"])


def test_unknown_versions_are_named() -> None:
    with pytest.raises(UserError, match=r"vllm 0\.1\.0 is not in the catalogue"):
        check("vllm", "0.1.0", [])


def test_an_unknown_flag_stops_the_render(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is the gate: without the flag in it, nothing is rendered."""
    engine = find_engine("vllm")
    table = {k: v for k, v in engine.flag_table().items() if k != "--max-num-seqs"}
    monkeypatch.setattr(type(engine), "flag_table", lambda self: table)
    with pytest.raises(UserError, match="--max-num-seqs is not a flag"):
        render(plan())


def test_a_second_version_needs_no_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine version is data: one more description renders with the templates there are."""
    from planner.catalog import engines

    newer = find_engine("vllm").model_copy(update={"version": "0.34.0", "images": {"nvidia": "a.example/vllm:v0.34.0"}})
    known = engines.engine_versions() | {("vllm", "0.34.0"): newer}
    monkeypatch.setattr(engines, "engine_versions", lambda: known)
    doc, intent = service()
    files = render(plan((doc.model_copy(update={"engine_version": "0.34.0"}), intent)))
    assert any("a.example/vllm:v0.34.0" in f.text for f in files)


@pytest.mark.parametrize("name", sorted(cases()))
def test_every_case_passes_its_tables(name: str) -> None:
    """Engines', Dynamo workers' and routers' arguments as they stand in the files, config files included."""
    case = cases()[name]
    files = render(case.plan)
    engines = {s.name: find_engine(s.engine, s.engine_version) for s in case.plan.services}
    checked = 0
    for f in files:
        if f.path.name.endswith(".config.yaml"):
            check_config(engines[f.path.parts[0]], yaml.safe_load(f.text))
            checked += 1
    for path, d in documents(files):
        for pod in pods(d):
            for c in pod["containers"]:
                command = " ".join(c.get("command", []))
                args = [a.replace("$(LWS_WORKER_INDEX)", "0") for a in c.get("args", [])]
                if c["name"] in ("vllm", "sglang"):
                    check_argv(engines[path.split("/")[0]], args)
                elif "dynamo.vllm" in command or "dynamo.sglang" in command:
                    carried = {"vllm": "0.31.0", "sglang": "0.5.21"}[command.rsplit(".", 1)[-1]]
                    check(command.rsplit(".", 1)[-1], carried, args)
                elif c["name"] == "router":
                    check_argv(find_router(c["command"][0]), args)
                else:
                    continue
                checked += 1
    assert checked or all(s.target == "dynamo" for s in case.plan.services)


def test_a_carried_version_runs_on_its_carrier_only() -> None:
    doc, intent = service()
    with pytest.raises(UserError, match=r"vllm 0\.31\.0 with target kubernetes is not supported"):
        render(plan((doc.model_copy(update={"engine_version": "0.31.0"}), intent)))


def test_dynamo_keeps_to_its_allow_list() -> None:
    with pytest.raises(UserError, match="--shutdown-timeout is not a flag"):
        check("vllm", "0.31.0", ["--shutdown-timeout=1"])


def test_explicit_caps_memory_and_graphs() -> None:
    """Nothing that moves with the GPU is left to a default."""
    for engine, flags in (
        ("vllm", ("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len", "--gpu-memory-utilization",
                  "--max-cudagraph-capture-size", "--kv-cache-dtype", "--tensor-parallel-size", "--shutdown-timeout")),
        ("sglang", ("--max-running-requests", "--chunked-prefill-size", "--context-length", "--mem-fraction-static",
                    "--cuda-graph-max-bs-decode", "--kv-cache-dtype", "--tp-size", "--host")),
    ):  # fmt: skip
        files = render(plan(service(engine=engine)))
        args = next(pods(next(d for _, d in documents(files) if d["kind"] == "Deployment")))["containers"][0]["args"]
        assert all(any(a.startswith(f"{flag}=") for a in args) for flag in flags)


def test_caps_are_per_rank_in_vllm_and_per_replica_in_sglang() -> None:
    from planner.render.sglang import sglang_argv
    from planner.render.vllm import vllm_argv

    for engine, make, flag in (
        ("vllm", vllm_argv, "--max-num-seqs=96"),
        ("sglang", sglang_argv, "--max-running-requests=768"),
    ):
        p = plan(service(model="deepseek-v3", engine=engine, pools=(pool(dp=8, ep=True, replicas=1),)))
        assert flag in make(p.services[0], p.services[0].pools[0], p)


def test_deepep_batch_limit_is_an_environment_variable() -> None:
    pools = (pool(dp=8, ep=True, replicas=1, seqs=512, all2all="deepep"),)
    files = render(plan(service(model="deepseek-v3", engine="sglang", pools=pools)))
    pod = next(pods(next(d for _, d in documents(files) if d["kind"] == "Deployment")))
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}
    assert env["SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"] == "512"


def test_no_service_is_called_like_an_engine() -> None:
    """A Service `vllm` would set VLLM_PORT in every pod of the namespace; vLLM then refuses to start."""
    files = render(plan(service("vllm", pools=(pool("vllm"),))))
    names = {(d["kind"], d["metadata"]["name"]) for _, d in documents(files)}
    assert ("Service", "vllm-api") in names
    assert ("Service", "vllm") not in names


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a POSIX shell")
@pytest.mark.parametrize("name", sorted(cases()))
def test_launch_scripts_are_shell(name: str, tmp_path: Path) -> None:
    for i, f in enumerate(render(cases()[name].plan)):
        if f.path.suffix == ".sh":
            assert f.executable
            path = tmp_path / f"{i}.sh"
            path.write_text(f.text)
            out = subprocess.run(["sh", "-n", str(path)], capture_output=True, text=True, check=False)
            assert out.returncode == 0, out.stderr


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a POSIX shell")
def test_launch_script_says_what_the_manifest_says(tmp_path: Path) -> None:
    """Run with a `vllm` that prints its arguments: rank 1 of two nodes gets rank, leader and --headless."""
    case = cases()["vllm-kubernetes-two-nodes-dep"]
    script = next(f for f in render(case.plan) if f.path.suffix == ".sh" and f.path.parent.name == "vllm")
    (tmp_path / "run.sh").write_text(script.text)
    fake = tmp_path / "vllm"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "NODE_RANK": "1",
        "LEADER_ADDRESS": "10.0.0.7",
        "HOST_ADDRESS": "10.0.0.8",
    }
    out = subprocess.run(["sh", str(tmp_path / "run.sh")], env=env, capture_output=True, text=True, check=True)
    words = out.stdout.splitlines()
    assert words[:2] == ["serve", "deepseek-ai/DeepSeek-V3"]
    assert "--data-parallel-address=10.0.0.7" in words
    assert "--data-parallel-start-rank=8" in words
    assert words[-1] == "--headless"
    bare = subprocess.run(
        ["sh", str(tmp_path / "run.sh")], env={"PATH": env["PATH"]}, capture_output=True, text=True, check=False
    )
    assert bare.returncode != 0
    assert "NODE_RANK" in bare.stderr


def test_every_engine_has_all_its_parts() -> None:
    """catalog/engines/<e>-<version>.yaml, render/<e>.py, templates/<e>/: one name in three places."""
    from planner.catalog.engines import engine_versions
    from planner.data import shipped

    rendered = {e.engine for e in engine_versions().values() if not e.predicts_only and not e.router}
    root = Path(__file__).resolve().parent.parent.parent
    parts = [root / "planner" / "render" / f"{e}.py" for e in rendered]
    parts += [shipped("templates") / e / f for e in rendered for f in ("launch.sh.j2", "config.yaml.j2")]
    assert [p.name for p in parts if not p.is_file()] == []
