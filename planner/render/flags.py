"""Every rendered flag is checked against its engine version's own table, and against the traps its parser misses.

The engines accept prefixes of flags, drop misspelt `false` keys of a config file silently, ignore `--config=FILE`,
turn `null` into the text `None`. Nothing of that may leave this package, so the check is stricter than the engines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.catalog.engines import EngineVersion, Flag, find_engine
from planner.errors import UserError, did_you_mean

# Gone from the engines, still in older examples: what to write instead.
GONE = {
    "vllm": {
        "--num-scheduler-steps": "multi-step scheduling was removed",
        "--swap-space": "preemption recomputes; there is no swap",
        "--max-seq-len-to-capture": "write --max-cudagraph-capture-size",
        "--cuda-graph-sizes": "write --cudagraph-capture-sizes",
        "--enable-reasoning": "write --reasoning-parser",
        "--guided-decoding-backend": "write --structured-outputs-config",
        "--device": "the platform is detected",
        "--use-v2-block-manager": "it is the only one",
        "--max-num-partial-prefills": "removed",
        "--calculate-kv-scales": "removed",
    },
    "sglang": {
        "--cuda-graph-max-bs": "write --cuda-graph-max-bs-decode",
        "--cuda-graph-bs": "write --cuda-graph-bs-decode",
        "--pp": "ambiguous: write --pp-size",
        "--tp": "works only as an abbreviation: write --tp-size",
        "--dp": "works only as an abbreviation: write --dp-size",
        "--enable-ep-moe": "write --ep-size",
        "--enable-deepep-moe": "write --moe-a2a-backend deepep",
        "--disable-piecewise-cuda-graph": "write --cuda-graph-backend-prefill disabled",
    },
}
# Allowed values where the parser has no list of choices but the engine does (engines' own later checks).
VALUES: dict[tuple[str, str], Sequence[str]] = {
    ("vllm", "--kv-cache-dtype"): [
        "auto",
        "float16",
        "bfloat16",
        "fp8",
        "fp8_e4m3",
        "fp8_e5m2",
        "fp8_inc",
        "fp8_ds_mla",
        "nvfp4_ds_mla",
        "nvfp4",
        "nvfp4_4over6",
        "int8_per_token_head",
        "int4_per_token_head",
        "fp8_per_token_head",
    ],
    ("vllm", "--quantization"): [
        "awq",
        "auto_awq",
        "fp8",
        "modelopt",
        "modelopt_fp4",
        "modelopt_mxfp8",
        "modelopt_mixed",
        "auto_gptq",
        "gptq",
        "gptq_marlin",
        "awq_marlin",
        "humming",
        "compressed-tensors",
        "experts_int8",
        "quark",
        "moe_wna16",
        "torchao",
        "inc",
        "mxfp4",
        "gpt_oss_mxfp4",
        "deepseek_v4_fp8",
        "online",
        "fp8_per_tensor",
        "fp8_per_block",
        "fp8_per_channel",
        "int8_per_channel_weight_only",
        "mxfp8",
        "nvfp4_per_token",
    ],
    ("sglang", "--speculative-algorithm"): [
        "EAGLE",
        "EAGLE3",
        "NEXTN",
        "STANDALONE",
        "NGRAM",
        "DFLASH",
        "DSPARK",
        "UNO",
    ],
}
JSON_KEYS = {
    "--kv-transfer-config": [
        "kv_connector",
        "kv_role",
        "engine_id",
        "kv_buffer_device",
        "kv_port",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "enable_permute_local_kv",
        "kv_load_failure_policy",
    ],
    "--speculative-config": [
        "method",
        "model",
        "num_speculative_tokens",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "draft_tensor_parallel_size",
        "kv_cache_dtype",
        "quantization",
        "max_model_len",
    ],
}
NUMBER = {
    "int": re.compile(r"^-?\d+$"),
    "human_int": re.compile(r"^-?\d+$"),
    "human_int_or_auto": re.compile(r"^(-?\d+|auto)$"),
    "float": re.compile(r"^-?\d+(\.\d+)?$"),
}


def check(engine: str, version: str, argv: Sequence[str]) -> None:
    """Refuse an argument list that this engine version would not take exactly as written.

    `argv` are the arguments behind the command; one leading model is allowed for vLLM (`vllm serve MODEL`).
    """
    check_argv(find_engine(engine, version), argv)


def check_argv(engine: EngineVersion, argv: Sequence[str]) -> None:
    """The same for any engine or router of the catalogue."""
    table = engine.flag_table()
    seen: set[str] = set()
    words = list(argv)
    if engine.engine == "vllm" and words and not words[0].startswith("-"):
        words = words[1:]
    for name, values in _options(engine, words):
        flag = _known(engine, table, name)
        if flag.name in seen and not flag.repeats:
            raise _refuse(engine, f"{name} is given twice", "the last one would win silently")
        seen.add(flag.name)
        _check_values(engine, flag, name, values)
    _check_together(engine, seen, dict(_options(engine, words)))


def _options(engine: EngineVersion, words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Flags with their values; a value without a flag is refused: it would become the model's name."""
    name: str | None = None
    values: list[str] = []
    for word in words:
        if word.startswith("--"):
            if name is not None:
                yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
            if name == "--config" and equals:
                raise _refuse(engine, "--config=FILE is ignored silently", "write --config FILE as two words")
        elif name is None or re.match(r"^-[A-Za-z]", word):
            raise _refuse(engine, f"{word[:40]!r} is no long flag", "short flags and stray words are never rendered")
        else:
            values.append(word)
    if name is not None:
        yield name, values


