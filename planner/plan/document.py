"""The plan document: the lock file that reviewers read and everything else is rendered from.

Field order here is file order. Quantities carry units; figures have three significant digits; lists are sorted by
name. It embeds the resolved intent and the fleet pools it uses at full precision, so that it can be rendered,
simulated and reviewed alone. No timestamps, hosts, absolute paths or wall times.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from planner.documents import Strict
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.units import Bytes, BytesOrZero, DollarsPerHour, PerSecond, Seconds, Watts, show_time

Status = Literal["optimal", "feasible"]
Role = Literal["aggregated", "prefill", "decode"]
Ratio = Annotated[float, Field(ge=0)]


class Figure(Strict):
    """One predicted figure beside its limit, with its 80% band and the method that gave it."""

    metric: str
    """`itl.p99`, `ttft.mean`, ..."""
    value: Seconds
    low: Seconds
    high: Seconds
    limit: Seconds | None = None
    method: str
    simulated: Seconds | None = None
    """The same figure by event simulation, where it was run."""

    @property
    def checked_by(self) -> str:
        """The method, and what the simulation measured where that is another figure."""
        if self.simulated is None or self.simulated == self.value:
            return self.method
        return f"{self.method}; simulated {show_time(self.simulated)}"


class ShapeDoc(Strict):
    """How one replica is laid out; GPUs per replica = tp x pp x dp."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: bool = False


class MemoryDoc(Strict):
    """Where one GPU's memory goes (the worst rank)."""

    total: BytesOrZero
    usable: BytesOrZero
    weights: BytesOrZero
    activations: BytesOrZero
    cuda_graphs: BytesOrZero
    overhead: BytesOrZero
    kv_cache: BytesOrZero
    method: str


class ModelDoc(Strict):
    """The model and the checkpoint that is served."""

    id: str
    repo: str
    """What the engine is told to load."""
    precision: str
    online_quantization: str | None = None
    """Engine-side quantisation of a wider checkpoint (vLLM `--quantization fp8`); none: as stored."""
    params_total: int
    params_active: int
    weights: Bytes
    """All weights, once."""
    family: str
    is_moe: bool
    own: bool = False
    """A folder of the user's: no hub holds it."""
    accuracy_prior: Ratio | None = None
    accuracy_low: Ratio | None = None
    accuracy_high: Ratio | None = None
    accuracy_source: str | None = None


class ClassDoc(Strict):
    """One traffic class as one pool serves it."""

    name: str
    rate: PerSecond
    priority: int | None = None
    """What clients send with each request, where the pool is scheduled by priority."""
    input_mean_tokens: float
    output_mean_tokens: float
    history_hit_ratio: Ratio | None = None
    """Of sessions: the share of the tokens of earlier turns that is counted on to be in the prefix cache."""
    figures: tuple[Figure, ...]


class PoolDoc(Strict):
    """Replicas that are alike."""

    name: str
    """`<service>` or `<service>-prefill`, `<service>-decode`, `<service>-b` for a second shape."""
    role: Role
    fleet_pool: str
    gpu: str
    shape: ShapeDoc
    gpus_per_replica: int
    nodes_per_replica: int
    replicas: int
    gpus: int
    kv_dtype: Literal["bf16", "fp8"]
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    scheduling: Literal["priority"] | None = None
    """The order of the waiting queue where the pool's classes differ: each request's `priority`, lower first; none:
    in order of arrival."""
    gpu_memory_utilization: float
    graph_sizes_max: int
    """Largest batch captured as a CUDA graph."""
    block_size: int = 16
    all2all: str | None = None
    """Expert-parallel token exchange, in the engine's own word (`deepep_low_latency`); none: the engine's plain one."""
    rate: PerSecond
    """Requests per second over all replicas."""
    rate_max: PerSecond
    """lambda_max of all replicas: the stability limit."""
    load: Ratio
    """rate / lambda_max."""
    running_mean: float
    running_p99: float
    """Sequences in the running batch of one replica."""
    kv_sequences: float
    """How many mean-length sequences one replica's KV cache holds."""
    kv_tokens: int
    """Tokens of KV cache of one replica, in the engine's own convention."""
    kv_use_p99: Ratio
    mbu: Ratio
    """HBM bandwidth used of peak in a mean decode step."""
    mfu: Ratio
    """Tensor rate used of peak in a full prefill chunk."""
    memory: MemoryDoc
    classes: tuple[ClassDoc, ...]
    cost: DollarsPerHour
    power: Watts | None = None
    """Bound from TDP; none where the catalogue has no TDP."""
    reasons: dict[str, str]
    """Decision -> short reason with figures; printed as comments in the rendered files."""


