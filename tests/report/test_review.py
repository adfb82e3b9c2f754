"""The capacity review: its figures are the plan's, it is self-contained, and a real browser can work with it."""

# Scripts for the browser stand on one line.
# ruff: noqa: E501

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from planner.errors import UserError
from planner.plan.document import Change, Plan
from planner.report import content
from planner.report.build import build_evidence, mean_context_tokens
from planner.report.charts import FrontierPoint, frontier_chart
from planner.report.evidence import Alternative, Evidence, sweep
from planner.report.review import frontier_html, review_html, review_markdown
from planner.report.vega import altair
from tests.report.browser import Browser, chromium

pytest.importorskip("altair", reason="the review extra (altair, vl-convert-python) is not installed")
pytest.importorskip("vl_convert", reason="the review extra (altair, vl-convert-python) is not installed")
needs_browser = pytest.mark.skipif(chromium() is None, reason="chromium is not installed")

Make = Callable[..., Plan]


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """One plan, its evidence and its page, for all tests: drawing takes seconds."""
    from tests.report import conftest as c

    plan = c.toy_plan(
        c.Intent.model_validate(c.intent_data()), c.Fleet.model_validate(c.fleet_data()), None
    ).model_copy(
        update={"change": Change(baseline="deploy/plan.yaml", gpus=-7, cost_per_hour=-20.65, restarts=("chat",))}
    )
    evidence = build_evidence(plan)
    evidence = Evidence(evidence.pools, (Alternative("chat", "tp8 x 5", 40, 118.0, "links cost more than they save"),))
    return {"plan": plan, "evidence": evidence, "html": review_html(plan, evidence)}


