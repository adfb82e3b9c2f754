"""Monitoring: scrape, alerts at the planned limits, and a dashboard of planned against actual.

A histogram tells exactly how many requests were over a value only where one of its bucket edges stands on it. Both
engines take their edges from a flag, which the launch sets (see `vllm._metrics`, `sglang._metrics`), so alerts sit on
the limit itself. Where edges cannot be set they snap to the nearest honest edge, and the alert says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.catalog.engines import EngineVersion
from planner.plan.document import Figure
from planner.render.args import number
from planner.render.artefact import Artefact, Meta
from planner.render.facts import PoolFacts
from planner.render.kubernetes import meta, need_crd, service_meta
from planner.render.scaling import label_match, promql
from planner.render.text import dns_name, object_name
from planner.units import show_time

WINDOW = "10m"
TARGET_LABELS = ["app.kubernetes.io/instance", "app.kubernetes.io/name", "app.kubernetes.io/component"]
DYNAMO_METRICS = {
    "ttft": "dynamo_frontend_time_to_first_token_seconds",
    "itl": "dynamo_frontend_inter_token_latency_seconds",
    "running": "dynamo_frontend_inflight_requests",
    "waiting": "dynamo_frontend_queued_requests",
}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert rule."""

    name: str
    expr: str
    hold: str
    severity: str
    summary: str


@dataclass(frozen=True, slots=True)
class Monitor:
    """A PodMonitor."""

    meta: Meta
    selector: dict[str, str]
    path: str
    labels: list[str]


