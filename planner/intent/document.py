"""The intent: what is asked for. Everything a user may write in `intent.yaml`, with units and defaults.

Frozen pydantic models; nothing is computed here beyond checks that need no catalogue. `resolve.py` turns a
document and command-line words into the intent that a plan embeds.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from statistics import NormalDist
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue

from planner.documents import Strict
from planner.errors import UserError, did_you_mean
from planner.intent.slo import Slo, parse_limit, parse_slo_key
from planner.intent.traces import TraceSummary
from planner.units import PerSecond, Seconds, format_time_exact

Tokens = Annotated[int, Field(gt=0, le=100_000_000)]


def _percent(value: Any) -> Any:
    """`40%` is 0.4, as the command line reads it."""
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value.strip())):
        return float(Decimal(match[1]) / 100)
    return value


class _OrNumber:
    """Tells editors that a short form is accepted beside the object."""

    def __init__(self, *short: dict[str, Any]) -> None:
        self.short = short

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [*self.short, handler(core)]}


_PERCENT = {"type": "string", "pattern": r"^\d+(\.\d+)?\s*%$", "description": "a percentage"}
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_percent), _OrNumber(_PERCENT)]
SomeShare = Annotated[float, Field(gt=0, le=1), BeforeValidator(_percent), _OrNumber(_PERCENT)]


def _slos(value: Any) -> Any:
    if isinstance(value, dict):
        found = tuple(Slo(*parse_slo_key(str(k)), parse_limit(v)) for k, v in value.items())
    elif isinstance(value, (list, tuple)) and all(isinstance(v, Slo) for v in value):
        found = tuple(value)
    else:
        raise UserError("bad-slo", "slo must be a mapping", None, (), ("write slo: {itl: 50ms, ttft.p95: 800ms}",))
    keys = [s.key for s in found]
    twice = sorted({k for k in keys if keys.count(k) > 1})
    if twice:
        raise UserError(
            "duplicate-slo",
            f"{twice[0]} is given twice",
            None,
            ("a metric without percentile means p99",),
            ("keep one of them",),
        )
    return tuple(sorted(found))


Slos = Annotated[
    tuple[Slo, ...],
    BeforeValidator(_slos),
    PlainSerializer(lambda v: {s.key: format_time_exact(s.limit_s) for s in v}, return_type=dict),
    WithJsonSchema(
        {
            "type": "object",
            "description": "metric[.percentile]: limit; without a percentile p99",
            "propertyNames": {"pattern": r"^(ttft|itl|tpot|e2e|ttfa)(\.(mean|p\d{1,2}(\.\d)?))?$"},
            "additionalProperties": {"type": "string", "examples": ["50ms"]},
        }
    ),
]


class Lengths(Strict):
    """A length distribution in tokens: a constant, a mean with a percentile or a CV (lognormal), or a histogram."""

    mean: Annotated[float, Field(gt=0, le=1e8)] | None = None
    cv: Annotated[float, Field(ge=0, le=20)] | None = None
    """Standard deviation over mean."""
    p50: Tokens | None = None
    p90: Tokens | None = None
    p95: Tokens | None = None
    p99: Tokens | None = None
    max: Tokens | None = None
    """Longest admitted; the distribution is cut there."""
    histogram: tuple[tuple[Tokens, Annotated[float, Field(gt=0)]], ...] | None = None
    """Pairs of length and weight."""

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        spread = [n for n in ("cv", "p50", "p90", "p95", "p99") if getattr(self, n) is not None]
        if self.histogram is not None:
            if self.mean is not None or spread:
                raise UserError("lengths", "a histogram stands alone", None, (), ("remove mean, cv and percentiles",))
            if not self.histogram:
                raise UserError("lengths", "an empty histogram", None, (), ("give at least one [length, weight] pair",))
        elif self.mean is None:
            raise UserError(
                "lengths",
                "mean is missing",
                None,
                (),
                ("write {mean: 3000, p95: 8000}, {mean: 3000, cv: 1} or a plain number",),
            )
        elif len(spread) > 1:
            raise UserError("lengths", f"{' and '.join(spread)} both set the spread", None, (), ("keep one of them",))
        elif spread and spread[0] != "cv" and spread[0] != "p50" and getattr(self, spread[0]) < self.mean:
            raise UserError(
                "lengths",
                f"{spread[0]} is below the mean",
                None,
                (),
                ("a lognormal's upper percentiles lie above its mean",),
            )
        elif spread == ["p50"] and self.p50 is not None and self.p50 > self.mean:
            raise UserError("lengths", "p50 is above the mean", None, (), ("a lognormal's median lies below its mean",))
        elif spread and spread[0] not in ("cv", "p50"):
            # p / mean = exp(z s - s^2 / 2) is at most exp(z^2 / 2), at s = z.
            most = math.exp(NormalDist().inv_cdf(int(spread[0][1:]) / 100) ** 2 / 2)
            if getattr(self, spread[0]) > most * self.mean:
                raise UserError(
                    "lengths",
                    f"no lognormal has a {spread[0]} of {getattr(self, spread[0])} with a mean of {self.mean:g}",
                    None,
                    (f"at most {most:.3g} times the mean is possible",),
                    ("give a histogram or a trace",),
                )
        if self.max is not None and self.mean is not None and self.max < self.mean:
            raise UserError(
                "lengths", f"max {self.max} is below the mean {self.mean:g}", None, (), ("raise max or lower the mean",)
            )
        return self


def _lengths(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, dict, Lengths)):
        raise UserError(
            "lengths", "a length is a number of tokens", None, (), ("write 3500, or {mean: 3000, p95: 8000}",)
        )
    if isinstance(value, (int, float)):
        if not 0 < value <= 1e8 or value != int(value):
            raise UserError(
                "lengths",
                f"a length of {value} tokens",
                None,
                (),
                ("write a whole number of tokens of at least 1",),
            )
        return {"mean": int(value), "cv": 0.0}
    return value


LengthSpec = Annotated[
    Lengths, BeforeValidator(_lengths), _OrNumber({"type": "integer", "minimum": 1, "description": "tokens"})
]


class Arrivals(Strict):
    """How requests arrive: Poisson (cv 1), burstier or smoother gamma gaps, or replayed from the class's trace."""

    process: Literal["poisson", "gamma", "replay"] = "poisson"
    cv: Annotated[float, Field(gt=0, le=20)] = 1.0
    """CV of the gaps between arrivals."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"process": value}
        if isinstance(value, dict) and "cv" in value and "process" not in value:
            return {**value, "process": "gamma"}
        return value


class Sessions(Strict):
    """Multi-turn conversations: each turn's prompt holds the turns before it."""

    turns: Annotated[float, Field(ge=1, le=1000)]
    """Mean turns of a session."""
    think_time: Seconds = 10.0
    """Mean pause between an answer and the next turn (exponential): how long the cache must keep the history."""


