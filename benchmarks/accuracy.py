"""How far predictions are from measurements: every table of docs/accuracy.md.

    python benchmarks/accuracy.py --measurements DIR [--output docs/accuracy.md]

Errors are cross-validated: every row is predicted by constants and anchors that did not see its configuration (or
sweep, model, GPU). Pure and textbook rooflines stand beside them on the same rows. Takes some ten minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from planner.calibrate.data import SNAPSHOT, Usable, by_generation, read, resolve_rows, summary
from planner.calibrate.parameters import GENERATIONS, fitted_by
from planner.calibrate.write import Fitted, as_file, measured, run, write
from planner.catalog.calibrations import CalibrationFile
from planner.errors import UserError
from planner.estimate.cases import predict
from planner.estimate.resolve import Resolved
from planner.estimate.rows import Row, canonical
from planner.perf.bands import Promise, band_entry, odds
from planner.perf.calibration import Calibration, calibration_from, ideal, textbook
from planner.perf.step import Array

METRICS = ("tpot", "ttft", "throughput")
NAMES = {"tpot": "TPOT", "ttft": "TTFT", "throughput": "throughput"}


class Scored:
    """All rows of all generations with their cross-validated predictions side by side."""

    def __init__(
        self, fits: Sequence[Fitted], files: Sequence[CalibrationFile], pairs: Sequence[tuple[Usable, Resolved]]
    ) -> None:
        self.rows: list[Row] = []
        self.resolved: list[Resolved] = []
        self.generation: list[str] = []
        self.real: dict[str, Array] = {}
        self.by_level: dict[tuple[str, str, bool], Array] = {}
        real: dict[str, list[Array]] = {m: [] for m in METRICS}
        levels = ("sweep", "configuration", "model", "gpu")
        parts: dict[tuple[str, str, bool], list[Array]] = {
            (lv, m, a): [] for lv in levels for m in METRICS for a in (False, True)
        }
        for f in fits:
            self.rows += f.data.rows
            self.resolved += f.data.resolved
            self.generation += [f.generation.name] * len(f.data.rows)
            for m in METRICS:
                real[m].append(measured(f.data)[m])
                for lv in levels:
                    v = next((v for v in f.validated if v.level == lv), None)
                    nan = np.full(len(f.data.rows), np.nan)
                    parts[lv, m, False].append(v.plain[m] if v else nan)
                    parts[lv, m, True].append(v.predicted[m] if v else nan)
        self.real = {m: np.concatenate(v) for m, v in real.items()}
        self.by_level = {k: np.concatenate(v) for k, v in parts.items()}
        self.files = {f.generation: f for f in files}
        self.p99 = {u.row.id: u.tpot_p99_s for u, _ in pairs if u.tpot_p99_s}
        self.baseline = {"roofline": self._with(ideal()), "textbook": self._with(textbook())}

    def _with(self, c: Calibration) -> dict[str, Array]:
        p = predict(self.rows, self.resolved, [c] * len(self.rows), anchors=False)
        return {"tpot": p.tpot_s, "ttft": np.where(p.saturated, np.nan, p.ttft_s), "throughput": p.output_tok_s}

    def predicted(self, level: str, metric: str, *, anchors: bool) -> Array:
        """Cross-validated predictions of one metric."""
        return self.by_level[level, metric, anchors]

    def mask(self, test: Callable[[int], bool]) -> Array:
        """Rows that pass a test of their index."""
        return np.array([test(i) for i in range(len(self.rows))], dtype=bool)


def ape(p: Array, m: Array, mask: Array | None = None) -> Array:
    """Absolute percentage errors, in per cent."""
    ok = np.isfinite(p) & np.isfinite(m)
    if mask is not None:
        ok &= mask
    return np.asarray(100 * np.abs(p[ok] / m[ok] - 1))


def cell(p: Array, m: Array, mask: Array | None = None, *, least: int = 1) -> str:
    """`median / p90 (bias, n)`."""
    a = ape(p, m, mask)
    if len(a) < least:
        return "-"
    ok = np.isfinite(p) & np.isfinite(m)
    if mask is not None:
        ok &= mask
    bias = 100 * (math.exp(float(np.median(np.log(p[ok] / m[ok])))) - 1)
    return f"{np.median(a):.1f} / {np.percentile(a, 90):.0f} ({bias:+.0f}, {len(a)})"


def grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    out = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    out += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(out)


def kind_of_model(r: Resolved) -> str:
    """Family as the tables slice it."""
    a = r.deployment.arch
    from planner.perf.arch import CompressedAttention, Mla, Recurrent

    mixers = [g.mixer for g in a.layers]
    if any(isinstance(m, Recurrent) for m in mixers):
        return "hybrid"
    if any(isinstance(m, CompressedAttention) for m in mixers):
        return "compressed attention"
    if any(isinstance(m, Mla) and m.topk_tokens for m in mixers):
        return "sparse MLA (DSA)"
    if any(isinstance(m, Mla) for m in mixers):
        return "MLA MoE" if a.moe else "MLA"
    return "MoE" if a.moe else "dense"


# ---------------------------------------------------------------- tables


def headline(s: Scored) -> str:
    modern = s.mask(lambda i: s.generation[i] == "modern")
    apart = s.mask(lambda i: s.rows[i].decode is not None)
    agg = modern & ~apart
    legacy = ~modern
    lines = []

    def line(what: str, level: str, metric: str, mask: Array, target: str) -> None:
        p = s.predicted(level, metric, anchors=False)
        q = s.predicted(level, metric, anchors=True)
        lines.append([what, cell(p, s.real[metric], mask), cell(q, s.real[metric], mask), target])

    line("TPOT, modern, aggregated", "configuration", "tpot", agg, "9 / 25")
    line("TPOT, whole model left out", "model", "tpot", agg, "12 / 33")
    line("TPOT, whole GPU left out", "gpu", "tpot", agg, "11 / 30")
    line("TTFT, unsaturated, closed form", "configuration", "ttft", agg, "15 / 43")
    line(
        "throughput, offline and saturated, all generations",
        "configuration",
        "throughput",
        np.ones(len(s.rows), bool),
        "9 / 30",
    )
    line("throughput, modern", "configuration", "throughput", modern, "")
    line("TPOT, prefill/decode apart", "configuration", "tpot", modern & apart, "10 / 28")
    line("TTFT, prefill/decode apart", "configuration", "ttft", modern & apart, "30 / 70")
    line("TPOT, legacy", "configuration", "tpot", legacy, "15 / 40")
    line("throughput, legacy", "configuration", "throughput", legacy, "12 / 40")
    line("TPOT, a whole sweep left out", "sweep", "tpot", agg, "")
    line("TTFT, a whole sweep left out", "sweep", "ttft", agg, "")
    tpot, ttft = one_anchor(s, "tpot", agg), one_anchor(s, "ttft", agg)
    lines.append(["TPOT, one measured anchor per configuration", "", cell(tpot, s.real["tpot"], agg), "5 / 18"])
    lines.append(["TTFT, one measured anchor per configuration", "", cell(ttft, s.real["ttft"], agg), "11 / 45"])
    return grid(
        ["left out: the row's configuration, unless said", "constants alone", "with anchors of other rows", "goal"],
        lines,
    )


def one_anchor(s: Scored, metric: str, mask: Array) -> Array:
    """Offset of each configuration on one release from its one point nearest 16 clients and short prompts.

    That point is not scored.
    """
    p = s.predicted("configuration", metric, anchors=False).copy()
    groups: dict[str, list[int]] = {}
    for i in np.flatnonzero(mask & np.isfinite(p) & np.isfinite(s.real[metric])):
        r = s.rows[i]
        groups.setdefault(f"{r.configuration}/{r.engine_version or r.date[:7]}", []).append(int(i))
    out = np.full(len(p), np.nan)
    for members in groups.values():

        def distance(i: int) -> tuple[float, float, str]:
            r = s.rows[i]
            return abs(math.log2((r.concurrency or 16) / 16)), r.isl_tokens, r.id

        anchor = min(members, key=distance)
        gain = s.real[metric][anchor] / p[anchor]
        for i in members:
            if i != anchor:
                out[i] = p[i] * gain
    return out


def baselines(s: Scored) -> str:
    lines = []
    for name, mask in (
        ("modern", s.mask(lambda i: s.generation[i] == "modern")),
        ("legacy", s.mask(lambda i: s.generation[i] != "modern")),
    ):
        for m in METRICS:
            lines.append(
                [f"{NAMES[m]}, {name}"]
                + [cell(s.baseline[b][m], s.real[m], mask) for b in ("roofline", "textbook")]
                + [cell(s.predicted("configuration", m, anchors=a), s.real[m], mask) for a in (False, True)]
            )
    return grid(["", "pure roofline", "textbook (0.8 MBU, 0.4 MFU)", "constants", "with anchors"], lines)


def mean_ape(s: Scored) -> str:
    inf = s.mask(lambda i: s.rows[i].source.startswith("inferencex/"))
    lines = []
    for m in ("tpot", "ttft"):
        line = [NAMES[m]]
        for a in (False, True):
            e = ape(s.predicted("configuration", m, anchors=a), s.real[m], inf)
            line.append(f"{np.mean(e):.1f} ({len(e)})")
        lines.append(line)
    return grid(["mean APE, InferenceX rows", "constants", "with anchors"], lines)


def slices(s: Scored) -> str:
    out = []
    keys: tuple[tuple[str, Callable[[int], str]], ...] = (
        ("GPU", lambda i: s.rows[i].gpu),
        ("kind of model", lambda i: kind_of_model(s.resolved[i])),
        ("model", lambda i: canonical(s.rows[i].model)),
        ("precision", lambda i: s.rows[i].precision),
        ("engine", lambda i: f"{s.rows[i].engine} ({s.generation[i]})"),
        ("kind of run", lambda i: "prefill/decode apart" if s.rows[i].decode else s.rows[i].kind),
        ("source", lambda i: s.rows[i].source),
    )
    for title, key in keys:
        names = sorted({key(i) for i in range(len(s.rows))})
        lines = []
        for n in names:
            mask = s.mask(lambda i, n=n, key=key: key(i) == n)
            cells = [cell(s.predicted("configuration", m, anchors=True), s.real[m], mask, least=5) for m in METRICS]
            if any(c != "-" for c in cells):
                lines.append([n, *cells])
        out.append(grid([title, *(NAMES[m] for m in METRICS)], lines))
    return "\n\n".join(out)


def bias_of_families(s: Scored) -> str:
    modern = s.mask(lambda i: s.generation[i] == "modern")
    lines = []
    for n in sorted({kind_of_model(r) for r in s.resolved}):
        mask = modern & s.mask(lambda i, n=n: kind_of_model(s.resolved[i]) == n)
        p, q, m = (s.predicted("configuration", "tpot", anchors=a) for a in (False, True)), None, s.real["tpot"]
        del q
        lines.append([n, *(cell(x, m, mask) for x in p)])
    return grid(["kind of model, TPOT, modern", "constants", "with anchors"], lines)


def tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b without ties in b."""
    n, up, down = len(a), 0, 0
    for i in range(n):
        for j in range(i):
            x = (a[i] - a[j]) * (b[i] - b[j])
            up += x > 0
            down += x < 0
    return (up - down) / (up + down) if up + down else None


