"""What one launch says about a deployment, in the planner's own terms; None where it says nothing.

SGLang and vLLM count differently. vLLM: GPUs = tp x pp x dp, caps per DP rank. SGLang: `--attn-dp-size` divides the TP
group (no extra GPUs), `--dp-size` alone runs whole copies, and its request cap spans all attention-DP ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.assess.flags import Option, Options
from planner.perf.arch import Shape

Role = Literal["aggregated", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands, in the user's own files."""

    source: str
    line: int | None = None
    workload: str = ""
    container: str = ""

    def __str__(self) -> str:
        at = self.source + (f":{self.line}" if self.line is not None else "")
        return " ".join(p for p in (at, self.workload, self.container) if p)


@dataclass(frozen=True, slots=True)
class Found:
    """One deployment that the planner did not write, as far as it can be read."""

    name: str
    place: Place
    role: Role = "aggregated"
    engine: str | None = None
    """None: nothing here is an engine that the planner reads; `problems` say what it is."""
    engine_version: str | None = None
    """As the image's tag says; None where it says nothing."""
    image: str | None = None
    model: str | None = None
    shape: Shape = field(default_factory=Shape)
    copies: int = 1
    """Whole copies inside one launcher (SGLang `--dp-size`, vLLM DP of a dense model)."""
    replicas: int | None = None
    replicas_max: int | None = None
    """Where an autoscaler may go."""
    pods_per_replica: int = 1
    gpus_per_pod: int | None = None
    gpu: str | None = None
    """Catalogue id of the GPU that the node selector names."""
    max_num_seqs: int | None = None
    """Per attention-DP rank; None: the engine's default."""
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    memory_ratio: float | None = None
    """vLLM's gpu_memory_utilization, SGLang's mem_fraction_static: both shares of one GPU, not the same share."""
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    prefix_caching: bool = True
    served_first: Literal["lower", "higher"] | None = None
    """Which `priority` of a request is served first; None: they are served in order of arrival."""
    eager: bool = False
    graphs_max: int | None = None
    speculation: str | None = None
    transfer: str | None = None
    """KV connector or transfer backend, for prefill and decode apart."""
    options: Options | None = None
    problems: tuple[str, ...] = ()
    """What was not readable, each by name."""
    notes: tuple[str, ...] = ()
    """What was read and deserves a word."""

    @property
    def gpus_needed(self) -> int:
        """GPUs that one replica's flags ask for."""
        return self.shape.gpus * self.copies

    @property
    def gpus_given(self) -> int | None:
        """GPUs that one replica's pods get."""
        return None if self.gpus_per_pod is None else self.gpus_per_pod * self.pods_per_replica

    @property
    def gpus(self) -> int | None:
        """GPUs of all replicas."""
        each = self.gpus_given or self.gpus_needed
        return None if self.replicas is None else self.replicas * each

    @property
    def given(self) -> tuple[Option, ...]:
        return self.options.given if self.options else ()

    def flag_of(self, name: str) -> str:
        """How the user spells a cap, or how the engine does: for messages."""
        engine_flag = NAMES.get(self.engine or "vllm", NAMES["vllm"]).get(name, f"--{name.replace('_', '-')}")
        return (self.options.written(engine_flag) if self.options else None) or engine_flag


NAMES: dict[str, dict[str, str]] = {
    "vllm": {
        "tp": "--tensor-parallel-size",
        "pp": "--pipeline-parallel-size",
        "dp": "--data-parallel-size",
        "ep": "--enable-expert-parallel",
        "max_num_seqs": "--max-num-seqs",
        "max_num_batched_tokens": "--max-num-batched-tokens",
        "max_model_len": "--max-model-len",
        "memory_ratio": "--gpu-memory-utilization",
        "quantization": "--quantization",
        "kv_cache_dtype": "--kv-cache-dtype",
    },
    "sglang": {
        "tp": "--tp-size",
        "pp": "--pp-size",
        "dp": "--dp-size",
        "ep": "--ep-size",
        "max_num_seqs": "--max-running-requests",
        "max_num_batched_tokens": "--chunked-prefill-size",
        "max_model_len": "--context-length",
        "memory_ratio": "--mem-fraction-static",
        "quantization": "--quantization",
        "kv_cache_dtype": "--kv-cache-dtype",
    },
}
"""The planner's word -> the engine's flag."""


def from_options(base: Found, options: Options) -> Found:
    """Fill in what the options say."""
    problems, notes = (*base.problems, *options.problems), (*base.notes, *options.notes)
    filled = replace(base, engine=options.engine, options=options, problems=problems, notes=notes)
    return _vllm(filled, options) if options.engine == "vllm" else _sglang(filled, options)