class PrefixCache(Strict):
    """Prompt tokens found in the prefix cache: a share, shared leading tokens, or (routing alone) what sessions or a
    trace find on their own.

    Depends on routing.
    """

    share: Share | None = None
    """Share of all prompt tokens that hit when every replica is warm."""
    shared_tokens: Tokens | None = None
    """Leading tokens (system prompt) common to a group of requests."""
    groups: Annotated[int, Field(gt=0)] = 1
    """How many different shared prefixes there are."""
    routing: Literal["round-robin", "affinity"] = "round-robin"

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, (dict, PrefixCache)):
            return value
        share = _percent(value)
        if isinstance(share, bool) or not isinstance(share, (int, float)):
            raise UserError(
                "prefix-cache",
                f"{value!r} is not a share of prompt tokens",
                None,
                (),
                ("write prefix_cache: 0.4, 40% or {shared_tokens: 2000}",),
            )
        return {"share": share}

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.share is None) == (self.shared_tokens is None) and not self.from_trace:
            raise UserError(
                "prefix-cache",
                "give either share or shared_tokens",
                None,
                (),
                ("write prefix_cache: 0.4 or {shared_tokens: 2000}; of a trace's own hits {routing: affinity}",),
            )
        return self

    @property
    def from_trace(self) -> bool:
        """Whether only the routing of a trace's own hits is said."""
        return self.share is None and self.shared_tokens is None and self.model_fields_set >= {"routing"}