def ranking(s: Scored) -> str:
    """Within a sweep over concurrency (TPOT, TTFT), and between configurations at the same load."""
    lines = []
    for m in ("tpot", "ttft"):
        p, real = s.predicted("configuration", m, anchors=True), s.real[m]
        for what, key in (
            ("within a concurrency sweep", lambda r: r.sweep),
            (
                "between configurations of a model on a GPU",
                lambda r: f"{canonical(r.model)}/{r.gpu}/{r.isl_tokens:g}/{r.osl_tokens:g}/{r.concurrency}",
            ),
        ):
            groups: dict[str, list[int]] = {}
            for i in np.flatnonzero(np.isfinite(p) & np.isfinite(real)):
                groups.setdefault(key(s.rows[i]), []).append(int(i))
            found = [
                t
                for g in groups.values()
                if len(g) >= 3 and (t := tau([p[i] for i in g], [real[i] for i in g])) is not None
            ]
            lines.append([f"{NAMES[m]}, {what}", f"{np.mean(found):.3f}", str(len(found))])
    return grid(["Kendall's tau, mean over groups", "tau", "groups"], lines)


def choices(s: Scored, predicted: tuple[Array, Array]) -> tuple[float, float, int]:
    """(mean loss, share of limits missed by over 10%, choices) of picking the predicted best under a TPOT limit."""
    p, t = predicted
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, r in enumerate(s.rows):
        if (
            r.decode is None
            and r.concurrency
            and np.isfinite(s.real["tpot"][i])
            and np.isfinite(s.real["ttft"][i])
            and np.isfinite(p[i])
            and np.isfinite(t[i])
        ):
            if not (r.source.startswith(("inferencex/", "silicon/inferencex"))):
                continue
            groups.setdefault((canonical(r.model), r.gpu, r.precision, r.isl_tokens, r.osl_tokens), []).append(i)
    losses, missed, n = [], 0, 0
    for g in groups.values():
        if len({s.rows[i].configuration for i in g}) < 2 or len(g) < 6:
            continue
        gpus = {
            i: s.resolved[i].deployment.shape.gpus * s.resolved[i].ranks / s.resolved[i].deployment.shape.dp for i in g
        }

        def rate(i: int, ttft: float, tpot: float, gpus: dict[int, float] = gpus) -> float:
            r = s.rows[i]
            return (r.concurrency or 0) * r.osl_tokens / (ttft + (r.osl_tokens - 1) * tpot) / gpus[i]

        real = {i: rate(i, s.real["ttft"][i], s.real["tpot"][i]) for i in g}
        guess = {i: rate(i, t[i], p[i]) for i in g}
        for q in (30, 50, 70):
            limit = float(np.percentile([s.real["tpot"][i] for i in g], q))
            best = max(real[i] for i in g if s.real["tpot"][i] <= limit)
            able = [i for i in g if p[i] <= limit]
            if not able:
                able = [min(g, key=lambda i: p[i])]
            pick = max(able, key=lambda i: (guess[i], -i))
            n += 1
            missed += bool(s.real["tpot"][pick] > 1.1 * limit)
            losses.append(max(0.0, 1.0 - real[pick] / best))
    return float(np.mean(losses)) if losses else math.nan, missed / max(n, 1), n