def _known(engine: EngineVersion, table: Mapping[str, Flag], name: str) -> Flag:
    flag = table.get(name)
    if flag is not None:
        if flag.deprecated and engine.allow is None:
            raise _refuse(engine, f"{name} is deprecated in {engine.label}", "use the flag that replaces it")
        return flag
    for f in table.values():
        if name in f.negations:
            return Flag(f.name, (), (), "switch", 0, None, None, deprecated=False, yaml=True, repeats=False)
        if name in f.aliases:
            raise _refuse(engine, f"{name} is an alias", f"write {f.name}")
    gone = GONE.get(engine.engine, {}).get(name)
    if gone:
        raise _refuse(engine, f"{name} is not a flag of {engine.label}", gone)
    if name.replace("_", "-") in table:
        raise _refuse(engine, f"{name} is written with underscores", f"write {name.replace('_', '-')}")
    longer = sorted(f for f in table if f.startswith(name))
    if longer:
        raise _refuse(engine, f"{name} is an abbreviation", f"write {longer[0]} in full")
    raise _refuse(engine, f"{name} is not a flag of {engine.label}", *did_you_mean(name, table))


def _check_values(engine: EngineVersion, flag: Flag, name: str, values: Sequence[str]) -> None:
    if flag.kind == "switch":
        if values:
            raise _refuse(engine, f"{name} takes no value", f"remove {values[0][:40]!r}")
        return
    most = None if flag.nargs in ("+", "*") else 1
    if not values and flag.nargs not in ("*", "?"):
        raise _refuse(engine, f"{name} has no value", "give one")
    # a router's `--prefill URL PORT` takes up to two words, `--decode URL` exactly one
    if most is not None and len(values) > most:
        raise _refuse(engine, f"{name} takes one value, not {len(values)}", f"remove {values[1][:40]!r}")
    allowed = flag.choices or VALUES.get((engine.engine, flag.name))
    for value in values:
        if value in ("None", "null", ""):
            raise _refuse(engine, f"{name} has the value {value!r}", "leave the flag out")
        pattern = NUMBER.get(flag.kind)
        if pattern and not pattern.match(value):
            raise _refuse(engine, f"{name} takes a number, not {value[:40]!r}", "write plain digits")
        if allowed and value not in allowed:
            raise _refuse(
                engine,
                f"{name} does not take {value[:40]!r} in {engine.label}",
                *(did_you_mean(value, allowed) or (f"one of {', '.join(allowed)}",)),
            )
        if flag.kind == "json":
            _check_json(engine, name, value)


def _check_json(engine: EngineVersion, name: str, value: str) -> None:
    try:
        data = json.loads(value)
    except ValueError as e:
        raise _refuse(engine, f"{name} is not JSON", str(e)) from e
    allowed = JSON_KEYS.get(name)
    if allowed and isinstance(data, dict):
        unknown = sorted(set(data) - set(allowed))
        if unknown:
            raise _refuse(engine, f"{name} does not know the key {unknown[0]!r}", *did_you_mean(unknown[0], allowed))
    connector = data.get("kv_connector") if isinstance(data, dict) else None
    if connector is not None and "kv_role" not in data:
        raise _refuse(engine, f"{name} names a connector without a role", "add kv_role")