class TrafficClass(Strict):
    """One kind of request: how many, how long, how quickly they must be served."""

    name: Annotated[str, Field(min_length=1, max_length=40)] = "default"
    rate: PerSecond | None = None
    """Requests per second in the busiest minute the plan is for; none: as much as the fleet carries."""
    rate_source: str | None = None
    """Where the rate comes from: window, quantile, growth (free text, printed)."""
    input: LengthSpec | None = None
    output: LengthSpec | None = None
    trace: str | None = None
    """A CSV file with lengths and, optionally, arrival times; relative to the intent file."""
    trace_summary: TraceSummary | None = None
    """What the planner keeps of the trace, so that a plan can be read without the file; filled in, not written."""
    thinking: LengthSpec | None = None
    """Thinking tokens before the answer's first; part of the decode work on top of `output`."""
    arrivals: Annotated[Arrivals, _OrNumber({"enum": ["poisson", "replay"]})] = Arrivals()
    prefix_cache: Annotated[PrefixCache, _OrNumber({"type": "number", "minimum": 0, "maximum": 1}, _PERCENT)] | None = (
        None
    )
    sessions: Sessions | None = None
    trough: SomeShare | None = None
    """The quietest hour's rate as a share of the peak."""
    priority: Annotated[int, Field(ge=0, le=100)] = 0
    """Place in the queue of a pool that serves several classes: lower is served first, equal ones in order of arrival.
    It is the number that clients send as `priority` with each request; a request without one counts as 0."""
    slo: Slos | None = None

    @model_validator(mode="after")
    def _lengths_given(self) -> Self:
        if self.trace is not None and (self.input is not None or self.output is not None):
            raise UserError(
                "traffic",
                f"class {self.name!r} has both a trace and lengths",
                None,
                (),
                ("keep one of them",),
            )
        if self.trace is None and (self.input is None or self.output is None):
            missing = "input" if self.input is None else "output"
            raise UserError(
                "traffic",
                f"class {self.name!r} has no {missing} length",
                None,
                (),
                (f"add {missing}: 500, or trace: FILE.csv",),
            )
        routed = self.prefix_cache is not None and self.prefix_cache.from_trace
        if routed and self.trace is None and self.sessions is None:
            raise UserError(
                "prefix-cache",
                f"class {self.name!r} says how prefix hits are routed, but not how many there are",
                None,
                (),
                ("add share or shared_tokens, sessions, or a trace that counts them",),
            )
        if self.arrivals.process == "replay" and self.trace is None:
            raise UserError(
                "traffic",
                f"class {self.name!r} replays arrivals without a trace",
                None,
                (),
                ("add trace: FILE.csv with a timestamp column",),
            )
        return self


class Speculation(Strict):
    """Speculative decoding, with the acceptance the user measured: the planner never guesses one."""

    method: Literal["ngram", "mtp", "eagle3", "draft_model"]
    tokens: Annotated[int, Field(ge=1, le=16)]
    """Draft tokens per verification step."""
    acceptance: Annotated[float, Field(gt=0, lt=1)]
    """Probability that one draft token is accepted, given that those before it were."""
    draft_model: str | None = None


PRECISIONS = ("bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4", "mxfp8")


def _precision(value: str) -> str:
    if value not in PRECISIONS:
        raise UserError(
            "unknown-precision",
            f"unknown precision {value[:40]!r}",
            None,
            (f"precisions are {', '.join(PRECISIONS)}",),
            did_you_mean(value, PRECISIONS),
        )
    return value


Precision = Annotated[str, AfterValidator(_precision)]


class Fixed(Strict):
    """Choices the user made already; the solver keeps them."""

    gpu: str | None = None
    tp: Annotated[int, Field(gt=0, le=1024)] | None = None
    pp: Annotated[int, Field(gt=0, le=64)] | None = None
    dp: Annotated[int, Field(gt=0, le=1024)] | None = None
    ep: bool | None = None
    precision: Precision | None = None
    kv_dtype: Literal["auto", "bf16", "fp8"] | None = None
    max_num_seqs: Annotated[int, Field(gt=0, le=65536)] | None = None
    max_num_batched_tokens: Annotated[int, Field(gt=0, le=1_048_576)] | None = None
    replicas: Annotated[int, Field(gt=0, le=100_000)] | None = None
    pools: Literal["aggregated", "disaggregated"] | None = None


