"""Reading measured rows: both layouts, what is filled in, and what is refused."""

from __future__ import annotations

import pytest

from planner.errors import UserError
from planner.estimate.resolve import release_of, resolve
from planner.estimate.rows import parse, pool
from planner.perf.anchors import canonical

OPEN = {
    "id": "inferencex-1",
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "gpu": "H200-SXM",
    "n_gpus": "4",
    "engine": "vllm",
    "engine_version": "",
    "mode": "agg",
    "tp": "4",
    "pp": "1",
    "dp": "1",
    "ep": "1",
    "precision_weights": "fp8",
    "precision_kv": "",
    "isl": "8192",
    "osl": "1024",
    "concurrency": "16",
    "request_rate": "",
    "ttft_ms_mean_or_p50": "709",
    "tpot_ms_mean_or_p50": "14.8",
    "kind": "closed-loop",
    "note": "InferenceX single-turn run 2025-10-29, config_id 3",
    "source_group": "inferencex/llama",
    "spec_decode": "none",
}
SILICON = {
    "id": "s1",
    "silicon_data_source": "db-dump; measured=2026-04-21T00:00:00.000Z",
    "backend": "trtllm",
    "backend_version": "1.2.0rc6",
    "model_path": "deepseek-ai/DeepSeek-R1",
    "system": "b200_sxm",
    "precision": "fp4",
    "mode": "agg",
    "isl": "1024",
    "osl": "1024",
    "silicon_ttft_ms": "200",
    "silicon_tpot_ms": "10",
    "spec": "none",
    "concurrency": "64",
    "gpus_total": "8",
    "tp": "1",
    "attention_dp": "8",
    "ep": "8",
    "prefill": "",
    "decode": "",
    "weights": "nvfp4",
    "kv_dtype": "fp8",
    "length_factor": "0.9",
}


def test_lengths_of_a_benchmark_that_draws_them() -> None:
    r = parse(OPEN)
    assert (r.isl_tokens, r.osl_tokens, r.reserved_tokens) == (8192 * 0.9, 1024 * 0.9, 9216)
    assert r.date == "2025-10-29"
    assert parse({**OPEN, "note": "", "source_group": "lab"}).isl_tokens == 8192


def test_attention_dp_of_a_silicon_row() -> None:
    q = resolve(parse(SILICON))
    assert (q.deployment.shape.tp, q.deployment.shape.dp, q.deployment.shape.ep) == (1, 8, True)
    assert q.ranks == 8
    assert q.deployment.kv_dtype == "fp8"


def test_prefill_and_decode_apart() -> None:
    r = parse(
        {
            **SILICON,
            "mode": "disagg",
            "tp": "",
            "attention_dp": "",
            "ep": "",
            "prefill": "2x4 ep4 dp",
            "decode": "1x8 ep8 dp",
        }
    )
    q = resolve(r)
    assert q.prefill is not None
    assert (q.prefill.shape.dp, q.prefill_ranks, q.deployment.shape.dp, q.ranks) == (4, 8, 8, 8)
    assert pool("3x16 ep1").tp == 16
    assert pool("3x16 ep1 dp").tp == 1


def test_dense_data_parallelism_is_replicas() -> None:
    q = resolve(parse({**OPEN, "tp": "2", "dp": "2"}))
    assert q.deployment.shape.dp == 1
    assert q.ranks == 2


def test_a_wrongly_exported_layout_is_put_right() -> None:
    r = parse({**OPEN, "model": "MiniMaxAI/MiniMax-M2.5", "tp": "2", "dp": "2", "ep": "4", "n_gpus": "4"})
    assert (r.tp, r.dp, r.ep, r.gpus) == (2, 1, True, 2)


def test_names_of_one_model() -> None:
    assert (
        canonical("deepseek-ai/DeepSeek-R1 (V3 arch)")
        == canonical("deepseek-ai/DeepSeek-V3")
        == canonical("nvidia/DeepSeek-R1-NVFP4")
    )
    assert canonical("meta-llama/Llama-3.1-8B") != canonical("meta-llama/Meta-Llama-3-8B")


def test_releases_as_rows_state_them() -> None:
    assert release_of("trtllm", "0.8.1.post2") == "1.2.0"
    assert release_of("vllm", "0.19.0") == "0.19.0"
    assert release_of("vllm", "2024 (per repo)") == "0.5.4"
    assert release_of("sglang", "") == "0.5.9"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": ""}, "tensor parallelism is not stated"),
        ({"engine": "pegainfer"}, "engine 'pegainfer' is not modelled"),
        ({"engine": ""}, "the engine is not stated"),
        ({"isl": "many"}, "isl is 'many', not a number"),
        ({"osl": "0"}, "osl is 0 tokens"),
        ({"tp": "2.5"}, "tp is 2.5; a whole number from 1 is needed"),
        ({"isl": "-3"}, "isl is negative: -3"),
        ({"precision_weights": "fp7"}, "weight precision 'fp7' is not known"),
        ({"kind": "", "concurrency": ""}, "neither concurrency nor request rate is stated"),
        ({"kind": "sideways"}, "kind 'sideways' is not known"),
        ({"mode": "disagg"}, "prefill/decode layout is not stated (workers per pool)"),
        ({"note": "enforce_eager"}, "ran without CUDA graphs (enforce-eager)"),
        ({"model": ""}, "model is missing"),
    ],
)
def test_what_cannot_be_read_says_why(change: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as e:
        parse({**OPEN, **change})
    assert e.value.message == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": "unknown"}, "whether speculation was on is not known"),
        ({"length_factor": ""}, "length_factor is missing: join the row with its resolved layout"),
        ({"concurrency": ""}, "concurrency is missing"),
        ({"mode": "disagg"}, "prefill/decode layout is not known"),
        (
            {"mode": "disagg", "prefill": "two", "decode": "1x8 ep8"},
            "prefill/decode layout 'two' is not like '2x8 ep8 dp'",
        ),
    ],
)
def test_what_a_silicon_row_lacks(change: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as e:
        parse({**SILICON, **change})
    assert e.value.message == message


def test_unknown_hardware_and_models_are_refused() -> None:
    with pytest.raises(UserError, match="unknown GPU"):
        resolve(parse({**OPEN, "gpu": "RTX-9999"}))
    with pytest.raises(UserError, match="200 pipeline stages of only 80 layers"):
        resolve(parse({**OPEN, "pp": "200"}))
    with pytest.raises(UserError, match="a replica of 99999 GPUs"):
        resolve(parse({**OPEN, "tp": "99999"}))
    with pytest.raises(UserError, match="unknown model"):
        resolve(parse({**OPEN, "model": "nobody/nothing-1B"}))
