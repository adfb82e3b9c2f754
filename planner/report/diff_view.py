"""A difference between two plans as a value, and as text, Markdown for a pull request, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planner.report.causes import Cause, Proof
from planner.report.console import paragraph, table
from planner.report.restarts import FileChange, Restart
from planner.units import show_money, show_time


@dataclass(frozen=True, slots=True)
class Change:
    """One decision or figure that differs."""

    what: str
    before: str
    after: str
    delta: str = ""


@dataclass(frozen=True, slots=True)
class SloChange:
    """One promise in both plans; slack is (limit - predicted) / limit, negative where it misses."""

    service: str
    class_name: str
    metric: str
    limit_before_s: float | None
    limit_after_s: float | None
    before_s: float | None
    after_s: float | None

    @property
    def slack_before(self) -> float | None:
        return _slack(self.before_s, self.limit_before_s)

    @property
    def slack_after(self) -> float | None:
        return _slack(self.after_s, self.limit_after_s)


def _slack(value_s: float | None, limit_s: float | None) -> float | None:
    return None if value_s is None or limit_s is None else (limit_s - value_s) / limit_s


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Everything a reviewer asks about a change of plan."""

    title: str
    gpus: tuple[int, int]
    cost: tuple[float, float]
    odds: tuple[float | None, float | None]
    changes: tuple[Change, ...]
    slos: tuple[SloChange, ...]
    causes: tuple[Cause, ...]
    proofs: tuple[Proof, ...]
    restarts: tuple[Restart, ...]
    configs: tuple[str, ...]
    files: tuple[FileChange, ...]
    rendered: bool
    """Whether pod templates were compared; without a renderer the diff says nothing about restarts."""
    same_answer: bool

    @property
    def same(self) -> bool:
        """True when both decide the same from the same inputs and restart nothing (exit 0)."""
        inputs = [c for c in self.causes if c.kind in ("intent", "fleet", "platform")]
        return self.same_answer and not inputs and not self.restarts and not self.configs

    def __bool__(self) -> bool:
        """A diff is true when there is a difference."""
        return not self.same

    def to_text(self, width: int = 100) -> str:
        return _text(self, max(60, min(width, 140)))

    def to_markdown(self) -> str:
        return _markdown(self)

    def to_json(self) -> str:
        data = asdict(self)
        for entry, slo in zip(data["slos"], self.slos, strict=True):
            entry |= {"slack_before": slo.slack_before, "slack_after": slo.slack_after}
        return json.dumps({"schema_version": 1, "same": self.same, **data}, indent=2) + "\n"


# ---------------------------------------------------------------- words


def _headline(d: PlanDiff) -> list[str]:
    parts = [
        f"{d.gpus[0]} -> {d.gpus[1]} GPUs ({d.gpus[1] - d.gpus[0]:+d})"
        if d.gpus[0] != d.gpus[1]
        else f"{d.gpus[1]} GPUs",
        f"{show_money(d.cost[0])} -> {show_money(d.cost[1])}/h"
        if d.cost[0] != d.cost[1]
        else f"{show_money(d.cost[1])}/h",
    ]
    odds = [f"{o:.0%}" if o is not None else "unknown" for o in d.odds]
    if any(o is not None for o in d.odds):
        parts.append(f"odds {odds[0]} -> {odds[1]}" if odds[0] != odds[1] else f"odds {odds[0]}")
    missed = sum(1 for s in d.slos if s.slack_after is not None and s.slack_after < 0)
    parts.append(f"{missed} SLO{'s' if missed > 1 else ''} MISSED" if missed else "all SLOs met at peak")
    return parts


