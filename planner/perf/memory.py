"""What one GPU's memory holds, and how many tokens and sequences are left room for, as each engine counts it.

vLLM 0.33.0      kv = total x utilisation - weights - communication buffers - activation peak - CUDA graphs
SGLang 0.5.23    kv = fraction x free before loading - weights; activations and graphs live in the rest
TensorRT-LLM     kv = 0.9 x (total - weights - activations - the rest), for prediction only

`total` is what torch sees, a little less than the driver prints. All figures are of the rank with least room left:
over tensor-parallel ranks about 1% below the first, over pipeline stages the one that binds.
How bytes become tokens (blocks, windows, states) is `kvpool.py`; constants are in catalog/memory_constants.yaml.
Held against logs in tests/perf/test_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.catalog.memoryconstants import constants, sglang, trtllm, vllm
from planner.errors import not_supported
from planner.perf.activation import Footprint, activation_bytes, footprint, graph_bytes
from planner.perf.arch import CompressedAttention, Mla
from planner.perf.deployment import Deployment, Hardware
from planner.perf.identity import ByIdentity
from planner.perf.kvpool import Blocks, Group, Pool, block_count, slots, vllm_groups
from planner.perf.quantities import matrix_bytes, rank_share, stage_layers, weight_bytes, weight_bytes_by_stage

GIB = 2.0**30
MIB = 2.0**20


@dataclass(frozen=True, slots=True)
class Memory:
    """One GPU (the rank with least room), in bytes; capacity is that of one replica or attention-DP rank."""

    total_bytes: float
    """What torch sees."""
    usable_bytes: float
    """What the engine may take: total x utilisation, or the static share."""
    weights_bytes: float
    activation_bytes: float
    cudagraph_bytes: float
    overhead_bytes: float
    """CUDA context, communication buffers, workspaces outside torch; vision and audio encoders where there are some."""
    kv_bytes: float
    """Left for the cache; negative where the rest alone is too large."""
    kv_tokens: int
    """The engine's own "KV cache size" at this max_model_len."""
    utilization: float
    max_model_len: int
    pool: Pool
    fits: bool
    """Whether the engine starts and one request of max_model_len can run."""
    reason: str
    """Why it does not fit; empty where it does."""
    method: str
    source: str

    def max_sequences(self, context_tokens: float) -> float:
        """Sequences that the cache holds at a mean length: windows are capped, states counted per sequence."""
        return self.pool.sequences(context_tokens) if self.kv_bytes > 0 else 0.0

    def fits_one(self, max_model_len: int) -> bool:
        """Whether one request of that length fits on its own."""
        return self.kv_bytes > 0 and self.pool.fits_one(max_model_len)

    def longest_request(self, limit: int) -> int:
        """The longest request that fits, at most `limit` tokens."""
        return self.pool.longest(limit) if self.kv_bytes > 0 else 0


@dataclass(frozen=True, slots=True)
class _Fixed:
    """What depends on the deployment alone."""

    torch_bytes: float
    weights: tuple[float, ...]
    """By pipeline stage."""
    foot: Footprint
    groups: tuple[Group, ...]
    linked: bool
    encoders_bytes: float
    """Vision and audio encoders, which the model's arithmetic leaves out."""
    approximate: bool


_FIXED: ByIdentity[_Fixed] = ByIdentity()


def _fixed(d: Deployment) -> _Fixed:
    rest = (d.weights, d.shape, d.kv_dtype, d.engine, d.engine_version, d.precision, d.hardware,
            d.weights_bytes_measured)  # fmt: skip
    return _FIXED.get(d.arch, rest, lambda: _make_fixed(d))


def _make_fixed(d: Deployment) -> _Fixed:
    weights = weight_bytes_by_stage(d.arch, d.weights, d.shape)
    if d.weights_bytes_measured is not None:
        # The measured size replaces the computed one; how it spreads over ranks stays as computed.
        factor = d.weights_bytes_measured / weight_bytes(d.arch, d.weights)
        weights = tuple(w * factor for w in weights)
    padding = mxfp4_padding_by_stage(d)
    weights = tuple(w + p for w, p in zip(weights, padding, strict=True))
    compressed = any(isinstance(g.mixer, CompressedAttention) for g in d.arch.layers)
    groups: tuple[Group, ...] = ()
    if d.engine == "vllm":
        groups = vllm_groups(d.arch, d.kv_dtype, d.shape, state_blocks=vllm(d.engine_version).state_blocks)
    linked = d.hardware.scale_up_gpus > 1
    approximate = bool(d.arch.approximate) or (compressed and d.engine != "vllm")
    encoders = constants().encoders.bytes if any("encoder" in x for x in d.arch.left_out) else 0.0
    return _Fixed(torch_bytes(d.hardware), weights, footprint(d), groups, linked, encoders, approximate)