def choice_table(s: Scored) -> str:
    lines = []
    for what, level, anchors in (
        ("constants, configuration left out", "configuration", False),
        ("with anchors, configuration left out", "configuration", True),
        ("with anchors, sweep left out", "sweep", True),
    ):
        loss, miss, n = choices(
            s, (s.predicted(level, "tpot", anchors=anchors), s.predicted(level, "ttft", anchors=anchors))
        )
        lines.append([what, f"{100 * loss:.1f}%", f"{100 * miss:.1f}%", str(n)])
    for b in ("roofline", "textbook"):
        loss, miss, n = choices(s, (s.baseline[b]["tpot"], s.baseline[b]["ttft"]))
        lines.append([b, f"{100 * loss:.1f}%", f"{100 * miss:.1f}%", str(n)])
    return grid(
        [
            "choice under a TPOT limit (30th, 50th, 70th percentile)",
            "mean loss",
            "limit missed by more than 10%",
            "choices",
        ],
        lines,
    )


def calibration_at(s: Scored, i: int) -> Calibration:
    """The shipped-to-be calibration of a row's generation, for its bands."""
    r = s.rows[i]
    hw = s.resolved[i].deployment.hardware
    return calibration_from(s.files[s.generation[i]], engine=r.engine, gpu_id=hw.gpu_id, arch=hw.arch)


