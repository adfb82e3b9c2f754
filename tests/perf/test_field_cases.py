"""Sizing questions asked in public, each with the verdict it gets (tests/cases/field_cases.yaml)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.data import catalog_data
from planner.perf.arch import ModelArch, Shape
from planner.perf.deployment import Deployment
from planner.perf.families import read_arch
from planner.perf.memory import Memory, kv_tokens_from_bytes, memory
from planner.perf.quantities import kv_bytes_per_token, weight_bytes_per_gpu
from planner.perf.rules import check_division, check_shape, quant_support
from planner.perf.rules.base import Layout
from planner.perf.rules.heads import Heads
from tests.perf.helpers import GIB, PLANS, arch, deploy, gpu

CASES = yaml.safe_load((Path(__file__).parent.parent / "cases" / "field_cases.yaml").read_text(encoding="utf-8"))


def case(kind: str, case_id: str) -> dict[str, Any]:
    return next(c for c in CASES[kind] if c["id"] == case_id)


# ---------------------------------------------------------------- does it fit

FIT = [(c, s) for c in CASES["fit"] for s in c["shapes"]]


def fit_deployment(c: dict[str, Any], s: dict[str, Any]) -> Deployment:
    on = replace(gpu(c["gpu"]), rdma=c.get("rdma", False))
    layout = {k: s[k] for k in ("tp", "pp", "dp", "ep", "kv") if k in s}
    return deploy(c["model"], s["plan"], on, version=c.get("version"), **layout)


@pytest.mark.parametrize(("c", "s"), FIT, ids=[f"{c['id']} {s['gpus']} {s['plan']}" for c, s in FIT])
def test_fit(c: dict[str, Any], s: dict[str, Any]) -> None:
    d = fit_deployment(c, s)
    assert d.shape.gpus == s["gpus"]
    m = memory(
        d,
        max_num_batched_tokens=c.get("batched_tokens", 1024),
        max_num_seqs=c.get("seqs", 64),
        max_model_len=c["max_model_len"],
    )
    assert m.fits == s["fits"], m.reason
    if "kv_gib_at_most" in s:
        assert 0 < m.kv_bytes / GIB <= s["kv_gib_at_most"]
    if "longest_below" in s:
        assert m.longest_request(c["max_model_len"]) < s["longest_below"]
    if not s["fits"]:
        assert m.reason


def test_a_worker_beyond_the_fleet_is_no_memory_question() -> None:
    """fc19: 64 GPUs would fit and the fleet has 32; the count is the solver's rule, the memory is not in the way."""
    c = case("fit", "fc19")
    d = fit_deployment(c, {"plan": "fp8-block", "dp": 64, "ep": True})
    m = memory(d, max_num_batched_tokens=512, max_num_seqs=64, max_model_len=8192)
    assert m.fits
    assert d.shape.gpus == 64


# ---------------------------------------------------------------- how many tokens


def old_8b(batched_tokens: int, max_model_len: int) -> Memory:
    d = deploy("meta-llama/Meta-Llama-3.1-8B", on=gpu("a10", torch_gib=23.58), version="0.6.4")
    return memory(
        d, max_num_batched_tokens=batched_tokens, max_num_seqs=256, max_model_len=max_model_len, utilization=0.9
    )


def test_fc03_the_activation_peak_follows_the_token_budget() -> None:
    c = case("kv_tokens", "fc03")
    assert kv_bytes_per_token(arch(c["model"]), "bf16") == c["kv_bytes_per_token"]
    for logged in c["logged"]:
        m = old_8b(logged["batched_tokens"], logged["max_model_len"])
        assert m.kv_bytes / GIB == pytest.approx(logged["kv_gib"], abs=0.15)
        assert m.kv_tokens == pytest.approx(logged["tokens"], rel=0.05)
        assert m.fits == logged["starts"]
    chunked = old_8b(c["chunked"]["batched_tokens"], 35000)
    low, high = c["chunked"]["tokens"]
    assert low <= chunked.kv_tokens <= high
    assert chunked.fits_one(35000)  # as it did; a plan would want some room to spare besides


def test_fc05_capacity_depends_on_the_engine() -> None:
    c = case("kv_tokens", "fc05")
    caps = {"max_num_batched_tokens": 8192, "max_num_seqs": 64, "max_model_len": 131072}
    trtllm = memory(deploy(c["model"], "fp8", c["gpu"], tp=8, engine="trtllm"), **caps)
    assert trtllm.kv_tokens >= c["tokens_at_least"]
    assert trtllm.fits
    vllm = memory(deploy(c["model"], "fp8", c["gpu"], tp=8), **caps)
    assert vllm.kv_tokens != trtllm.kv_tokens
    # The answer says what it took for the weights.
    assert trtllm.weights_bytes == weight_bytes_per_gpu(arch(c["model"]), PLANS["fp8"], Shape(tp=8))


