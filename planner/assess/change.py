"""What a change of somebody's deployment does: flag by flag, before and after, and which pods restart.

    assess_change(before, after, intent=..., gpu=...) -> ChangeAssessment

Each changed setting is applied to the old deployment alone, so that a line says what that one flag does:
`--max-num-batched-tokens 1024 -> 8192: itl.p99 48ms -> 259ms, limit 50ms`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.assess.found import Found
from planner.assess.judge import Assessment, assess
from planner.assess.judged import Judged
from planner.assess.view import judged_data, verdict
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.units import show_bytes, show_time

_FIELDS = (
    "model", "engine", "image", "shape", "copies", "replicas", "gpus_per_pod", "max_num_seqs", "max_num_batched_tokens",
    "max_model_len", "memory_ratio", "quantization", "kv_cache_dtype", "prefix_caching", "eager", "speculation", "role",
    "gpu", "pods_per_replica", "served_first",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Effect:
    """One setting that changed, and what it does on its own."""

    setting: str
    before: str
    after: str
    figures: tuple[str, ...]
    """`itl.p99 48ms -> 259ms, limit 50ms`, the ones that move by 2% or more."""
    breaks: tuple[str, ...]
    """Findings that this setting alone brings."""

    def __str__(self) -> str:
        told = "; ".join((*self.figures, *self.breaks))
        return f"{self.setting} {self.before} -> {self.after}" + (f": {told}" if told else "")


@dataclass(frozen=True, slots=True)
class Changed:
    """One deployment in both states; None where it is new or gone."""

    name: str
    before: Judged | None
    after: Judged | None
    effects: tuple[Effect, ...]
    restarts_pods: int | None
    """Pods that restart; 0 where only the number of replicas changes, None where it is not known."""
    gpus: int | None
    """GPUs more (or fewer)."""


@dataclass(frozen=True, slots=True)
class ChangeAssessment:
    """Every deployment that a change touches, and the state after it."""

    changed: tuple[Changed, ...]
    after: Assessment

    @property
    def holds(self) -> bool:
        """Whether nothing that the change touches fails or breaks afterwards."""
        return all(c.after is None or c.after.holds for c in self.changed)

    def to_text(self, width: int = 100) -> str:
        import textwrap

        if not self.changed:
            return "no deployment changes\n"
        lines: list[str] = []
        for c in self.changed:
            head, state = c.name, _states(c)
            lines.append(f"{head}{state.rjust(max(2, width - len(head)))}")
            for text in (*(str(e) for e in c.effects), _pods(c)):
                if text:
                    lines += textwrap.wrap(
                        text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
                    )
            if c.after is not None:
                for f in c.after.findings:
                    if f.level in ("fails", "breaks", "warns"):
                        lines += textwrap.wrap(
                            f"{f.level}: {f}",
                            width,
                            initial_indent="  ",
                            subsequent_indent="    ",
                            break_on_hyphens=False,
                        )
            lines.append("")
        return "\n".join(lines).rstrip("\n") + "\n"

    def to_markdown(self) -> str:
        def cell(text: str) -> str:
            return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

        if not self.changed:
            return "No deployment changes.\n"
        parts = []
        for c in self.changed:
            parts.append(f"### {cell(c.name)}: {_states(c)}\n")
            rows = "".join(
                f"| `{e.setting}` | {cell(e.before)} → {cell(e.after)} | {cell('; '.join(e.figures))} "
                f"| {cell('; '.join(e.breaks))} |\n"
                for e in c.effects
            )
            if rows:
                parts.append(f"| setting | change | on its own | |\n|---|---|---|---|\n{rows}")
            if _pods(c):
                parts.append(f"{cell(_pods(c))}\n")
            if c.after is not None:
                told = [f for f in c.after.findings if f.level in ("fails", "breaks", "warns")]
                parts += ["\n".join(f"- **{f.level}** {cell(str(f))}" for f in told) + "\n"] if told else []
        return "\n".join(parts)

    def to_json(self) -> str:
        def data(j: Judged | None) -> dict[str, Any] | None:
            return None if j is None else judged_data(j)

        return json.dumps(
            {
                "schema_version": 1,
                "changed": [
                    {
                        "name": c.name, "before": data(c.before), "after": data(c.after),
                        "restarts_pods": c.restarts_pods, "gpus": c.gpus,
                        "effects": [
                            {"setting": e.setting, "before": e.before, "after": e.after, "figures": list(e.figures),
                             "breaks": list(e.breaks)}
                            for e in c.effects
                        ],
                    }
                    for c in self.changed
                ],
            },
            indent=2,
        ) + "\n"  # fmt: skip


def _states(c: Changed) -> str:
    if c.before is None:
        return f"new, {verdict(c.after)}" if c.after is not None else "new"
    if c.after is None:
        return "removed"
    a, b = verdict(c.before), verdict(c.after)
    return b if a == b else f"{a} -> {b}"


def _pods(c: Changed) -> str:
    parts = []
    if c.restarts_pods is None:
        parts.append("restarts its pods, their number is not said")
    elif c.restarts_pods:
        parts.append(f"restarts {c.restarts_pods} pods")
    elif c.before is not None and c.after is not None:
        parts.append("restarts nothing")
    if c.gpus:
        parts.append(f"{c.gpus:+d} GPUs")
    return ", ".join(parts)


def assess_change(
    before: Sequence[Found],
    after: Sequence[Found],
    *,
    intent: Intent | None = None,
    fleet: Fleet | None = None,
    gpu: str | None = None,
) -> ChangeAssessment:
    """Two readings of the same places (two revisions, two folders), matched by workload and container."""

    def judged(found: Sequence[Found]) -> Assessment:
        return assess(found, intent=intent, fleet=fleet, gpu=gpu)

    old, new = judged(before), judged(after)
    by_key_old, by_key_new = {_key(j.found): j for j in old.judged}, {_key(j.found): j for j in new.judged}
    result = []
    for key in [*by_key_old, *(k for k in by_key_new if k not in by_key_old)]:
        a, b = by_key_old.get(key), by_key_new.get(key)
        if a is not None and b is not None:
            if _same(a.found, b.found):
                continue
            names = [n for n in _FIELDS if getattr(a.found, n) != getattr(b.found, n)]
            others = [j.found for j in old.judged if j is not a]
            effects = []
            for name in names:
                alone = replace(a.found, **{name: getattr(b.found, name)})
                one = next(j for j in judged([*others, alone]).judged if j.found is alone)
                effects.append(_effect(name, a, b, one))
            effects += _other_flags(a.found, b.found)
            result.append(Changed(b.found.name, a, b, tuple(effects), _restarts(a.found, b.found), _gpus(a, b)))
        else:
            one_side = b or a
            assert one_side is not None
            result.append(Changed(one_side.found.name, a, b, (), 0, _gpus(a, b)))
    return ChangeAssessment(tuple(result), new)


def _key(f: Found) -> tuple[str, str]:
    return f.place.workload or f.name, f.place.container


def _same(a: Found, b: Found) -> bool:
    return all(getattr(a, n) == getattr(b, n) for n in _FIELDS) and [(o.name, o.value) for o in a.given] == [
        (o.name, o.value) for o in b.given
    ]


def _effect(name: str, a: Judged, b: Judged, alone: Judged) -> Effect:
    old = {(f.class_name, f.metric): f for f in a.figures}
    figures = []
    for f in alone.figures:
        was = old.get((f.class_name, f.metric))
        if was is None or abs(f.value_s - was.value_s) < 0.02 * was.value_s:
            continue
        limit = "" if f.limit_s is None else f", limit {show_time(f.limit_s)}" + ("" if f.holds else " MISS")
        figures.append(f"{f.metric} {show_time(was.value_s)} -> {show_time(f.value_s)}{limit}")
    known = {str(x) for x in a.findings}
    # A missed promise stands among the figures already; what is left is what keeps it from starting or overloads it.
    told = {f"{f.class_name} {f.metric}" if f.class_name != "default" else f.metric for f in alone.figures}
    breaks = tuple(
        str(x)
        for x in alone.findings
        if x.level in ("fails", "breaks") and str(x) not in known and not any(x.message.startswith(t) for t in told)
    )
    if a.memory is not None and alone.memory is not None:
        was_kv, now_kv = a.memory.kv_tokens, alone.memory.kv_tokens
        if abs(now_kv - was_kv) > 0.05 * max(was_kv, 1):
            size = show_bytes(max(0.0, alone.memory.kv_bytes))
            figures.append(f"cache {was_kv:,} -> {now_kv:,} tokens ({size} per GPU)")
    return Effect(b.found.flag_of(name), _value(a.found, name), _value(b.found, name), tuple(figures), breaks)


def _value(f: Found, name: str) -> str:
    value = getattr(f, name)
    if name == "shape":
        return f.shape.label
    return "engine default" if value is None else str(value)


def _other_flags(a: Found, b: Found) -> list[Effect]:
    """Flags that the model says nothing about: shown, so that nobody takes silence for harmless."""
    told = {o.name for f in (a, b) for o in f.given if o.name in _TOLD}
    old, new = {o.name: o.value for o in a.given}, {o.name: o.value for o in b.given}
    return [
        Effect(name, old.get(name, "absent"), new.get(name, "absent"), (), ())
        for name in [*old, *(n for n in new if n not in old)]
        if old.get(name) != new.get(name) and name not in told
    ]


_TOLD = {
    "--model", "--model-path", "--tensor-parallel-size", "--tp-size", "--pipeline-parallel-size", "--pp-size",
    "--data-parallel-size", "--dp-size", "--attn-dp-size", "--enable-expert-parallel", "--ep-size", "--max-num-seqs",
    "--max-running-requests", "--max-num-batched-tokens", "--chunked-prefill-size", "--max-model-len",
    "--context-length", "--gpu-memory-utilization", "--mem-fraction-static", "--quantization", "--kv-cache-dtype",
    "--enable-prefix-caching", "--disable-radix-cache", "--enforce-eager", "--speculative-config",
    "--speculative-algorithm", "--disaggregation-mode",
}  # fmt: skip


def _restarts(a: Found, b: Found) -> int | None:
    """Pods whose template changed: anything but the number of replicas."""
    if _same(replace(a, replicas=b.replicas, replicas_max=b.replicas_max), b):
        return 0
    replicas = [f.replicas for f in (a, b) if f.replicas is not None]
    return min(replicas) * a.pods_per_replica if replicas else None


def _gpus(a: Judged | None, b: Judged | None) -> int | None:
    counts = [0 if j is None else j.found.gpus for j in (a, b)]
    return None if None in counts else (counts[1] or 0) - (counts[0] or 0)
