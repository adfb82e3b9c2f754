"""Bad input: one clear error on stderr, the documented exit code, no traceback, nothing half-written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.command import Ran, plan

ROOT = Path(__file__).resolve().parent.parent.parent
FLEET = ("--fleet", "fleets/h100.yaml")
MAIN = (*FLEET, "--slo", "itl=50ms")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def refused(ran: Ran, code: int, *texts: str) -> None:
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    for text in texts:
        assert text in ran.err, ran.err


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        ((), ("error[missing-fleet]", "add --fleet FILE")),
        (("--fleet", "fleets/h10.yaml"), ("error[no-such-file]", "write h100.yaml")),
        (("--fleet", "fleets"), ("is a folder",)),
        (
            (*MAIN, "--model", "meta-llama/Llama-3.1-9B-Instruct"),
            ("unknown-model", "--model meta-llama/Llama-3.1-9B-Instruct", "write "),
        ),
        ((*MAIN, "--gpu", "h100-smx"), ("h100-smx",)),
        ((*MAIN, "--engine", "vlm"), ("error[unknown-engine]", "write vllm", "--engine vlm")),
        ((*MAIN, "--engine", "trtllm"), ("prediction only",)),
        ((*FLEET, "--slo", "itl=50"), ("a time needs a unit", "write 50ms")),
        ((*FLEET, "--slo", "itl=0ms"), ("greater than zero",)),
        ((*FLEET, "--slo", "itl=0"), ("greater than zero",)),
        ((*FLEET, "--slo", "itl.p101=50ms"), ("error[bad-percentile]",)),
        ((*FLEET, "--slo", "latency=50ms"), ("error[unknown-metric]",)),
        ((*FLEET, "--slo", "itl"), ("write metric=limit",)),
        ((*FLEET, "--slo", "itl=50ms", "--slo", "itl.p99=60ms"), ("given twice",)),
        ((*MAIN, "--rate", "-1/s"), ("greater than zero", "--rate -1/s")),
        ((*MAIN, "--rate", "0/s"), ("greater than zero",)),
        ((*MAIN, "--rate", "12"), ("a rate needs a unit", "write 12/s")),
        ((*MAIN, "--input", "many"), ("not a number of tokens",)),
        ((*MAIN, "--input", "0"), ("not a number of tokens",)),
        ((*MAIN, "--prefix-cache", "1.5"), ("not a share",)),
        ((*MAIN, "--survive", "2 nodes"), ("1 node",)),
        ((*MAIN, "--target", "helm"), ("kubernetes",)),
        ((*MAIN, "--precision", "fp3"), ("fp3",)),
        ((*MAIN, "--tp", "0"), ("greater than 0",)),
        ((*MAIN, "--max-context", "100"), ("context-below-requests", "--max-context 100", "4000 or more")),
        ((*FLEET, "--slo", "ttfa=1s"), ("slo-without-meaning", "thinking", "--slo ttfa=1s")),
        ((*MAIN, "--output", "1"), ("slo-without-meaning", "no gap")),
        ((*MAIN, "--fleeet", "x"), ("no such option",)),
        (("plann",), ("unknown-command",)),
        (("render",), ("missing argument",)),
        (("render", "no-such-plan.yaml"), ("does not exist",)),
        (("check", "fleets"), ("plan.yaml",)),
        (("--slo", "itl=50ms", "render", "x"), ("stands before the command",)),
        (("catalog", "gpus", "h900"), ("unknown GPU",)),
        (("catalog", "models", "gpt-9"), ("gpt-9",)),
        (("catalog", "add", "nowhere"), ("does not exist",)),
        (("schema", "intnt"), ("intnt",)),
    ],
    ids=lambda v: " ".join(v)[-40:] if isinstance(v, tuple) else None,
)
def test_words(words: tuple[str, ...], texts: tuple[str, ...]) -> None:
    refused(plan(*words), 2, *texts)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("", ("must be a mapping",)),
        ("- 1", ("must be a mapping",)),
        ("name: x\npools: []\n", ("has no pools", "fleet.yaml")),
        (
            "name: x\npools:\n- {name: a, gpu: h100-smx, nodes: 1}\n",
            ("unknown GPU 'h100-smx'", "fleet.yaml:3", "h100-sxm"),
        ),
        ("name: x\npools:\n- {name: a, gpu: h100-sxm, nodes: 0}\n", ("nodes",)),
        ("name: x\npools:\n- {name: a, gpu: h100-sxm, nodes: 1, reserved_nodes: 1}\n", ("reserved",)),
        ("name: x\npools:\n- {name: a, gpu: h100-sxm, nodes: 1, nodess: 1}\n", ("unknown key 'nodess'", "write nodes")),
        ("name: x\npools:\n- {name: a, gpu: h100-sxm, nodes: 1, price: 3}\n", ("price",)),
        ("name: x\nname: y\n", ("stands twice",)),
        ("name: x\npools:\n- {name: a, gpu: vr200-nvl72, nodes: 1}\n", ("vr200-nvl72",)),
    ],
)
def test_fleets(text: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    ran = plan("--fleet", str(path), "--slo", "itl=50ms")
    assert ran.code in (2, 3)
    refused(ran, ran.code, *texts)


def test_some_rates(tmp_path: Path) -> None:
    path = tmp_path / "intent.yaml"
    path.write_text(
        "services:\n- name: chat\n  model: Qwen/Qwen3-8B\n  traffic:\n"
        "  - {name: a, rate: 1/s, input: 10, output: 10}\n  - {name: b, input: 10, output: 10}\n"
    )
    refused(plan(*FLEET, "-f", str(path)), 2, "class 'b' has no rate but 'a' has", "intent.yaml:2")


def test_physics_says_no() -> None:
    ran = plan(
        *FLEET,
        "--model",
        "meta-llama/Llama-3.3-70B-Instruct",
        "--precision",
        "fp8",
        "--rate",
        "1/s",
        "--slo",
        "itl=1ms",
    )
    refused(ran, 3, "error[slo-itl]", "best reachable", "= help: set itl")


def test_tp_does_not_divide_heads() -> None:
    ran = plan(*MAIN, "--model", "meta-llama/Llama-3.1-8B-Instruct", "--tp", "3")
    assert ran.code in (2, 3)
    refused(ran, ran.code, "32", "3")


def test_model_fits_nowhere() -> None:
    ran = plan(
        "--fleet",
        "fleets/l40s.yaml",
        "--slo",
        "itl=50ms",
        "--model",
        "meta-llama/Llama-3.1-405B",
        "--precision",
        "bf16",
    )
    refused(ran, 3, "405B")


HOSTILE_CONFIGS = [
    "", "[]", "{}", "null", '{"a": 1, "a": 2}', '{"hidden_size": NaN}',
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}',
    '{"architectures": ["NoSuchModel"], "model_type": "nosuch", "hidden_size": 4096}',
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": "4096", "num_hidden_layers": 32, '
    '"num_attention_heads": 32, "intermediate_size": 1, "vocab_size": 10}',
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": -4096, "num_hidden_layers": 32, '
    '"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}',
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1e300, "num_hidden_layers": 32, '
    '"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256}',
    '{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, '
    '"num_hidden_layers": 1000000000, "num_attention_heads": 32, "num_key_value_heads": 8, '
    '"intermediate_size": 14336, "vocab_size": 128256}',
    '{"text_config": {"text_config": {"text_config": {}}}}',
    "{" * 100000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE_CONFIGS, ids=range(len(HOSTILE_CONFIGS)))
def test_hostile_configs(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    for words in (("catalog", "add", str(tmp_path)), (*MAIN, "--model", str(tmp_path))):
        ran = plan(*words)
        assert ran.code == 2, ran.err
        refused(ran, 2, "error[")


def test_huge_config(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as f:
        f.truncate(100_000_000)
    refused(plan("catalog", "add", str(tmp_path)), 2, "MB")


def test_a_folder_of_ones_own_is_no_hub_id(tmp_path: Path) -> None:
    words = (*FLEET, "--slo", "itl=50ms", "--rate", "5/s", "--model", "examples/own-model", "--no-verify")
    refused(plan(*words, "-o", str(tmp_path / "out")), 2, "model-reference", "model_source", "--target none")
    assert not (tmp_path / "out").exists()
    ran = plan(*words, "--target", "none", "-o", str(tmp_path / "none"))
    assert ran.code == 0, ran.err
    platform = tmp_path / "platform.yaml"
    platform.write_text("model_source: {kind: pvc, claim: weights, path: own-model}\n")
    assert plan(*words, "--platform", str(platform), "-o", str(tmp_path / "pvc")).code == 0


def test_output_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    refused(plan(*MAIN, "--no-verify", "-o", str(tmp_path / "out")), 2, "error[")
    assert (tmp_path / "out").read_text() == "mine"


def test_output_was_edited(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert plan(*MAIN, "--no-verify", "-o", str(out)).code == 0
    edited = next(out.rglob("deployment.yaml"))
    edited.write_text(edited.read_text() + "# by hand\n")
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    refused(plan(*MAIN, "--rate", "5/s", "--no-verify", "-o", str(out)), 2, "deployment.yaml", "--force")
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    assert plan("check", str(out)).code == 4
    assert plan(*MAIN, "--rate", "5/s", "--no-verify", "-o", str(out), "--force").code == 0
    assert plan("check", str(out)).code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; the write tests cover a read-only disk")
def test_output_is_read_only(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(stat.S_IREAD | stat.S_IEXEC)
    refused(plan(*MAIN, "--no-verify", "-o", str(out)), 2, "cannot")
    assert not list(out.iterdir())


def test_plan_of_a_newer_planner(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("schema_version: 2\n")
    refused(plan("explain", str(tmp_path / "plan.yaml")), 2, "error[newer-plan]")


@pytest.mark.parametrize("value", ["nan", "inf", "-nan"])
def test_options_that_take_numbers_take_finite_ones(value: str) -> None:
    refused(plan("simulate", "examples/chat-8b/deploy", f"--rate-scale={value}"), 2, "--rate-scale")
    words = ("estimate", "--model", "Qwen/Qwen3-8B", "--gpu", "h100-sxm", "--isl", "10", "--osl", "10")
    for option in ("--concurrency", "--batch"):
        refused(plan(*words, f"{option}={value}"), 2, option)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("--max-num-seqs 0", "--max-num-seqs 0 is not a whole number of at least 1"),
        ("--tensor-parallel-size abc", "--tensor-parallel-size abc is not a whole number"),
        ("--gpu-memory-utilization 1.5", "--gpu-memory-utilization 1.5 is not a share"),
    ],
)
def test_assess_names_values_that_cannot_be_meant(flags: str, text: str) -> None:
    ran = plan("assess", "--argv", f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}", "--gpu", "h100-sxm")
    assert f"UNKNOWN {text}" in ran.out


def test_assess_takes_the_engines_own_words() -> None:
    ran = plan("assess", "--argv", "vllm serve Qwen/Qwen3-8B --max-model-len auto", "--gpu", "h100-sxm")
    assert "UNKNOWN" not in ran.out


def test_assess_wants_a_whole_command() -> None:
    ran = plan("assess", "--argv", "vllm serve Qwen/Qwen3-8B --served-model-name 'x", "--gpu", "h100-sxm")
    refused(ran, 2, "no closing quotation", "close the quote")


def test_choices_stand_on_one_line() -> None:
    ran = plan("schema")
    refused(ran, 2, "intent, fleet, platform, plan")
    assert "\t" not in ran.err


DEPLOY = ROOT / "examples" / "chat-8b" / "deploy"


def test_check_wants_a_rendered_folder() -> None:
    refused(plan("check", "fleets"), 2, "error[no-plan]: fleets holds no plan.yaml")


def test_check_counts_and_sees_what_stands_beside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert plan("render", str(DEPLOY), "-o", str(out)).code == 0
    (out / "extra").mkdir()
    (out / "extra" / "notes.txt").write_text("mine\n")
    ran = plan("check", str(out))
    assert ran.code == 0, ran.err
    assert "note: not of this plan, left alone: extra/" in ran.err
    edited = next(out.rglob("deployment.yaml"))
    edited.write_text(edited.read_text() + "# by hand\n")
    ran = plan("check", str(out))
    assert ran.code == 4
    assert "1 file differs from the plan" in ran.err


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("kubernetes/deploymnt.yaml.j2", ("replaces nothing", "write kubernetes/deployment.yaml.j2")),
        ("deployment.yaml.j2", ("replaces nothing", "name it kubernetes/deployment.yaml.j2")),
        ("notes.txt", ("replaces nothing",)),
    ],
)
def test_templates_that_replace_nothing(name: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "own" / name
    path.parent.mkdir(parents=True)
    path.write_text("x\n")
    ran = plan("render", str(DEPLOY), "-o", str(tmp_path / "out"), "--templates", str(tmp_path / "own"))
    refused(ran, 2, *texts)


def test_an_unknown_precision_has_a_place() -> None:
    refused(plan(*MAIN, "--precision", "fp3"), 2, "unknown precision 'fp3'", "--precision fp3")


def test_a_config_error_has_a_line(tmp_path: Path) -> None:
    text = '{"architectures": ["LlamaForCausalLM"], "model_type": "llama",\n "hidden_size": -4096}'
    (tmp_path / "config.json").write_text(text)
    refused(plan("catalog", "add", str(tmp_path)), 2, "hidden_size is -4096", "config.json:2:2")