class Text(HTMLParser):
    """The words of a page, and what a checker of structure wants to know."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.bare_images: list[str] = []
        self.links: list[str] = []
        self._skip = 0
        self._heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        a = dict(attrs)
        self._skip += tag in ("script", "style")
        self._heading = tag in ("h1", "h2", "h3")
        if a.get("id"):
            self.ids.append(str(a["id"]))
        if tag == "svg" and not (a.get("role") == "img" and a.get("aria-label")):
            self.bare_images.append(str(a))
        self.links += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href", "action") and v is not None]

    def handle_endtag(self, tag: str) -> None:
        self._skip -= tag in ("script", "style")
        self._heading = False

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.headings.append(data.strip())
        if not self._skip:
            self.words.append(data)


def parsed(html: str) -> Text:
    page = Text()
    page.feed(html)
    return page


def test_every_figure_of_the_plan_is_on_the_page_beside_its_limit(made: dict[str, Any]) -> None:
    plan: Plan = made["plan"]
    text = " ".join(" ".join(parsed(made["html"]).words).split())
    for row in [
        *content.slo_rows(plan),
        *content.pool_rows(plan),
        *content.bad_day_rows(plan),
        *content.cost_rows(plan),
    ]:
        for cell in row:
            assert cell in text
    for _, value, _, _ in content.facts(plan):
        assert value in text
    for line in (*plan.decide, *plan.assumed, *plan.warnings, *plan.measure_first, *plan.services[0].why):
        assert line in text
    assert "7 GPUs fewer, $20.65/h less" in text


def test_reading_order(made: dict[str, Any]) -> None:
    wanted = [
        "Capacity review",
        "Change from today",
        "SLOs",
        "Bad days",
        "Odds",
        "What you must decide",
        "Where a step",
        "Evidence",
        "Inputs",
    ]
    at = [next(i for i, h in enumerate(parsed(made["html"]).headings) if h.startswith(w)) for w in wanted]
    assert at == sorted(at)


def test_one_file_without_network(made: dict[str, Any]) -> None:
    html: str = made["html"]
    assert len(html.encode()) < 1_500_000
    page = parsed(html)
    assert {link for link in page.links if not link.startswith("#")} <= {"data:,"}
    assert "url(http" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html


def test_structure_for_screen_readers(made: dict[str, Any]) -> None:
    page = parsed(made["html"])
    assert len(page.ids) == len(set(page.ids))
    assert page.bare_images == []
    assert made["html"].count("<h1") == 1
    for i in re.findall(r'<label for="([^"]+)"', made["html"]):
        assert i in page.ids
    assert made["html"].count("<caption>") == made["html"].count("<table")


def test_same_plan_same_bytes(made: dict[str, Any]) -> None:
    assert review_html(made["plan"], made["evidence"]) == made["html"]


def test_names_cannot_break_the_page(make: Make) -> None:
    plan = make(intent=lambda d: d["services"][0]["traffic"][0].update(name="</script><b>x"))
    html = review_html(plan, Evidence(()))
    assert "<b>x" not in html
    markdown, _ = review_markdown(plan, Evidence(()))
    assert "<b>x" not in markdown


def test_many_services_stay_small(make: Make) -> None:
    def many(d: dict[str, Any]) -> None:
        d["services"] = [{**d["services"][1], "name": f"s{i}"} for i in range(24)]

    plan = make(intent=many)
    html = review_html(plan, build_evidence(plan))
    assert len(html) < 1_500_000
    assert all(f"s{i}" in html for i in range(24))


def test_markdown_says_the_same_with_pictures_beside_it(made: dict[str, Any]) -> None:
    text, images = review_markdown(made["plan"], made["evidence"])
    for row in content.slo_rows(made["plan"]):
        assert all(cell in text for cell in row)
    used = re.findall(r"\]\(([^)]+\.svg)\)", text)
    assert sorted(used) == sorted(images)
    assert all(svg.startswith("<svg") and "var(--" not in svg for svg in images.values())
    assert re.findall(r"^## (.*)$", text, re.MULTILINE)[:5] == [
        "Change from today", "SLOs", "Bad days", "Odds", "What you must decide",
    ]  # fmt: skip


def test_sweep_adds_up_to_the_step(made: dict[str, Any]) -> None:
    for pool in made["evidence"].pools:
        steps = next(s for s in pool.steps if s.key == pool.planned)
        column = steps.contexts.index(pool.context_tokens)
        for i, p in enumerate(sweep(steps, pool.context_tokens)):
            total = steps.linear_s[i] + steps.kv_s[i][column]
            assert p.weights_s + p.compute_s + p.kv_s + p.other_s == pytest.approx(total)
            assert min(p.weights_s, p.compute_s, p.kv_s, p.other_s) >= 0
        assert steps.linear_s == tuple(sorted(steps.linear_s))


def test_the_tables_are_the_step_model(made: dict[str, Any]) -> None:
    from planner.candidates.ask import Ask
    from planner.candidates.replica import calibration_of
    from planner.perf.step import step_s
    from planner.report.build import pool_deployment

    plan: Plan = made["plan"]
    for evidence, service in zip(made["evidence"].pools, plan.services, strict=True):
        from planner.catalog.models import find_model

        ask = Ask(
            plan.intent.services[plan.services.index(service)],
            plan.fleet,
            model=find_model(service.model.id),
            engine_version=service.engine_version,
        )
        d = pool_deployment(ask, service, service.pools[0])
        steps = next(s for s in evidence.steps if s.key == evidence.planned)
        for i, batch in enumerate(steps.batches):
            for j, context in enumerate(steps.contexts):
                expected = step_s(d, calibration_of(d), decode_seqs=batch, context_tokens=batch * context)
                assert steps.linear_s[i] + steps.kv_s[i][j] == pytest.approx(expected, rel=1e-9)


def test_context_of_a_running_sequence(make: Make) -> None:
    plan = make()
    assert mean_context_tokens(plan.services[0].pools[0]) == pytest.approx(3000 + 400 / 2)
    prefill = plan.services[0].pools[0].model_copy(update={"role": "prefill"})
    assert mean_context_tokens(prefill) == pytest.approx(3000)


def test_frontier_alone() -> None:
    points = [FrontierPoint("fp8 tp4 batch 8", 60, 500), FrontierPoint("fp8 tp4 batch 16", 50, 900), FrontierPoint("fp8 tp4 batch 12", 55, 700, "chosen"), FrontierPoint("fp8 tp8 batch 12", 70, 300, "today")]  # fmt: skip
    chart = frontier_chart(points)
    svg = chart.svg()
    assert ">chosen</text>" in svg
    assert ">today</text>" in svg
    html = frontier_html(chart)
    assert len(html) < 200_000
    assert "700" in html


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kw: Any) -> Any:
        if name == "vl_convert":
            raise ImportError(name)
        return real(name, *args, **kw)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UserError, match="charts need altair") as e:
        altair()
    assert "pip install 'llm-deployment-planner[review]'" in e.value.helps


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def page(made: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "review.html"
    path.write_text(made["html"], encoding="utf-8")
    return path


def shown_ms(text: str) -> float:
    number, unit = text.replace(",", "").split()
    return float(number) * (1e3 if unit == "s" else 1.0)


@needs_browser
def test_slider_and_switch_show_the_planners_numbers(made: dict[str, Any], page: Path) -> None:
    pool = made["evidence"].pools[0]
    steps = next(s for s in pool.steps if s.key == pool.planned)
    column = steps.contexts.index(pool.context_tokens)
    with Browser() as b:
        b.open(page)
        # It opens on the planned layout at the batch nearest to what runs.
        assert b.text("#x-at") == "48"
        for i in (0, 5, len(steps.batches) - 1):
            b.choose("#x-batch", i)
            assert b.text("#x-at") == f"{steps.batches[i]:,}"
            total = steps.linear_s[i] + steps.kv_s[i][column]
            assert shown_ms(b.text("#x-total")) == pytest.approx(total * 1e3, rel=6e-3)
            assert shown_ms(b.text("#x-weights")) == pytest.approx(steps.weights_s[i] * 1e3, rel=6e-3)
            assert shown_ms(b.text("#x-kv")) == pytest.approx(steps.kv_s[i][column] * 1e3, rel=6e-3)
            rate = float(b.text("#x-replica").removesuffix("/s").replace(",", ""))
            assert rate == pytest.approx(steps.batches[i] / total, rel=6e-3)
        assert b.text("#x-crossover") == f"{steps.crossover} sequences"
        # Few sequences: the weights are what a step costs; a prompt's tokens: arithmetic is.
        b.choose("#x-batch", 0)
        alone = shown_ms(b.text("#x-compute"))
        assert alone < 0.1 * shown_ms(b.text("#x-weights"))
        b.click("#x-prefill")
        assert b.text("#x-at") == "2,048"
        i = steps.chunks.index(2048)
        total = steps.prefill_linear_s[i] + steps.prefill_attention_s[i]
        assert shown_ms(b.text("#x-total")) == pytest.approx(total * 1e3, rel=6e-3)
        assert shown_ms(b.text("#x-compute")) > 5 * shown_ms(b.text("#x-weights"))
        overhead = steps.prefill_fixed_s[i] > steps.prefill_compute_s[i]
        assert b.text("#x-bound") == ("links, launches and the host" if overhead else "arithmetic")
        # Other layout, precision and context.
        b.click("#x-decode")
        b.choose("#x-layout", "tp8")
        b.choose("#x-context", 8192)
        b.choose("#x-batch", 3)
        other = next(s for s in pool.steps if s.key == "fp8 tp8")
        assert shown_ms(b.text("#x-total")) == pytest.approx((other.linear_s[3] + other.kv_s[3][other.contexts.index(8192)]) * 1e3, rel=6e-3)  # fmt: skip
        assert b.text("#x-fits") == f"{other.fits[other.contexts.index(8192)]:,}"
        b.choose("#x-precision", "bf16")
        assert b.run("document.querySelector('#x-layout').value") == "tp8"
        b.choose("#x-pool", b.run("document.querySelector('#x-pool').options[1].text"))
        assert b.run("document.querySelector('#x-layout').value") == "tp1"
        # By keyboard, as a screen reader's user would.
        before = b.text("#x-at")
        b.press("#x-batch", "ArrowRight")
        assert b.text("#x-at") != before
        assert b.run("document.querySelector('#x-batch').getAttribute('aria-valuetext')").startswith(
            b.text("#x-at").replace(",", "")
        )
        assert b.console == []
        assert b.requests == []


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_fits_the_screen_and_can_be_read(page: Path, width: int, dark: bool) -> None:
    with Browser(width=width, dark=dark) as b:
        b.open(page)
        assert b.run("document.documentElement.scrollWidth") <= width
        # The charts of the right width are the ones that show, and their words are large enough.
        wide = b.run("getComputedStyle(document.querySelector('figure .wide')).display") != "none"
        assert wide == (width > 560)
        size = b.run("""Math.min(...[...document.querySelectorAll('figure svg text')].filter(e => e.getBoundingClientRect().height)
            .map(e => e.getBoundingClientRect().height))""")
        assert size >= 9
        # Text against its background, by WCAG's formula: 4.5 to 1.
        ratio = b.run("""(() => {
            const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
            const paper = light(getComputedStyle(document.body).backgroundColor);
            return Math.min(...[...document.querySelectorAll('p, td, th, dt, dd, h1, h2, a, summary, .good, .bad')].map(e => {
                const ink = light(getComputedStyle(e).color), [hi, lo] = ink > paper ? [ink, paper] : [paper, ink];
                return (hi + .05) / (lo + .05);
            }));
        })()""")
        assert ratio >= 4.5
        assert b.console == []
        assert b.requests == []


@needs_browser
def test_tooltips_speak_the_charts_own_labels(page: Path) -> None:
    with Browser() as b:
        b.open(page)
        said = b.run("""(() => {
            const mark = document.querySelector("figure .wide svg path[role='graphics-symbol'][aria-label]");
            mark.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 10, clientY: 10}));
            return [document.querySelector('.tip').textContent, mark.getAttribute('aria-label')];
        })()""")
        assert said[0].replace(" ·", ";") == said[1]


def test_the_explorers_json_is_small_and_plain(made: dict[str, Any]) -> None:
    text = re.search(r'<script type="application/json" id="steps">(.*?)</script>', made["html"], re.DOTALL)
    assert text is not None
    data = json.loads(text[1])
    assert [p["pool"] for p in data["pools"]] == ["chat", "autocomplete"]
    assert len(text[1]) < 120_000