def _check_together(engine: EngineVersion, seen: set[str], options: Mapping[str, Sequence[str]]) -> None:
    """What the engine's own parser lets through although it cannot run (engine notes)."""

    def number(flag: str, default: float) -> float:
        return float(options[flag][0]) if options.get(flag) else default

    if engine.engine == "vllm":
        if not 0 < number("--gpu-memory-utilization", 0.9) <= 1:
            raise _refuse(engine, "--gpu-memory-utilization is not in (0, 1]", "write a fraction of the memory")
        budget, seqs = number("--max-num-batched-tokens", 1e9), number("--max-num-seqs", 1)
        if budget < seqs:
            raise _refuse(
                engine,
                f"--max-num-batched-tokens {budget:.0f} is below --max-num-seqs {seqs:.0f}",
                "a step must have room for one token of every sequence",
            )
        if "--enable-eplb" in seen and "--enable-expert-parallel" not in seen:
            raise _refuse(engine, "--enable-eplb needs --enable-expert-parallel", "add it")
    if engine.engine == "sglang":
        tp = number("--tp-size", 1)
        if not 0 < number("--mem-fraction-static", 0.5) < 1:
            raise _refuse(engine, "--mem-fraction-static is not in (0, 1)", "write a fraction of the memory")
        attention = ("--dp-size",) if "--enable-dp-attention" in seen else ("--attn-dp-size",)
        for flag in (*attention, "--ep-size"):
            if tp % number(flag, 1):
                raise _refuse(engine, f"{flag} does not divide --tp-size {tp:.0f}", "choose a divisor")
        if (tp * number("--pp-size", 1)) % number("--nnodes", 1):
            raise _refuse(engine, "tp x pp is not a multiple of --nnodes", "use whole nodes")
        if number("--dp-size", 1) > 1 and number("--attn-dp-size", 1) > 1:
            raise _refuse(engine, "--dp-size and --attn-dp-size exclude each other", "keep one of them")
        if number("--dp-size", 1) > 1 and number("--nnodes", 1) > 1:
            raise _refuse(engine, "--dp-size replicas cannot span nodes", "use replicas of the workload instead")
        if "--enable-priority-scheduling" in seen:
            if options.get("--schedule-policy", ["fcfs"]) not in (["fcfs"], ["lof"]):
                raise _refuse(
                    engine, "--enable-priority-scheduling needs --schedule-policy fcfs or lof", "leave it out"
                )
        else:
            alone = (
                "--schedule-low-priority-values-first",
                "--disable-priority-preemption",
                "--default-priority-value",
            )
            for flag in alone:
                if flag in seen:
                    raise _refuse(engine, f"{flag} needs --enable-priority-scheduling", "add it")
            if options.get("--retraction-policy") == ["priority"]:
                raise _refuse(engine, "--retraction-policy priority needs --enable-priority-scheduling", "add it")
        if options.get("--disaggregation-decode-allocation-policy") == ["prefill_complete"]:
            raise _refuse(
                engine,
                "--disaggregation-decode-allocation-policy prefill_complete is refused by SGLang 0.5.23 itself",
                "leave it out",
            )
        if "--speculative-algorithm" in seen and "--max-running-requests" not in seen:
            raise _refuse(engine, "speculation without --max-running-requests runs 48 requests", "set it")


def check_config(engine: EngineVersion, data: Mapping[str, Any]) -> None:
    """Refuse a `--config` mapping that the engine would drop, misread or reject."""
    table = engine.flag_table()
    for key, value in data.items():
        name = f"--{key}"
        if key == "model" and engine.engine == "vllm":
            continue
        if "_" in key:
            raise _refuse(engine, f"config key {key!r} has underscores", f"write {key.replace('_', '-')}")
        flag = _known(engine, table, name)
        if flag.name != name:
            raise _refuse(engine, f"config key {key!r} is a negation", f"write {flag.name[2:]}: false")
        if not flag.yaml:
            raise _refuse(engine, f"{name} is refused in a config file", "give it on the command line")
        if value is None:
            raise _refuse(engine, f"config key {key!r} is null", "leave it out: null becomes the text None")
        if flag.kind == "switch":
            if not isinstance(value, bool):
                raise _refuse(engine, f"config key {key!r} is a switch", "write true, or leave it out")
            if value is False and not (engine.engine == "vllm" and f"--no-{key}" in flag.negations):
                raise _refuse(engine, f"config key {key!r}: false is dropped silently", "leave it out")
            continue
        if isinstance(value, bool):
            raise _refuse(engine, f"config key {key!r} takes a value, not {value}", "write the value")
        if isinstance(value, (list, tuple)):
            if flag.nargs not in ("+", "*") or not value:
                raise _refuse(engine, f"config key {key!r} takes one value", "write it without a list")
            _check_values(engine, flag, name, [_word(v) for v in value])
        else:
            _check_values(engine, flag, name, [_word(value)])


def _word(value: Any) -> str:
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else str(value)


def _refuse(engine: EngineVersion, message: str, *helps: str) -> UserError:
    return UserError("engine-flag", f"{engine.label}: {message}", None, (), helps)
