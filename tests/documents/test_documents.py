"""YAML in: every doubtful thing refused with its line. YAML out: both YAML versions read the same value."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.documents import dump_yaml, load_yaml, parse_json, parse_yaml, read_as, yaml_scalar
from planner.errors import UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet

INTENT = """\
services:
  - name: chat
    model: meta-llama/Llama-3.1-8B
    slo: {itl: 50ms}
    traffic: {rate: 12/s, input: 3000, output: 400}
"""


def refused(text: str) -> UserError:
    with pytest.raises(UserError) as e:
        read_as(Intent, parse_yaml(text, "intent.yaml"), what="an intent")
    return e.value


@pytest.mark.parametrize(
    ("old", "new", "code", "message", "line", "text"),
    [
        ("itl: 50ms", "itl: 50", "bad-slo", "bare number 50: a time needs a unit", 4, "slo"),
        ("itl: 50ms", "itl: 0ms", "bad-slo", "greater than zero", 4, "slo"),
        ("itl: 50ms", "itl.p101: 50ms", "bad-percentile", "'p101' is not a percentile", 4, "p101"),
        ("itl: 50ms", "itll: 50ms", "unknown-metric", "unknown SLO metric 'itll'", 4, "itll"),
        ("itl: 50ms", "itl: 50ms, itl.p99: 60ms", "duplicate-slo", "itl.p99 is given twice", 4, "itl.p99"),
        ("rate: 12/s", "rate: 12", "bad-value", "bare number 12: a rate needs a unit", 5, "12"),
        ("rate: 12/s", "rate: -1/s", "bad-value", "greater than zero", 5, "-1/s"),
        ("rate: 12/s", "rate: 0/s", "bad-value", "greater than zero", 5, "0/s"),
        ("input: 3000", "input: 0", "lengths", "a length of 0 tokens", 5, "input"),
        ("input: 3000", "input: 2.5", "lengths", "a length of 2.5 tokens", 5, "2.5"),
        ("input: 3000", "input: {mean: 3000, p95: 100}", "lengths", "p95 is below the mean", 5, "p95"),
        ("input: 3000, ", "", "traffic", "has no input length", 5, "traffic"),
        ("model: meta", "modell: meta", "unknown-key", "unknown key 'modell'", 3, "modell"),
        ("name: chat", "name: Chat!", "bad-name", "cannot be a service name", 2, "Chat!"),
        ("name: chat", "name: chat\n    name: chat", "duplicate-key", "stands twice", 3, "name"),
        ("name: chat", "name: &a chat", "yaml-ok", "", 0, ""),
        ("name: chat", "name: *a", "yaml-alias", "alias *a is not read", 2, "*a"),
        ("name: chat", "name: !!python/name:os.system chat", "yaml-tag", "is not read", 2, "!!python"),
    ],
)
def test_refused_at_its_line(  # noqa: PLR0917
    old: str, new: str, code: str, message: str, line: int, text: str
) -> None:
    changed = INTENT.replace(old, new, 1)
    assert changed != INTENT
    if code == "yaml-ok":
        read_as(Intent, parse_yaml(changed, "intent.yaml"), what="an intent")
        return
    e = refused(changed)
    found = [e.code, *e.notes, e.message]
    assert any(message in f for f in found), e.render()
    assert e.where is not None
    assert e.where.line == line, e.render()
    assert text in (e.where.text or "")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "not-a-mapping"),
        ("- 1\n- 2\n", "not-a-mapping"),
        ("just text", "not-a-mapping"),
        ("a: [", "yaml-syntax"),
        ("a: b: c", "yaml-syntax"),
        ("\x00", "yaml-syntax"),
        ("a: 1\n---\nb: 2\n", "yaml-syntax"),
        ("{{}}: 1", "yaml-key"),
        ("a: " + "[" * 60 + "]" * 60, "yaml-depth"),
        ("a: " + "{b: " * 5000 + "1" + "}" * 5000, "yaml-"),
        ("services: []", "bad-value"),
        ("services: {}", "bad-value"),
        ("services: 3", "bad-value"),
    ],
)
def test_not_a_document(text: str, code: str) -> None:
    assert refused(text).code.startswith(code)


def test_alias_bomb_is_refused_before_it_grows() -> None:
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    )
    assert refused(bomb).code == "yaml-alias"


def test_huge_file(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as f:
        f.truncate(50_000_000)
    with pytest.raises(UserError, match="50 MB"):
        load_yaml(path)


def test_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "h100.yaml").write_text("name: x")
    with pytest.raises(UserError) as e:
        load_yaml(tmp_path / "h10.yaml", what="fleet")
    assert e.value.code == "no-such-file"
    assert e.value.helps == ("write h100.yaml",)


def test_binary_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="UTF-8"):
        load_yaml(tmp_path / "x.yaml")


def test_yaml_12_scalars_stay_text() -> None:
    data = parse_yaml("a: on\nb: no\nc: 12:30:00\nd: 0755\ne: 1e3\nf: 2026-11-29\n", "x").data
    assert data == {"a": "on", "b": "no", "c": "12:30:00", "d": 755, "e": 1000.0, "f": "2026-11-29"}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": Infinity}', '{"a": }', "[" * 100_000])
def test_json_refused(text: str) -> None:
    with pytest.raises(UserError):
        parse_json(text, "config.json")


def test_empty_fleet() -> None:
    with pytest.raises(UserError, match="has no pools"):
        read_as(Fleet, parse_yaml("name: x\npools: []\n", "f.yaml"), what="a fleet")


TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        [
            "on",
            "no",
            "y",
            "0755",
            "1e3",
            "12:30:00",
            "~",
            "null",
            "0x1f",
            "{{ x }}",
            "$(X)",
            "a: b",
            "# c",
            "a\nb\n",
            "'",
            '"',
            "=",
            "<<",
            "é\u2028x",
            "- x",
            "%a",
            "@b",
            "`c",
        ]
    ),
)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True),
        st.one_of(
            TEXTS,
            st.integers(),
            st.floats(allow_nan=False, allow_infinity=False),
            st.booleans(),
            st.lists(TEXTS, max_size=3),
        ),
        max_size=5,
    )
)
def test_written_yaml_reads_back_in_both_versions(data: dict[str, object]) -> None:
    text = dump_yaml(data)
    assert yaml.safe_load(text) == (data or {})  # YAML 1.1
    if all(c.isprintable() for v in data.values() for c in str(v)):
        assert parse_yaml(text, "x").data == (data or {})  # YAML 1.2 scalars


@given(TEXTS)
def test_scalar_in_a_template(value: str) -> None:
    if any(0xD800 <= ord(c) < 0xE000 for c in value):
        return
    assert yaml.safe_load("key: " + yaml_scalar(value)) == {"key": value}