def test_fc29_a_long_context_that_does_not_fit_and_the_one_that_does() -> None:
    c = case("kv_tokens", "fc29")
    assert kv_bytes_per_token(arch(c["model"]), "bf16") == c["kv_bytes_per_token"]
    assert c["max_model_len"] * c["kv_bytes_per_token"] / GIB == pytest.approx(c["needed_gib"], rel=1e-3)
    d = deploy(c["model"], "fp8-block", gpu("h20", torch_gib=c["torch_gib"]), dp=8, ep=True, version="0.10.1")
    for logged in c["logged"]:
        tokens = kv_tokens_from_bytes(d, logged["kv_gib"] * GIB, max_model_len=c["max_model_len"])
        assert tokens == pytest.approx(logged["longest"], rel=2e-3)
        assert tokens < c["max_model_len"]
        m = memory(
            d, max_num_batched_tokens=8192, max_num_seqs=1024, max_model_len=c["max_model_len"],
            utilization=logged["utilization"],
        )  # fmt: skip
        assert not m.fits
        assert 0 < m.longest_request(c["max_model_len"]) < c["max_model_len"]


# ---------------------------------------------------------------- what divides


def division_arch(c: dict[str, Any]) -> ModelArch:
    if "like" not in c:
        return arch(c["model"])
    path = catalog_data("models") / f"{c['like'].replace('/', '--')}.json"
    config = json.loads(path.read_text(encoding="utf-8"))["config"] | c["with"]
    return read_arch(config, c["id"])


@pytest.mark.parametrize("c", CASES["divisibility"], ids=[c["id"] for c in CASES["divisibility"]])
def test_divisibility(c: dict[str, Any]) -> None:
    model, plan = division_arch(c), PLANS[c["plan"]]
    for wrong in c["refused"]:
        found = check_division(model, plan, Shape(tp=wrong["tp"]))
        assert wrong["code"] in {r.code for r in found}
        for refusal in found:
            assert "tp 1" in refusal.would_do
    for right in c["allowed"]:
        assert check_division(model, plan, Shape(**right)) == ()


def test_fc12_heads_alone_allow_more_than_the_engines_do() -> None:
    c = case("divisibility", "fc12")
    layout = Layout(division_arch(c), PLANS[c["plan"]], Shape())
    assert [tp for tp in range(1, 65) if Heads().check(layout.with_tp(tp)) is None] == c["by_heads"]


def test_fc13_expert_parallelism_is_offered_and_four_gpus_are_the_least() -> None:
    c = case("divisibility", "fc13")
    (refusal,) = check_shape(deploy(c["model"], c["plan"], tp=8))
    assert refusal.would_do == "tp 1, 2, 4, or expert parallelism"
    fits = [
        tp
        for tp in (1, 2, 4)
        if memory(
            deploy(c["model"], c["plan"], tp=tp), max_num_batched_tokens=2048, max_num_seqs=64, max_model_len=8192
        ).fits
    ]
    assert min(fits) == c["least_gpus_of_80gb"]


def test_fc15_offers_expert_parallelism_or_one_gpu_per_rank() -> None:
    c = case("divisibility", "fc15")
    (refusal,) = check_division(division_arch(c), PLANS[c["plan"]], Shape(tp=8))
    assert refusal.would_do == "tp 1, or expert parallelism"


# ---------------------------------------------------------------- which formats

QUANT = [(c["id"], x) for c in CASES["quant_support"] for x in c["cases"]]


@pytest.mark.parametrize(
    ("case_id", "x"), QUANT, ids=[f"{i} {x['engine']} {x['version']} {x['gpu']} {x['precision']}" for i, x in QUANT]
)
def test_quantisation_support(case_id: str, x: dict[str, Any]) -> None:
    found = quant_support(x["engine"], x["version"], gpu(x["gpu"]), x["precision"])
    assert found.supported == x["supported"]
    assert found.native == x.get("native", False)
    assert found.reason
    assert found.source


def test_fc09_fp8_on_ampere_halves_memory_and_brings_no_arithmetic() -> None:
    low, high = case("quant_support", "fc09")["weights_ratio"]
    wide, narrow = (
        weight_bytes_per_gpu(arch("meta-llama/Meta-Llama-3.1-70B"), PLANS[p], Shape(tp=2)) for p in ("bf16", "fp8")
    )
    assert low <= narrow / wide <= high
    assert gpu("a100-80-sxm").peak("fp8") is None


def test_every_case_of_these_kinds_in_the_reference_is_here(shared: Path) -> None:
    reference = yaml.safe_load((shared / "cases/field_cases.yaml").read_text(encoding="utf-8"))["cases"]
    ours = {c["source"] for kind in CASES.values() for c in kind}
    for c in reference:
        if c["check"] in ("fit", "kv_tokens", "divisibility", "quant_support"):
            assert c["source_url"] in ours, c["id"]