def _vllm(f: Found, o: Options) -> Found:
    model = o.text("--model") or (o.positional[0] if o.positional else None) or f.model
    transfer = o.json("--kv-transfer-config")
    role: Role = f.role
    mode = o.text("--disaggregation-mode")
    if mode in ("prefill", "decode"):
        role = "prefill" if mode == "prefill" else "decode"
    elif transfer.get("kv_role") in ("kv_producer", "kv_consumer"):
        role = "prefill" if transfer["kv_role"] == "kv_producer" else "decode"
    speculation = o.json("--speculative-config")
    compilation = o.json("--compilation-config")
    sizes = compilation.get("cudagraph_capture_sizes")
    graphs = o.number("--max-cudagraph-capture-size") or compilation.get("max_cudagraph_capture_size")
    if graphs is None and isinstance(sizes, list) and sizes and all(isinstance(s, int) for s in sizes):
        graphs = max(sizes)
    seqs = o.number("--max-num-seqs")
    ep = o.on("--enable-expert-parallel")
    shape = Shape(
        tp=o.number("--tensor-parallel-size") or f.shape.tp,
        pp=o.number("--pipeline-parallel-size") or f.shape.pp,
        dp=o.number("--data-parallel-size") or f.shape.dp,
        ep=f.shape.ep if ep is None else ep,
    )
    return replace(
        f,
        model=model,
        role=role,
        shape=shape,
        max_num_seqs=seqs,
        max_num_batched_tokens=o.number("--max-num-batched-tokens"),
        max_model_len=o.number("--max-model-len"),
        memory_ratio=o.ratio("--gpu-memory-utilization"),
        quantization=o.text("--quantization"),
        kv_cache_dtype=o.text("--kv-cache-dtype"),
        prefix_caching=o.on("--enable-prefix-caching") is not False,
        served_first="lower" if o.text("--scheduling-policy") == "priority" else None,
        eager=o.on("--enforce-eager") is True,
        graphs_max=graphs,
        speculation=str(speculation.get("method", "draft_model")) if speculation else None,
        transfer=str(transfer["kv_connector"]) if "kv_connector" in transfer else None,
        problems=(*f.problems, *_stray(o)),
    )


def _stray(o: Options) -> tuple[str, ...]:
    extra = o.positional[1:]
    return (f"{extra[0]!r} is a stray word: the engine refuses it",) if extra else ()


def _sglang(f: Found, o: Options) -> Found:
    tp, pp = o.number("--tp-size") or 1, o.number("--pp-size") or 1
    copies, attention_dp = o.number("--dp-size") or 1, o.number("--attn-dp-size") or 1
    if o.on("--enable-dp-attention"):
        copies, attention_dp = 1, copies
    problems = list(f.problems)
    if tp % attention_dp:
        problems.append(f"{o.written('--attn-dp-size') or '--dp-size'} {attention_dp} does not divide tp {tp}")
        attention_dp = 1
    mode = o.text("--disaggregation-mode")
    role: Role = f.role
    if mode in ("prefill", "decode"):
        role = "prefill" if mode == "prefill" else "decode"
    seqs = o.number("--max-running-requests")
    chunk = o.number("--chunked-prefill-size")
    return replace(
        f,
        model=o.text("--model-path") or f.model,
        role=role,
        shape=Shape(tp=tp // attention_dp, pp=pp, dp=attention_dp, ep=(o.number("--ep-size") or 1) > 1),
        copies=copies,
        max_num_seqs=None if seqs is None else max(1, seqs // attention_dp),
        max_num_batched_tokens=None if chunk is None else max(1, chunk // attention_dp),
        max_model_len=o.number("--context-length"),
        memory_ratio=o.ratio("--mem-fraction-static"),
        quantization=o.text("--quantization"),
        kv_cache_dtype=o.text("--kv-cache-dtype"),
        prefix_caching=not o.on("--disable-radix-cache"),
        served_first=(
            ("lower" if o.on("--schedule-low-priority-values-first") else "higher")
            if o.on("--enable-priority-scheduling")
            else None
        ),
        eager=o.on("--disable-cuda-graph") is True or o.text("--cuda-graph-backend-decode") == "disabled",
        graphs_max=o.number("--cuda-graph-max-bs-decode"),
        speculation=o.text("--speculative-algorithm"),
        transfer=o.text("--disaggregation-transfer-backend") if role != "aggregated" else None,
        problems=(*problems, *((f"{o.positional[0]!r} is a stray word",) if o.positional else ())),
    )


def hub_name(model: str | None) -> str | None:
    """`hf://org/name` and hub folders as the hub calls them; other text as it is.

    >>> hub_name("hf://Qwen/Qwen3-32B"), hub_name("/hub/models--Qwen--Qwen3-32B/snapshots/ab12"), hub_name("/m/x")
    ('Qwen/Qwen3-32B', 'Qwen/Qwen3-32B', '/m/x')
    """
    if model is None:
        return None
    cached = re.search(r"models--([^/]+?)--([^/]+)", model)
    if cached:
        return f"{cached[1]}/{cached[2]}"
    return re.sub(r"^(?:hf|huggingface)://", "", model)