NAME = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")


class Service(Strict):
    """One model endpoint: its model, traffic, promises and freedom."""

    name: str
    model: str
    engine: str = "vllm"
    engine_version: str | None = None
    target: Literal["none", "kubernetes", "dynamo", "kserve", "llm-d", "compose"] = "kubernetes"
    traffic: Annotated[tuple[TrafficClass, ...], Field(min_length=1)]
    slo: Slos = ()
    """Promises for every class that has none of its own."""
    survive: Literal["none", "1 replica", "1 node"] = "none"
    precisions: tuple[Precision, ...] | None = None
    """Allowed weight precisions; none: the checkpoint's own."""
    kv_dtypes: tuple[Literal["auto", "bf16", "fp8"], ...] = ("auto",)
    accuracy_floor: Share | None = None
    """Least accuracy kept, as a share of the original's (0.99)."""
    max_context: Tokens | None = None
    """Longest request (prompt + answer) the service must admit; none: from the lengths."""
    fixed: Fixed = Fixed()
    speculation: Speculation | None = None
    pools: Literal["auto", "aggregated", "disaggregated"] = "aggregated"
    load_cap: SomeShare = 0.8
    """A replica is planned at no more than this share of its stability limit."""
    degraded_cap: SomeShare = 0.95
    """The same after a failure."""
    gpu_memory_utilization: SomeShare | None = None
    baseline: str | None = None
    """A plan or deployment that runs today: changing it then costs something."""

    @field_validator("name")
    @classmethod
    def _dns_label(cls, value: str) -> str:
        if not NAME.match(value) or len(value) > 30:
            raise UserError(
                "bad-name",
                f"{value!r} cannot be a service name",
                None,
                ("it becomes part of Kubernetes names",),
                ("use lower-case letters, digits and dashes, a letter first, at most 30 characters",),
            )
        return value

    @field_validator("traffic", mode="before")
    @classmethod
    def _one_class(cls, value: Any) -> Any:
        return [value] if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _classes(self) -> Self:
        names = [c.name for c in self.traffic]
        if len(set(names)) != len(names):
            raise UserError(
                "duplicate-class",
                f"service {self.name!r} has two traffic classes of one name",
                None,
                (),
                ("name them apart",),
            )
        # A class that replays its trace has the trace's rate.
        rated = [c.name for c in self.traffic if c.rate is not None or c.arrivals.process == "replay"]
        unrated = [c.name for c in self.traffic if c.name not in rated]
        if rated and unrated:
            raise UserError(
                "some-rates",
                f"service {self.name!r}: class {unrated[0]!r} has no rate but {rated[0]!r} has",
                None,
                (),
                ("give every class a rate, or none to ask for the most the fleet carries",),
            )
        return self

    @property
    def has_rate(self) -> bool:
        """Whether its traffic is given; else the question is how much the fleet carries."""
        return self.traffic[0].rate is not None or self.traffic[0].arrivals.process == "replay"


class Intent(Strict):
    """All that is asked for: services and what to optimise."""

    schema_version: Literal[1] = 1
    objective: Literal["cost", "gpus", "throughput"] = "cost"
    services: Annotated[tuple[Service, ...], Field(min_length=1)]
    change_cost: Annotated[float, Field(ge=0)] = 0.0
    """Dollars per hour that restarting one GPU's pods against the baseline is worth avoiding."""

    @model_validator(mode="after")
    def _services(self) -> Self:
        names = [s.name for s in self.services]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise UserError(
                "duplicate-service", f"two services are called {twice[0]!r}", None, (), ("name them apart",)
            )
        rated = [s.name for s in self.services if s.has_rate]
        unrated = [s.name for s in self.services if not s.has_rate]
        if rated and unrated:
            raise UserError(
                "some-rates",
                f"service {unrated[0]!r} has no rate but {rated[0]!r} has",
                None,
                (),
                ("give every service a rate, or none",),
            )
        return self