LEVELS = {"sweep": "anchored", "configuration": "seen", "model": "model-unseen", "gpu": "gpu-unseen"}


def inside(s: Scored, level: str, metric: str) -> tuple[Array, Array]:
    """(row has a prediction and a measurement, measurement lies in its 80% band)."""
    p, m = s.predicted(level, metric, anchors=True), s.real[metric]
    ok = np.isfinite(p) & np.isfinite(m)
    hit = np.zeros(len(p), bool)
    for i in np.flatnonzero(ok):
        b = band_entry(
            calibration_at(s, int(i)),
            metric,
            model_seen=level != "model",
            gpu_seen=level != "gpu",
            anchored=level == "sweep",
        )
        hit[i] = b.low_ratio <= m[i] / p[i] <= b.high_ratio
    return ok, hit


def band_table(s: Scored) -> str:
    lines = []
    for level in LEVELS:
        line = [f"{level} left out"]
        for m in METRICS:
            ok, hit = inside(s, level, m)
            line.append(f"{100 * hit[ok].mean():.0f}% ({ok.sum()})" if ok.any() else "-")
        lines.append(line)
    out = [grid(["share inside the 80% band", *(NAMES[m] for m in METRICS)], lines)]
    worst = []
    for title, key in (
        ("GPU", lambda i: s.rows[i].gpu),
        ("kind of model", lambda i: kind_of_model(s.resolved[i])),
        ("engine", lambda i: f"{s.rows[i].engine} ({s.generation[i]})"),
    ):
        for m in METRICS:
            ok, hit = inside(s, "configuration", m)
            for n in sorted({key(i) for i in range(len(s.rows))}):
                mask = ok & s.mask(lambda i, n=n, key=key: key(i) == n)
                if mask.sum() >= 30:
                    worst.append(
                        (hit[mask].mean(), [title, n, NAMES[m], f"{100 * hit[mask].mean():.0f}%", str(int(mask.sum()))])
                    )
    worst.sort(key=lambda w: (w[0], w[1]))
    out.append(grid(["slice", "", "figure", "inside", "rows"], [w for _, w in worst[:12]]))
    return "\n\n".join(out)


