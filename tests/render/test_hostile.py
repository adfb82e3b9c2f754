"""Hostile words: quoted so that no reader takes them for anything else, or refused by name."""

from __future__ import annotations

import functools
import json
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UserError
from planner.intent.platform import Platform
from planner.plan.document import Plan
from planner.render import render
from planner.render.args import kubernetes, posix
from planner.render.text import comment, compose_escape, kubernetes_escape
from tests.render.manifests import LOADER, documents, errors, pods
from tests.render.plans import fleet, plan, service

WORDS = [
    'a"b', "a'b", 'a\nb', 'a\r\nb: c', 'a\tb', '{{ 7 * 7 }}', '{% raw %}', '$(HOME)', '${HOME}', '`id`', '$(id)',
    'a;rm -rf /', 'on', 'no', 'yes', 'null', '~', '0755', '1e3', '12:30:00', '!!python/object', '&a', '*a', '- a',
    'a: b', 'a #b', '#a', '%a', '@a', '|', '>', 'é', '模型', 'a\u2028b', 'a\x85b', 'a\x00b', 'a\x1bb', '\ufeffa',
    '--flag', '-x', ' a', 'a ', '', "a" * 600, '../../etc/passwd', '/etc/passwd', 'a|b', '</script>', 'a\\b', '[a]',
    '{a: b}', "'", '"', '\\', 'a,b', '?', ':',
]  # fmt: skip
ENGINES = ["vllm", "sglang"]


def planned(target: str = "kubernetes", engine: str = "vllm", *, reason: str | None = None, **model: Any) -> Plan:
    doc, intent = service(target=target, engine=engine, model_changes=model)
    if reason is not None:
        pools = tuple(p.model_copy(update={"reasons": dict.fromkeys(p.reasons, reason)}) for p in doc.pools)
        doc = doc.model_copy(update={"pools": pools, "why": (reason,)})
    return plan((doc, intent))


def refused(error: UserError, *codes: str) -> None:
    """By name, on one line."""
    assert error.code in codes
    assert "\n" not in error.message


def args_of(p: Plan) -> list[str]:
    d = next(d for _, d in documents(render(p)) if d["kind"] == "Deployment")
    return list(next(pods(d))["containers"][0]["args"])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("word", WORDS)
def test_model_id_is_inert_or_refused(word: str, engine: str) -> None:
    try:
        args = args_of(planned(engine=engine, id=word))
    except UserError as e:
        refused(e, "unsafe-text", "engine-flag")
        return
    served = next(a for a in args if a.startswith("--served-model-name="))
    # Kubernetes turns $$ into $ and expands nothing else
    assert "$(" not in served.replace("$$", "")
    assert served.replace("$$", "$") == f"--served-model-name={word}"


@pytest.mark.parametrize("word", WORDS)
def test_repository_is_inert_or_refused(word: str) -> None:
    try:
        args = args_of(planned(repo=word))
    except UserError as e:
        refused(e, "model-reference", "unsafe-text")
        return
    assert args[0] == word
    assert args[0].isascii()


@pytest.mark.parametrize("word", WORDS)
def test_path_in_a_claim_is_inert_or_refused(word: str) -> None:
    doc, intent = service()
    try:
        source = {"kind": "pvc", "claim": "weights", "path": word}
        args = args_of(plan((doc, intent), platform=Platform.model_validate({"model_source": source})))
    except UserError as e:
        refused(e, "unsafe-text", "model-source")
        return
    assert args[0].replace("$$", "$") == f"/models/{word}".rstrip("/").replace("/models//", "/models/")


def data(p: Plan) -> dict[str, Any]:
    """What every file says to a machine: comments and annotations aside."""
    found: dict[str, Any] = {}
    for f in render(p):
        if f.path.name in ("plan.yaml", "SUMMARY.md", "values.yaml"):
            continue
        if f.path.suffix == ".yaml":
            docs = [d for d in yaml.load_all(f.text, LOADER) if d is not None]
            for d in docs:
                if "metadata" in d:
                    d["metadata"].pop("annotations", None)
            found[f.path.as_posix()] = docs
        elif f.path.suffix == ".sh":
            found[f.path.as_posix()] = shlex.split(f.text, comments=True)
    return found