def mxfp4_padding_by_stage(d: Deployment) -> tuple[float, ...]:
    """What MXFP4 experts take beyond their checkpoint: kernels want widths in 128 and hidden sizes in 256.

    gpt-oss (2880 both ways) grows by 9%: vLLM logs 65.97 GiB for 120b and 13.72 for 20b.
    Source: vllm 0.33.0 mxfp4_round_up_hidden_size_and_intermediate_size; vllm-project/vllm issue 23278.
    """
    width_step = 256 if d.hardware.vendor == "amd" else 128
    stages = stage_layers(d.arch.layer_count, d.shape.pp)
    total = [0.0] * len(stages)
    for g in d.arch.layers:
        extra = 0.0
        for x in g.linears:
            if x.group != "routed_expert" or d.weights.scheme_of(x) != "mxfp4":
                continue
            inputs, outputs, copies = rank_share(x, d.shape)
            steps = (width_step, 256) if x.shard == "row" else (256, width_step)
            padded = tuple(-(-n // step) * step for n, step in zip((inputs, outputs), steps, strict=True))
            extra += copies * (matrix_bytes("mxfp4", *padded) - matrix_bytes("mxfp4", inputs, outputs))
        for i, stage in enumerate(stages):
            total[i] += extra * sum(index in stage for index in g.indices)
    return tuple(total)


def torch_bytes(hardware: Hardware) -> float:
    """Memory as torch sees it: the driver's figure less what the driver keeps."""
    c = constants().driver
    return hardware.memory_bytes * (1 - c.share_ratio) - c.fixed


def memory(
    d: Deployment,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    utilization: float | None = None,
) -> Memory:
    """Where one GPU's memory goes and what is left for the cache.

    `utilization` is vLLM's gpu_memory_utilization, SGLang's mem_fraction_static or TensorRT-LLM's
    free_gpu_memory_fraction; none: the engine's default. Both caps are per attention-DP rank.
    """
    if d.engine == "vllm":
        return _vllm(d, max_num_batched_tokens, max_num_seqs, max_model_len, utilization)
    if d.engine == "sglang":
        return _sglang(d, max_num_batched_tokens, max_num_seqs, max_model_len, utilization)
    if d.engine == "trtllm":
        return _trtllm(d, max_num_batched_tokens, max_num_seqs, max_model_len, utilization)
    raise not_supported(f"the memory of engine {d.engine!r}", helps=("known: vllm, sglang, trtllm",))


def default_utilization(d: Deployment, *, max_num_batched_tokens: int = 8192, max_num_seqs: int = 256) -> float:
    """The share of memory an engine takes when nothing is said."""
    if d.engine == "vllm":
        return vllm(d.engine_version).utilization_ratio
    if d.engine == "sglang":
        return sglang_fraction(d, chunk_tokens=max_num_batched_tokens, largest_graph=max_num_seqs)
    return trtllm(d.engine_version).free_fraction_ratio


def kv_tokens_from_bytes(
    d: Deployment,
    kv_bytes: float,
    *,
    max_model_len: int,
    max_num_batched_tokens: int = 8192,
    first_rank: bool = True,
) -> int:
    """Tokens that the engine reports for this much cache memory per GPU.

    `first_rank`: the figure is what the first of several TP ranks printed, and the least of them decides.
    """
    f = _fixed(d)
    spread = constants().ranks.spread_ratio if first_rank and d.engine == "vllm" and d.shape.tp > 1 else 0.0
    each = (kv_bytes * (1 - spread),) * d.shape.pp
    return _pool(d, f, each, max_num_batched_tokens).tokens(max_model_len)


def _pool(d: Deployment, f: _Fixed, kv_bytes: tuple[float, ...], batched_tokens: int) -> Pool:
    if d.engine == "vllm":
        count = block_count(f.groups, kv_bytes, d.arch.layer_count)
        steps = d.shape.pp + 1 if vllm(d.engine_version).async_steps else d.shape.pp
        in_flight = steps * batched_tokens
        return Blocks(f.groups, count, in_flight, vllm(d.engine_version).tokens)
    if d.engine == "trtllm":
        return slots(
            d.arch, d.kv_dtype, d.shape, kv_bytes, swa_full_tokens_ratio=1.0, mamba_full_memory_ratio=0.9,
            state_slots=1, page_tokens=trtllm(d.engine_version).block_tokens,
        )  # fmt: skip
    c = sglang(d.engine_version)
    return slots(
        d.arch, d.kv_dtype, d.shape, kv_bytes,
        swa_full_tokens_ratio=c.swa_full_tokens_ratio,
        mamba_full_memory_ratio=c.mamba_full_memory_ratio,
        state_slots=c.state_slots,
        page_tokens=sglang_page_tokens(d),
    )  # fmt: skip


def _overhead(d: Deployment, f: _Fixed) -> float:
    """Memory outside torch that vLLM counts as used: communication buffers above all."""
    c = constants().overhead
    if d.shape.tp * d.shape.dp > 1:
        crosses = d.shape.tp * d.shape.dp > d.hardware.gpus_per_node
        return f.encoders_bytes + (c.linked if f.linked or crosses else c.unlinked)
    return f.encoders_bytes + c.one + (c.staged if d.shape.pp > 1 else 0.0)


def _vllm(d: Deployment, batched: int, seqs: int, model_len: int, utilization: float | None) -> Memory:
    f, c, all_ = _fixed(d), vllm(d.engine_version), constants()
    share = utilization if utilization is not None else c.utilization_ratio
    usable = f.torch_bytes * share
    activation = activation_bytes(
        f.foot, max_num_batched_tokens=batched, max_num_seqs=seqs, hidden_copies=c.hidden_copies,
        logit_held_bytes=c.logit_held, logit_peak_bytes=c.logit_peak,
    )  # fmt: skip
    graphs = 0.0
    if c.graphs_counted:
        capability = d.hardware.capability
        largest = 1024 if capability is not None and capability >= (10, 0) else 512
        graphs = graph_bytes(
            f.foot, max_num_seqs=seqs, largest=largest,
            base_bytes=all_.graphs.base, layer_bytes=all_.graphs.per_layer,
        )  # fmt: skip
    overhead = _overhead(d, f)
    left = tuple(usable - w - activation - graphs - overhead for w in f.weights)
    if d.shape.tp > 1:
        left = tuple(x * (1 - all_.ranks.spread_ratio) if x > 0 else x for x in left)
    free = f.torch_bytes - all_.context.bytes
    reason = ""
    if usable > free:
        reason = f"utilisation {share:g} asks for more than is free at start ({free / f.torch_bytes:.3f})"
    return _finish(
        d, f, left, batched, model_len,
        usable=usable, activation=activation, graphs=graphs, overhead=overhead, share=share, reason=reason,
        method="total x utilisation - weights - non-torch - activation peak"
        + (" - CUDA graphs" if c.graphs_counted else ""),
        source=f"vllm {d.engine_version}: {c.source}",
    )  # fmt: skip


def _sglang(d: Deployment, batched: int, seqs: int, model_len: int, utilization: float | None) -> Memory:
    f, c = _fixed(d), sglang(d.engine_version)
    multi = d.shape.tp * d.shape.dp > 1
    context = (c.context_linked if f.linked else c.context_unlinked) if multi else c.context_one
    share = utilization
    if share is None:
        share = sglang_fraction(d, chunk_tokens=batched * d.shape.dp, largest_graph=seqs)
    free = f.torch_bytes - context
    usable = free * share
    activation = activation_bytes(
        f.foot, max_num_batched_tokens=batched if d.role != "decode" else seqs, max_num_seqs=seqs,
        hidden_copies=c.hidden_copies, logit_held_bytes=0.0, logit_peak_bytes=c.logit_peak,
    )  # fmt: skip
    graphs = _sglang_graphs_mib(d, chunk_tokens=batched * d.shape.dp, largest_graph=seqs) * MIB
    left = tuple(usable - w - f.encoders_bytes for w in f.weights)
    reason = ""
    if free - usable < activation:
        reason = (
            f"mem_fraction_static {share:g} leaves {(free - usable) / GIB:.1f} GiB for activations "
            f"of {activation / GIB:.1f} GiB"
        )
    return _finish(
        d, f, left, batched, model_len,
        usable=usable, activation=activation, graphs=graphs, overhead=context + f.encoders_bytes,
        share=share, reason=reason,
        method="mem_fraction_static x free before loading - weights",
        source=f"sglang {d.engine_version}: {c.source}",
    )  # fmt: skip


def _trtllm(d: Deployment, batched: int, seqs: int, model_len: int, utilization: float | None) -> Memory:
    f, c = _fixed(d), trtllm(d.engine_version)
    share = utilization if utilization is not None else c.free_fraction_ratio
    overhead = c.other + f.encoders_bytes + (c.communication if d.shape.gpus > 1 else 0.0)
    activation = activation_bytes(
        f.foot, max_num_batched_tokens=batched, max_num_seqs=seqs, hidden_copies=3.0,
        logit_held_bytes=0.0, logit_peak_bytes=4.0,
    )  # fmt: skip
    left = tuple(share * (f.torch_bytes - w - activation - overhead) for w in f.weights)
    return _finish(
        d, f, left, batched, model_len,
        usable=f.torch_bytes, activation=activation, graphs=0.0, overhead=overhead, share=share, reason="",
        method="free_gpu_memory_fraction x (total - weights - activations - other)",
        source=f"trtllm {d.engine_version}: {c.source}",
    )  # fmt: skip


def _finish(
    d: Deployment,
    f: _Fixed,
    left: tuple[float, ...],
    batched: int,
    model_len: int,
    *,
    usable: float,
    activation: float,
    graphs: float,
    overhead: float,
    share: float,
    reason: str,
    method: str,
    source: str,
) -> Memory:
    pool = _pool(d, f, left, batched)
    worst = min(range(len(left)), key=lambda i: left[i])
    kv = left[worst]
    spare = f.torch_bytes * constants().headroom.ratio
    if not reason and kv <= 0:
        reason = f"no memory is left for the cache: {-kv / GIB:.1f} GiB short"
    elif not reason:
        surely = _pool(d, f, tuple(x - spare for x in left), batched)
        if not surely.fits_one(model_len):
            longest = surely.longest(model_len)
            reason = (
                f"a request of {model_len} tokens does not fit with {spare / GIB:.1f} GiB to spare; "
                f"the longest that does has {longest}"
            )
    return Memory(
        total_bytes=f.torch_bytes,
        usable_bytes=usable,
        weights_bytes=f.weights[worst],
        activation_bytes=activation,
        cudagraph_bytes=graphs,
        overhead_bytes=overhead,
        kv_bytes=kv,
        kv_tokens=pool.tokens(model_len) if kv > 0 else 0,
        utilization=share,
        max_model_len=model_len,
        pool=pool,
        fits=not reason,
        reason=reason,
        method=method + (" (approximate)" if f.approximate else ""),
        source=source,
    )


# ---------------------------------------------------------------- SGLang's defaults


def sglang_page_tokens(d: Deployment) -> int:
    """64 on Blackwell, whose TRT-LLM kernels want it; else 1. Source: resolved defaults of sglang 0.5.23."""
    return 64 if d.hardware.capability is not None and d.hardware.capability[0] == 10 else 1


def sglang_fraction(d: Deployment, *, chunk_tokens: int, largest_graph: int) -> float:
    """SGLang's default mem_fraction_static, by its own rule.

    reserved (MiB) = 512 + 1.5 x activation tokens + 128 x tp x pp + graphs, at least 10240 on GPUs above 60 GiB;
    fraction = round((memory - reserved) / memory, 3). `chunk_tokens` is chunked_prefill_size before its division by
    attention DP, `largest_graph` the largest captured decode batch. tp counts attention-DP ranks, as the flag does.
    Source: sglang 0.5.23 arg_groups/memory_hook.py, held against its own resolution in the tests.
    """
    memory_mib = d.hardware.memory_bytes / MIB
    tokens = max(largest_graph if d.role == "decode" else chunk_tokens, 2048)
    reserved = 512 + 1.5 * tokens + d.shape.gpus / 8 * 1024
    reserved += _sglang_graphs_mib(d, chunk_tokens=chunk_tokens, largest_graph=largest_graph)
    if memory_mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    return round((memory_mib - reserved) / memory_mib, 3)


def _sglang_graphs_mib(d: Deployment, *, chunk_tokens: int, largest_graph: int) -> float:
    """Reserve for graphs: 2 MiB per decode batch size, more with attention DP, 8 per captured prefill size."""
    mib = 0.0
    if d.role != "prefill":
        mib += 2 * largest_graph
        if d.shape.dp > 1:
            mib += largest_graph * d.shape.dp * (4.5 if largest_graph > 300 else 3.0)
    if d.role != "decode" and d.shape.pp == 1:
        mib += 1536 if _mla(d) else 8 * _prefill_sizes(chunk_tokens)
    return mib


def _mla(d: Deployment) -> bool:
    return any(isinstance(g.mixer, Mla) for g in d.arch.layers)


def _prefill_sizes(largest: int) -> int:
    """How many token counts SGLang captures for prefill up to `largest`."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, largest + 1, 512))
    return sum(1 for a, b, s in steps for n in range(a, b, s) if n <= largest)