@dataclass(frozen=True, slots=True)
class Rules:
    """A PrometheusRule."""

    meta: Meta
    group: str
    alerts: tuple[Alert, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: what is planned beside what is."""

    id: int
    title: str
    unit: str
    x: int
    y: int
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A Grafana dashboard and the ConfigMap that carries it."""

    name: str
    labels: dict[str, str]
    uid: str
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What the metrics of one pool (or of a Dynamo frontend) are called and how they are selected."""

    title: str
    key: str
    metrics: dict[str, str]
    match: str
    figures: tuple[Figure, ...]
    engine: EngineVersion | None
    replicas: int
    rate: float
    cap: int | None
    running_mean: float
    kv_use_p99: float | None


def camel(*parts: str) -> str:
    """An alert's name, e.g. `ChatItlP99`."""
    return "".join(w.capitalize() for p in parts for w in p.replace(".", "-").split("-"))


def loosest(f: PoolFacts) -> tuple[Figure, ...]:
    """One figure per metric and percentile: of several classes the loosest limit. Metrics do not tell classes apart,
    and a mixture in which every class holds its own limit holds the loosest."""
    best: dict[str, Figure] = {}
    for c in f.pool.classes:
        for figure in c.figures:
            old = best.get(figure.metric)
            if figure.limit is not None and (old is None or old.limit is None or figure.limit > old.limit):
                best[figure.metric] = figure
    return tuple(best[m] for m in sorted(best))


def edge(engine: EngineVersion | None, metric: str, limit: float, predicted: float) -> tuple[float, str] | None:
    """The bucket edge an alert can stand on, and a word where it is not the limit; None where no edge is known.

    The largest edge below the limit if the prediction lies below it too, otherwise the smallest above: an alert below
    what the plan itself expects would never be silent.
    """
    if engine is None:
        return None
    if metric in engine.bucket_flags or metric in engine.bucket_families:
        return limit, ""
    edges = engine.bucket_edges.get(metric, ())
    if not edges:
        return None
    below = [e for e in edges if e <= limit]
    if below and below[-1] >= predicted:
        at = below[-1]
    else:
        above = [e for e in edges if e >= limit]
        if not above:
            return None
        at = above[0]
    word = "" if at == limit else f" (measured at {show_time(at)}, the nearest edge of the engine's histogram)"
    return at, word


def slo_alert(v: View, figure: Figure) -> Alert | None:
    """Fires while an SLO is broken."""
    metric, _, stat = figure.metric.partition(".")
    name = v.metrics.get(metric)
    limit = figure.limit
    if name is None or limit is None:
        return None
    summary = f"{v.title}: {metric} {stat} over {show_time(limit)} (planned {show_time(figure.value)})"
    rate = f"{{{v.match}}}[{WINDOW}]"
    if stat == "mean":
        expr = f"sum(rate({name}_sum{rate})) / sum(rate({name}_count{rate})) > {number(limit)}"
        return Alert(camel(v.key, metric, stat), expr, "10m", "warning", summary)
    quantile = float(stat[1:]) / 100
    found = edge(v.engine, metric, limit, figure.value)
    if found is None:
        text = f"histogram_quantile({number(quantile)}, sum by (le) (rate({name}_bucket{rate}))) > {number(limit)}"
        summary += " (estimated between edges of the histogram)"
    else:
        at, word = found
        good = f'{name}_bucket{{{v.match},le="{number(float(at))}"}}[{WINDOW}]'
        over = number(round(1 - quantile, 6))
        text = f"1 - sum(rate({good})) / sum(rate({name}_count{rate})) > {over}"
        summary += word
    return Alert(camel(v.key, metric, stat), text, "10m", "warning", summary)


def alerts(v: View) -> tuple[Alert, ...]:
    """Every SLO, and every quantity that the plan says will not be exceeded."""
    found = [a for figure in v.figures if (a := slo_alert(v, figure)) is not None]
    m = v.metrics
    if v.cap is not None:
        found.append(
            Alert(
                camel(v.key, "batch-full"),
                f"max({m['running']}{{{v.match}}}) >= {v.cap}",
                "10m",
                "warning",
                f"{v.title}: a replica runs {v.cap} sequences, its cap; more wait (planned {v.running_mean:g})",
            )
        )
    if v.kv_use_p99 is not None and "kv_use" in m:
        found.append(
            Alert(
                camel(v.key, "kv-full"),
                f"max({m['kv_use']}{{{v.match}}}) > 0.98",
                "5m",
                "warning",
                f"{v.title}: KV cache full, sequences will be preempted (planned p99 {v.kv_use_p99:.0%})",
            )
        )
    if v.engine is not None and "e2e" in m:
        found.append(
            Alert(
                camel(v.key, "rate-above-plan"),
                f"sum(rate({m['e2e']}_count{{{v.match}}}[{WINDOW}])) > {number(float(v.rate))}",
                "15m",
                "info",
                f"{v.title}: more than the {v.rate:g} requests per second that the plan is for; plan again",
            )
        )
        found.append(
            Alert(
                camel(v.key, "replicas-missing"),
                f"{pods(v)} < {v.replicas} or absent({m['running']}{{{v.match}}})",
                "15m",
                "critical",
                f"{v.title}: fewer than {v.replicas} replicas report",
            )
        )
    return tuple(found)


def pods(v: View) -> str:
    """How many pods report; a replica with data parallelism reports once per rank."""
    return f"count(count by (pod) ({v.metrics['running']}{{{v.match}}}))"


def panels(views: list[View]) -> tuple[Panel, ...]:
    """Planned against actual, two panels a row."""
    found: list[Panel] = []

    def add(title: str, unit: str, *series: Series) -> None:
        i = len(found)
        found.append(Panel(i + 1, title, unit, 12 * (i % 2), 8 * (i // 2), series))

    for v in views:
        for figure in v.figures:
            metric, _, stat = figure.metric.partition(".")
            name = v.metrics.get(metric)
            if name is None or figure.limit is None:
                continue
            rate = f"{{{v.match}}}[{WINDOW}]"
            if stat == "mean":
                actual = f"sum(rate({name}_sum{rate})) / sum(rate({name}_count{rate}))"
            else:
                q = number(float(stat[1:]) / 100)
                actual = f"histogram_quantile({q}, sum by (le) (rate({name}_bucket{rate})))"
            add(
                f"{v.title}: {metric} {stat}",
                "s",
                Series(actual, "actual"),
                Series(f"vector({number(float(figure.value))})", "planned"),
                Series(f"vector({number(float(figure.limit))})", "limit"),
            )
        # the frontend's figure is the whole service's
        mean = f"sum({v.metrics['running']}{{{v.match}}})" + (f" / {pods(v)}" if v.engine is not None else "")
        running = [
            Series(mean, "actual" if v.engine is None else "actual, mean of replicas"),
            Series(f"vector({number(float(v.running_mean))})", "planned"),
        ]
        if v.cap is not None:
            running.append(Series(f"vector({v.cap})", "cap"))
        add(f"{v.title}: sequences running", "short", *running)
        add(f"{v.title}: requests waiting", "short", Series(f"sum({v.metrics['waiting']}{{{v.match}}})", "actual"))
        if v.kv_use_p99 is not None and "kv_use" in v.metrics:
            add(
                f"{v.title}: KV cache in use",
                "percentunit",
                Series(f"max({v.metrics['kv_use']}{{{v.match}}})", "actual, fullest replica"),
                Series(f"vector({number(float(v.kv_use_p99))})", "planned p99"),
            )
        if "e2e" in v.metrics:
            add(
                f"{v.title}: requests per second",
                "reqps",
                Series(f"sum(rate({v.metrics['e2e']}_count{{{v.match}}}[{WINDOW}]))", "actual"),
                Series(f"vector({number(float(v.rate))})", "planned"),
            )
    return tuple(found)


def pool_view(f: PoolFacts) -> View:
    """One pool by its engine's own metrics."""
    return View(
        title=f.name,
        key=f.name,
        metrics=f.engine.metrics,
        match=label_match(f),
        figures=loosest(f),
        engine=f.engine,
        replicas=f.pool.replicas if f.plan.platform.autoscaling == "none" else 1,
        rate=f.pool.rate,
        cap=f.pool.max_num_seqs,  # engines count per data-parallel rank, as the cap does
        running_mean=f.pool.running_mean,
        kv_use_p99=f.pool.kv_use_p99,
    )


def dynamo_view(pools: list[PoolFacts]) -> View:
    """A Dynamo service by its frontend's metrics, which see whole requests."""
    f = pools[0]
    best: dict[str, Figure] = {}
    for p in pools:
        for figure in loosest(p):
            best.setdefault(figure.metric, figure)
    return View(
        title=f.service.name,
        key=f.service.name,
        metrics=DYNAMO_METRICS,
        match=f'model="{promql(f.service.model.id)}"',
        figures=tuple(best[m] for m in sorted(best)),
        engine=None,
        replicas=0,
        rate=f.pool.rate,
        cap=None,
        running_mean=sum(p.pool.running_mean * p.pool.replicas for p in pools),
        kv_use_p99=None,
    )


def monitoring_artefacts(folder: PurePosixPath, pools: list[PoolFacts], views: list[View]) -> list[Artefact]:
    """podmonitor.yaml, prometheusrule.yaml and dashboard.json, where the platform asks for them."""
    f = pools[0]
    if not f.plan.platform.monitoring:
        return []
    need_crd(f.plan.platform, "prometheus")
    base = object_name(f.service.name)
    rules = Rules(
        service_meta(f, dns_name(base, "rule"), "monitoring"),
        f"llm-planner-{base}",
        tuple(a for v in views for a in alerts(v)),
    )
    name = dns_name(f"{base}-dashboard", "dashboard")
    dashboard = Dashboard(
        name=name,
        labels={"grafana_dashboard": "1"},
        uid=name,
        title=f"{f.service.name}: planned and actual",
        panels=panels(views),
    )
    found = [
        Artefact(folder / "prometheusrule.yaml", "kubernetes/prometheusrule.yaml.j2", {"rules": rules}),
        Artefact(folder / "dashboard.json", "kubernetes/dashboard.json.j2", {"dashboard": dashboard}),
    ]
    if all(v.engine is not None for v in views):
        monitors = [Monitor(meta(p), _monitored(p), p.engine.metrics_path, TARGET_LABELS) for p in pools]
        found.append(Artefact(folder / "podmonitor.yaml", "kubernetes/podmonitor.yaml.j2", {"monitors": monitors}))
    return found


def _monitored(f: PoolFacts) -> dict[str, Any]:
    """Pods that serve metrics: of several nodes only the first has the `http` port, so no label is needed for it."""
    return {"app.kubernetes.io/instance": f.service.name, "app.kubernetes.io/name": f.name}
