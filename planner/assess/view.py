"""An assessment in words: for a terminal, for a pull request, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from planner.assess.judged import Judged
from planner.units import show_bytes, show_count, show_rate, show_time

MARK = {"fails": "DOES NOT START", "breaks": "BREAKS", "warns": "WARNING", "unknown": "UNKNOWN", "note": "NOTE"}


def what_runs(j: Judged) -> str:
    """`9 x h100-sxm tp4, meta-llama/Llama-3.3-70B-Instruct fp8, vllm 0.33.0`"""
    f = j.found
    if f.engine is None:
        return f.image or "no engine"
    replicas = "? x" if f.replicas is None else f"{f.replicas} x"
    copies = f" {f.copies} copies of" if f.copies > 1 else ""
    parts = [f"{replicas}{copies} {j.gpu or 'unknown GPU'} {f.shape.label}"]
    parts.append(" ".join(w for w in (j.model_id or f.model or "unknown model", j.precision) if w))
    parts.append(f"{f.engine} {f.engine_version or '(version not said)'}")
    if f.role != "aggregated":
        parts.insert(0, f.role)
    return ", ".join(parts)


def caps_line(j: Judged) -> str:
    """The caps it runs with; defaults are said to be defaults."""
    if j.max_num_seqs is None:
        return ""

    def one(name: str, value: int | None) -> str:
        return f"{name} {value}" + (" (default)" if name in j.by_default else "")

    return ", ".join(one(n, getattr(j, n)) for n in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"))


def memory_line(j: Judged) -> str:
    """Weights, cache and what it holds."""
    m = j.memory
    if m is None:
        return ""
    holds = f", {j.kv_sequences:,.0f} mean requests" if j.kv_sequences is not None else ""
    cache = f"{show_bytes(max(0.0, m.kv_bytes))} of {show_bytes(m.total_bytes)}"
    tokens = f"{show_count(m.kv_tokens)} tokens"
    return f"weights {show_bytes(m.weights_bytes)}, cache {cache} per GPU: {tokens}{holds}"


def load_line(j: Judged) -> str:
    """Rate beside what it carries."""
    if j.capacity_rps is None:
        return ""
    within = f", {show_rate(j.within_slo_rps)} within promises and load cap" if j.within_slo_rps is not None else ""
    offered = ""
    if j.rate_rps is not None and j.load is not None:
        offered = f"{show_rate(j.rate_rps)} offered, load {j.load:.0%}; "
    return f"{offered}carries {show_rate(j.capacity_rps)}{within}"


def verdict(j: Judged) -> str:
    """In two or three words."""
    if j.found.engine is None:
        return "not read"
    if j.starts is None:
        return "unknown"
    if not j.starts:
        return "does not start"
    if any(f.level == "breaks" for f in j.findings):
        return "starts, breaks promises"
    return "starts, holds" if any(f.limit_s is not None for f in j.figures) else "starts"


def figure_rows(j: Judged) -> list[tuple[str, str, str, str]]:
    """(figure, limit, predicted with band, verdict)."""
    return [
        (
            f"{f.class_name + ' ' if f.class_name != 'default' else ''}{f.metric}",
            show_time(f.limit_s) if f.limit_s is not None else "none",
            f"{show_time(f.value_s)} ({show_time(f.low_s)}-{show_time(f.high_s)})",
            "" if f.limit_s is None else "holds" if f.holds else "MISS",
        )
        for f in j.figures
    ]


def columns(rows: Sequence[Sequence[str]], indent: str) -> Iterable[str]:
    """Plain columns, as wide as they need."""
    if not rows:
        return []
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return [indent + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]


class AssessmentView:
    """The three forms; `Assessment` adds the data."""

    __slots__ = ()
    judged: tuple[Judged, ...]
    idle_services: tuple[str, ...]

    def to_text(self, width: int = 100) -> str:
        """For a terminal of `width` columns."""
        import textwrap

        lines: list[str] = []
        for j in self.judged:
            head = f"{j.found.name}"
            lines += [f"{head}{verdict(j).rjust(max(2, width - len(head)))}", f"  {j.found.place}"]
            for line in (what_runs(j), caps_line(j), memory_line(j), load_line(j)):
                lines += textwrap.wrap(line, width, initial_indent="  ", subsequent_indent="    ") if line else []
            lines += columns(figure_rows(j), "  ")
            for f in j.findings:
                lines += textwrap.wrap(
                    f"{MARK[f.level]} {f}", width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
                )
            lines.append("")
        lines += [f"{s}: nothing that was read serves it" for s in self.idle_services]
        return "\n".join(lines).rstrip("\n") + "\n"

    def to_markdown(self) -> str:
        """For a comment on a pull request."""
        parts = []
        for j in self.judged:
            parts.append(f"### {_md(j.found.name)}: {verdict(j)}\n")
            parts.append(f"`{j.found.place}`: {_md(what_runs(j))}\n")
            parts.append("\n".join(f"- {_md(x)}" for x in (caps_line(j), memory_line(j), load_line(j)) if x) + "\n")
            rows = figure_rows(j)
            if rows:
                body = "\n".join("| " + " | ".join(_md(c) for c in r) + " |" for r in rows)
                parts.append(f"| figure | limit | predicted (80% band) | |\n|---|---:|---:|---|\n{body}\n")
            if j.findings:
                parts.append("\n".join(f"- **{MARK[f.level]}** {_md(str(f))}" for f in j.findings) + "\n")
        parts += [f"**{_md(s)}**: nothing that was read serves it\n" for s in self.idle_services]
        return "\n".join(parts)

    def to_json(self) -> str:
        """Everything, for other programs."""
        return (
            json.dumps(
                {
                    "schema_version": 1,
                    "deployments": [judged_data(j) for j in self.judged],
                    "idle_services": list(self.idle_services),
                },
                indent=2,
            )
            + "\n"
        )


def judged_data(j: Judged) -> dict[str, Any]:
    """One deployment as plain data, SI units."""
    f, m = j.found, j.memory
    return {
        "name": f.name, "place": str(f.place), "verdict": verdict(j), "role": f.role, "service": j.service,
        "engine": f.engine, "engine_version": f.engine_version, "image": f.image, "model": j.model_id or f.model,
        "precision": j.precision, "kv_dtype": j.kv_dtype, "gpu": j.gpu,
        "tp": f.shape.tp, "pp": f.shape.pp, "dp": f.shape.dp, "ep": f.shape.ep, "copies": f.copies,
        "replicas": f.replicas, "gpus": f.gpus, "starts": j.starts,
        "max_num_seqs": j.max_num_seqs, "max_num_batched_tokens": j.max_num_batched_tokens,
        "max_model_len": j.max_model_len, "by_default": list(j.by_default),
        "weights_bytes": None if m is None else m.weights_bytes, "kv_bytes": None if m is None else m.kv_bytes,
        "kv_tokens": None if m is None else m.kv_tokens, "kv_sequences": j.kv_sequences,
        "rate_rps": j.rate_rps, "capacity_rps": j.capacity_rps, "within_slo_rps": j.within_slo_rps, "load": j.load,
        "figures": [
            {"class": x.class_name, "metric": x.metric, "value_s": x.value_s, "low_s": x.low_s, "high_s": x.high_s,
             "limit_s": x.limit_s, "method": x.method}
            for x in j.figures
        ],
        "findings": [{"level": x.level, "flag": x.flag, "message": x.message, "fix": x.fix} for x in j.findings],
    }  # fmt: skip


def _md(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