class TransferDoc(Strict):
    """KV hand-over from prefill to decode."""

    prompt_kv: Bytes
    time: Seconds
    over: str


class SpeculationDoc(Strict):
    """Speculative decoding as rendered."""

    method: str
    tokens: int
    acceptance: float
    draft_model: str | None = None


class CostDoc(Strict):
    """Cost per hour as planned, idle included; per million tokens at peak (the two are not additive)."""

    per_hour: DollarsPerHour
    per_million_output_tokens: float
    per_million_input_tokens: float
    per_million_output_tokens_daily_mean: float | None = None


class ServiceDoc(Strict):
    """One service's answer."""

    name: str
    model: ModelDoc
    engine: str
    engine_version: str
    target: str
    pools: tuple[PoolDoc, ...]
    speculation: SpeculationDoc | None = None
    transfer: TransferDoc | None = None
    cost: CostDoc
    why: tuple[str, ...]
    runner_up: str | None = None
    bound_by: tuple[str, ...] = ()
    """Rules that bind: without one of them the answer would be cheaper."""


class BadDay(Strict):
    """What happens to one service on one bad day."""

    name: str
    service: str
    load: Ratio
    misses: tuple[str, ...]
    """SLOs that miss, with their figures; empty: all hold."""
    method: str


class Verification(Strict):
    """Whether the event simulation checked the answer, and what it took."""

    by: Literal["simulation", "none"]
    rounds: int = 0
    note: str = ""
    failed: tuple[str, ...] = ()
    """Promises that the simulation puts past their limits after the last round."""


class Digests(Strict):
    """sha256 over canonical forms, never over file bytes."""

    intent: str
    fleet: str
    catalog: str
    calibration: str


class Totals(Strict):
    """The answer in one place."""

    gpus: int
    fleet_gpus: int
    cost: DollarsPerHour
    committed: DollarsPerHour = 0.0
    """Part of the cost that is sunk."""
    power: Watts | None = None
    odds: Ratio | None = None
    """Probability that every SLO holds at peak, from the error bands."""
    odds_note: str = ""
    scale: float | None = None
    """Where no rate was given: the factor on the classes' mix that the fleet carries."""


class Change(Strict):
    """Against the baseline."""

    baseline: str
    gpus: int
    cost_per_hour: float
    restarts: tuple[str, ...]


class Solver(Strict):
    """What the solver proved."""

    name: str
    version: str
    objective: Literal["cost", "gpus", "throughput"]
    value: float
    bound: float
    gap: Ratio
    tie_breaks: bool
    """Whether the sequential tie-breaks were applied (only after proof)."""


class OwnModel(Strict):
    """A model that the catalogue does not hold, as its owner's files say, so that the plan stands alone."""

    name: str
    """As the intent names it."""
    config: dict[str, Any]
    hf_quant: Any = None
    weights: Bytes | None = None


class Plan(Strict):
    """A plan."""

    schema_version: Literal[1] = 1
    planner_version: str
    status: Status
    verification: Verification
    totals: Totals
    change: Change | None = None
    services: tuple[ServiceDoc, ...]
    bad_days: tuple[BadDay, ...] = ()
    defaults: tuple[str, ...] = ()
    """What nobody said and the planner took: printed first."""
    decide: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    measure_first: tuple[str, ...] = ()
    solver: Solver
    digests: Digests
    intent: Intent
    fleet: Fleet
    """Only the pools that the plan uses."""
    platform: Platform = Platform()
    own_models: tuple[OwnModel, ...] = ()