@functools.cache
def plainly(target: str) -> dict[str, Any]:
    return data(planned(target, reason="plain"))


@pytest.mark.parametrize("target", ["kubernetes", "compose", "kserve", "llm-d", "dynamo", "none"])
def test_a_reason_stays_a_comment(target: str) -> None:
    """Comments take any text and lose its line breaks; the data of every file stays what it was."""
    for word in WORDS:
        assert data(planned(target, reason=word)) == plainly(target), repr(word)


@pytest.mark.parametrize("word", WORDS)
def test_annotations_keep_the_word(word: str) -> None:
    p = planned().model_copy(update={"platform": Platform(annotations={"example.com/note": word})})
    for _, d in documents(render(p)):
        assert d["metadata"]["annotations"]["example.com/note"] == word
        assert not errors(d)


@pytest.mark.parametrize("word", WORDS)
def test_values_file_and_dashboard_keep_the_word(word: str) -> None:
    try:
        p = planned(id=word).model_copy(update={"platform": Platform(monitoring=True)})
        files = {f.path.name: f.text for f in render(p)}
    except UserError:
        return
    assert yaml.safe_load(files["values.yaml"])["model"]["id"] == word
    json.loads(files["dashboard.json"])


@pytest.mark.parametrize("word", ["On", "0755", "a b", "a_b", "A", "-a", "a-", "ü", "a" * 46, "a.b", "1a", ""])
def test_pool_names_are_dns_labels_or_refused(word: str) -> None:
    doc, intent = service()
    doc = doc.model_copy(update={"pools": (doc.pools[0].model_copy(update={"name": word}),)})
    with pytest.raises(UserError, match="is not a name"):
        render(plan((doc, intent)))


@given(st.text(max_size=60))
def test_comment_is_one_printable_line(text: str) -> None:
    line = comment(text)
    assert len(line.splitlines()) <= 1
    assert line == "" or line.isprintable()
    assert yaml.safe_load(f"a: 1  # {line}\n") == {"a": 1}


@given(st.text(alphabet="$(){}AB'\" \\", max_size=20))
def test_escapes_come_back(text: str) -> None:
    assert expand(kubernetes_escape(text)) == text
    assert compose_escape(text).replace("$$", "$") == text
    assert shlex.split(posix((text,))) == ([text] if text else [])
    assert expand(kubernetes((text,))) == text


def expand(text: str) -> str:
    """Kubernetes' own expansion of $(NAME) and $$, for variables it does not know."""
    out, i = "", 0
    while i < len(text):
        if text[i] == "$" and i + 1 < len(text):
            if text[i + 1] == "$":
                out, i = out + "$", i + 2
                continue
            assert text[i + 1] != "(" or ")" not in text[i:], "would be expanded"
        out, i = out + text[i], i + 1
    return out


@pytest.mark.parametrize("word", ["a b", "a\nb", "ü", "$(x)", "a" * 64, "a\n"])
def test_labels_and_resources_of_a_fleet_are_checked(word: str) -> None:
    for words in ({"node_selector": {"gpu": word}}, {"gpu_resource": word}, {"rdma_resource": f"rdma/{word}"}):
        with pytest.raises(ValueError, match=r"not a Kubernetes|not an extended"):
            render(plan(fleet_=fleet(kubernetes=words)))


def test_yaml_words_in_a_fleet_stay_text() -> None:
    files = render(plan(fleet_=fleet(kubernetes={"node_selector": {"gpu": "on", "rack": "0755"}})))
    d = next(d for _, d in documents(files) if d["kind"] == "Deployment")
    assert next(pods(d))["nodeSelector"] == {"gpu": "on", "rack": "0755"}