def _joined(parts: Sequence[str], width: int) -> str:
    """Facts on one line while they fit, on as many as they need otherwise."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]}   {part}" if lines[-1] else part
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def _verdict(d: PlanDiff) -> str:
    if d.same and not d.causes:
        return "same"
    if d.same:
        return "same answer"
    return "different inputs, same answer" if d.same_answer else "different"


def _restart_headline(d: PlanDiff) -> str:
    if not d.rendered:
        return "not compared (no renderer)"
    hit = [r for r in d.restarts if r.action == "restart"]
    if not hit:
        others = [r for r in d.restarts if r.action != "restart"]
        return "nothing restarts" + (f"; {len(others)} workloads start, stop or scale" if others else "")
    known = sum(r.pods for r in hit if r.pods is not None)
    more = "+" if any(r.pods is None for r in hit) else ""
    return f"restarts {known}{more} pods of {', '.join(r.workload for r in hit)}"


def _slo_cells(s: SloChange) -> tuple[str, str, str, str, str]:
    def time(value_s: float | None) -> str:
        return "none" if value_s is None else show_time(value_s)

    limit = (
        time(s.limit_after_s)
        if s.limit_before_s == s.limit_after_s
        else f"{time(s.limit_before_s)} -> {time(s.limit_after_s)}"
    )
    slack = [f"{x:.0%}" if x is not None else "none" for x in (s.slack_before, s.slack_after)]
    label = f"{s.service} {s.class_name} {s.metric}" if s.class_name != "default" else f"{s.service} {s.metric}"
    miss = " MISS" if s.slack_after is not None and s.slack_after < 0 else ""
    return label, limit, time(s.before_s), time(s.after_s) + miss, f"{slack[0]} -> {slack[1]}"


def _proof_text(p: Proof) -> str:
    words = {"all": "undoes the whole change", "part": "undoes part of it", "nothing": "changes nothing"}[p.undoes]
    return f"taking back {p.cause.kind} {p.cause.path} {words}: {p.gpus} GPUs, {show_money(p.cost_per_hour)}/h"


def _text(d: PlanDiff, width: int) -> str:
    head = f"DIFF  {d.title}"
    blocks = [f"{head}{_verdict(d).rjust(max(2, width - len(head)))}\n{_joined(_headline(d), width)}"]
    if d.causes:
        rows = [(c.kind, c.path, c.before, f"-> {c.after}" + (f"  ({c.note})" if c.note else "")) for c in d.causes]
        blocks.append("CAUSED BY\n" + table(("", "", "", ""), rows, width=width))
        if d.proofs:
            blocks[-1] += "\n" + "\n".join(line for p in d.proofs for line in paragraph("", [_proof_text(p)], width))
    if d.changes:
        rows4 = [(c.what, c.before, c.after, c.delta) for c in d.changes]
        blocks.append(table(("decision", "before", "after", ""), rows4, width=width, right=(3,)))
    if d.slos:
        rows5 = [_slo_cells(s) for s in d.slos]
        blocks.append(table(("SLO", "limit", "before", "after", "slack"), rows5, width=width, right=(1, 2, 3, 4)))
    if d.rendered:
        lines = paragraph("PODS", [_restart_headline(d)], width)
        for r in d.restarts:
            count = "an autoscaled number of" if r.pods is None else str(r.pods)
            lines += paragraph("", [f"{r.action} {count} pods of {r.workload} ({r.file})"], width)
            lines += paragraph("", [f"  {b}" for b in r.because if r.action != "scale"], width)
        if d.configs:
            lines += paragraph("CONFIG", [f"{c} changes; running pods keep the old values" for c in d.configs], width)
        for f in d.files:
            lines += paragraph(
                "FILES" if f is d.files[0] else "", [f"{f.path}: {f.status} +{f.added} -{f.removed}"], width
            )
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def md_table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> str:
    """A Markdown table; pipes and tags in cells are escaped."""
    rule = "|".join("---:" if i in right else "---" for i in range(len(headers)))
    body = "\n".join("| " + " | ".join(_cell(c) for c in row) + " |" for row in rows)
    return f"| {' | '.join(headers)} |\n|{rule}|\n{body}\n"


def _markdown(d: PlanDiff) -> str:
    parts = [
        f"### Plan: {_cell(d.title)}: {_verdict(d)}\n",
        f"**{' · '.join(_headline(d))}** · {_restart_headline(d)}\n",
    ]
    if d.causes:
        lines = [
            f"- **{c.kind}** {f'`{c.path}`' if c.path else ''} `{c.before}` → `{c.after}`"
            + (f" ({_cell(c.note)})" if c.note else "")
            for c in d.causes
        ]
        parts.append("**Caused by**\n\n" + "\n".join(lines) + "\n")
        if d.proofs:
            parts.append("\n".join(f"- {_cell(_proof_text(p))}" for p in d.proofs) + "\n")
    if d.changes:
        decisions = [(c.what, c.before, c.after, c.delta) for c in d.changes]
        parts.append(md_table(("decision", "before", "after", ""), decisions, (3,)))
    if d.slos:
        parts.append(
            md_table(("SLO", "limit", "before", "after", "slack"), [_slo_cells(s) for s in d.slos], (1, 2, 3, 4))
        )
    if d.restarts or d.configs:
        rows = [
            (r.action, r.workload, "autoscaled" if r.pods is None else str(r.pods), "; ".join(r.because), r.file)
            for r in d.restarts
        ]
        rows += [("keeps old values", c, "", "running pods read it at start", "") for c in d.configs]
        parts.append(md_table(("pods", "workload", "count", "because", "file"), rows, (2,)))
    if d.files:
        listed = "\n".join(f"- `{f.path}`: {f.status} (+{f.added} -{f.removed})" for f in d.files)
        parts.append(f"<details><summary>{len(d.files)} files change</summary>\n\n{listed}\n\n</details>\n")
    return "\n".join(parts)