def odds_table(s: Scored) -> str:
    """Limits drawn at random around predictions: stated odds against how often the limit held."""
    stated, held = [], []
    state = 12345
    for m in ("tpot", "ttft"):
        p, real = s.predicted("configuration", m, anchors=True), s.real[m]
        for i in np.flatnonzero(np.isfinite(p) & np.isfinite(real)):
            b = band_entry(calibration_at(s, int(i)), m, model_seen=True, gpu_seen=True)
            for _ in range(3):
                state = (1103515245 * state + 12345) % 2**31
                limit = p[i] * math.exp((state / 2**31 - 0.5) * 1.0)
                stated.append(odds([Promise(float(p[i]), float(limit), b, s.rows[i].configuration)]))
                held.append(real[i] <= limit)
    a, h = np.array(stated), np.array(held)
    lines = []
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        mask = (a >= low) & (a < low + 0.2 + (low == 0.8))
        lines.append(
            [
                f"{100 * low:.0f}-{100 * low + 20:.0f}%",
                f"{100 * a[mask].mean():.0f}%",
                f"{100 * h[mask].mean():.0f}%",
                str(int(mask.sum())),
            ]
        )
    return grid(["stated odds", "mean stated", "held", "draws"], lines)


def p99_table(s: Scored) -> str:
    p = s.predicted("configuration", "tpot", anchors=True)
    ratios = [(s.p99[r.id] or 0) / p[i] for i, r in enumerate(s.rows) if r.id in s.p99 and np.isfinite(p[i])]
    if not ratios:
        return "No usable row carries one."
    return (
        f"{len(ratios)} rows carry a p99 of TPOT: measured p99 over the predicted mean is {np.median(ratios):.2f} "
        f"in the median, {np.percentile(ratios, 90):.2f} at the 90th percentile. p99 ITL has no measured rows: "
        "plans mark it as modelled, checked by simulation."
    )


def document(folder: Path, calibrations: Path | None = None) -> str:
    """The whole page; the fits behind it are written to `calibrations`, if asked."""
    usable, out = read(folder)
    pairs, refused = resolve_rows(usable)
    data = by_generation(pairs)
    fits = [run(GENERATIONS[n], d) for n, d in data.items()]
    files = [as_file(f) for f in fits]
    if calibrations is not None:
        for file in files:
            write(file, calibrations)
    s = Scored(fits, files, pairs)
    n = len(usable)
    constants = [
        [f.generation.name, e, str(fitted_by(f.generation, e)), str(sum(1 for r in f.data.rows if r.engine == e))]
        for f in fits
        for e in sorted({r.engine for r in f.data.rows})
    ]
    left = [[why, str(k)] for why, k in summary(out)]
    parts = [
        "# Accuracy",
        "",
        f"Generated by `python benchmarks/accuracy.py` from the open measurements of {SNAPSHOT}. "
        "Cells are median / 90th percentile of the absolute percentage error, with the median bias in per cent and the "
        "number of rows in brackets. Everything is cross-validated in five folds: constants are refitted without "
        "the rows that are scored, and anchors (measured corrections, shrunk) come from the other rows only. "
        "Saturated TTFT is never scored.",
        "",
        "## Against the goals",
        headline(s),
        "",
        "## Beside simpler models, on the same rows",
        baselines(s),
        "",
        mean_ape(s),
        "",
        "AIConfigurator's and AISimulate's published mean errors on InferenceX points are 24% for TPOT and 43% for "
        "TTFT (other rows of the same benchmark, not fitted).",
        "",
        "## Bias by kind of model",
        bias_of_families(s),
        "",
        "## Slices (configuration left out, with anchors)",
        slices(s),
        "",
        "## Ranking and choice",
        ranking(s),
        "",
        choice_table(s),
        "",
        "## Bands",
        band_table(s),
        "",
        "## Odds",
        odds_table(s),
        "",
        "## TPOT p99",
        p99_table(s),
        "",
        "## Coverage",
        f"{len(pairs)} of {n} usable rows get a prediction ({100 * len(pairs) / n:.1f}%). Refused: "
        + ("; ".join(f"{why} ({k})" for why, k in summary(refused)) or "none")
        + ".",
        "",
        "## Constants",
        grid(["generation", "engine", "fitted constants", "rows"], constants),
        "",
        "## Rows left out",
        grid(["reason", "rows"], left),
        "",
    ]
    return "\n".join(parts)


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--measurements", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parent.parent / "docs" / "accuracy.md")
    parser.add_argument("--calibrations", type=Path, help="also write the fitted constants to this folder")
    args = parser.parse_args()
    try:
        text = document(args.measurements, args.calibrations)
    except UserError as e:
        sys.stderr.write(f"{e}\n")
        return int(e.exit_code)
    args.output.write_text(text)
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
