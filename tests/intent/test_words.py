"""Mistakes in intents, fleets and platforms, said in plain words with a place and something to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.documents import Strict, load_yaml, parse_yaml, read_as
from planner.errors import UserError
from planner.intent.document import Intent
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.intent.traces import summarise_file

SERVICE = "services:\n- name: a\n  model: b\n  traffic: {input: 3, output: 3}\n"
POOL = "name: x\npools:\n- name: a\n  gpu: h100-sxm\n  nodes: 1\n"


def refusal(model: type[Strict], text: str) -> str:
    with pytest.raises(UserError) as e:
        read_as(model, parse_yaml(text, "x.yaml"), what="a document")
    assert e.value.where is not None
    assert e.value.where.line is not None
    for jargon in ("tuple", "dictionary", "instance of", "validation", "valid string", "input should", "parse string"):
        assert jargon not in str(e.value), e.value
    return str(e.value)


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("services: []", ("services must hold at least 1 item, not 0",)),
        ("services: 3", ("services must be a list, not a number",)),
        (SERVICE.replace("{input: 3, output: 3}", "[]"), ("traffic must hold at least 1 item",)),
        (SERVICE.replace("input: 3", "input: abc"), ("a length is a number of tokens", "write 3500, or {mean:")),
        (SERVICE.replace("input: 3", "input: [1]"), ("a length is a number of tokens",)),
        (
            SERVICE.replace("output: 3", "output: 3, sessions: 3"),
            ("must be a mapping", "its keys are think_time, turns"),
        ),
        (SERVICE.replace("output: 3", "output: 3, priority: 1.5"), ("must be a whole number, not 1.5",)),
        (SERVICE.replace("output: 3", "output: 3, trough: 2"), ("must be at most 1, not 2",)),
        (SERVICE.replace("output: 3", "output: 3, prefix_cache: half"), ("'half' is not a share", "40%")),
        (SERVICE.replace("output: 3", "output: 3, prefix_cache: 150%"), ("must be at most 1, not ",)),
        (SERVICE + "  precisions: fp8\n", ("must be a list, not text", "write precisions: ['fp8']")),
        (SERVICE + "  fixed: {ep: maybe}\n", ("must be true or false, not 'maybe'",)),
        (SERVICE + "  load_cap: high\n", ("must be a number, not 'high'",)),
        (SERVICE + "  survive: 1 nodes\n", ("must be 'none', '1 replica' or '1 node', not '1 nodes'", "write 1 node")),
        (SERVICE.replace("name: a", "name: 3"), ("services.0.name must be text, not a number", 'quote it: name: "3"')),
        (SERVICE.replace("model: b", "model:"), ("services.0.model must be text, not empty",)),
        (SERVICE.replace("input: 3", "input: {mean: 10, p95: 1000}"), ("no lognormal has a p95 of 1000", "x.yaml:4")),
        (SERVICE.replace("input: 3", "input: {mean: 10, cv: 1, max: 9}"), ("max 9 is below the mean 10", "x.yaml:4")),
        (SERVICE.replace("input: 3", "input: {mean: .nan}"), ("must be a number, not ",)),
    ],
)
def test_intents(text: str, texts: tuple[str, ...]) -> None:
    said = refusal(Intent, text)
    for t in texts:
        assert t in said


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("kubernetes_version: 1.30", ("must be text, not a number", 'quote it: kubernetes_version: "1.30"')),
        ("kubernetes_version: '1.5'", ("'1.5' is not a Kubernetes version", "1.25")),
        ("labels: 3", ("labels must be a mapping",)),
        ("labels: {a: 1}", ('quote it: a: "1"',)),
        ("labels:\n  ok: b\n  'a b': c\n", ("'a b' is not a Kubernetes label key", "x.yaml:3")),
        ("annotations:\n  ok: b\n  'a b': c\n", ("'a b' is not a Kubernetes annotation key", "x.yaml:3")),
        ("images:\n  vlm: 'a/b:1'\n", ("'vlm' is no component", "write vllm", "x.yaml:2")),
        ("crds: keda", ("crds must be a list, not text", "write crds: ['keda']")),
        ("crds: [keeda]", ("not 'keeda'", "write keda")),
        ("model_source: hub", ("must be a mapping of keys to values, not text", "kind, ")),
    ],
)
def test_platforms(text: str, texts: tuple[str, ...]) -> None:
    said = refusal(Platform, text)
    for t in texts:
        assert t in said


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("schema_version: 99\n" + POOL, ("schema_version must be 1, not 99",)),
        (POOL.replace("name: x", "name: ../../x"), ("'../../x' cannot be a name here",)),
        (POOL.replace("name: a", "name: a/../b"), ("'a/../b' cannot be a name here", "x.yaml:3")),
        (POOL + "  nic: 400\n", ("write 400Gbit/s if that is what you mean",)),
        (POOL + "  kubernetes: {tolerations: [{key: a, effect: NoSchedul}]}\n", ("not 'NoSchedul'", "write NoSched")),
        (POOL + "  kubernetes: {tolerations: [{key: a, operator: In}]}\n", ("'Equal' or 'Exists'",)),
        (POOL + "  kubernetes: {tolerations: [{value: a}]}\n", ("operator Equal needs a key",)),
        (POOL + "  kubernetes: {node_selector: {'a b': c}}\n", ("'a b' is not a Kubernetes label key",)),
        (POOL + "  kubernetes: {node_selector: {a: 'b c'}}\n", ("'b c' is not a Kubernetes label value",)),
        (POOL + "  kubernetes: {gpu_resource: gpu}\n", ("'gpu' is not an extended resource", "nvidia.com/gpu")),
    ],
)
def test_fleets(text: str, texts: tuple[str, ...]) -> None:
    said = refusal(Fleet, text)
    for t in texts:
        assert t in said


@pytest.mark.parametrize("written", ["0.5", "50%", "{share: 50%}", "{share: 0.5}"])
def test_shares_may_be_percentages(written: str) -> None:
    text = SERVICE.replace("output: 3", f"output: 3, prefix_cache: {written}")
    intent = read_as(Intent, parse_yaml(text, "x.yaml"), what="an intent")
    cache = intent.services[0].traffic[0].prefix_cache
    assert cache is not None
    assert cache.share == 0.5


def test_only_close_file_names_are_suggested(tmp_path: Path) -> None:
    for name in ("i.yaml", ".hidden.yaml", "fleet.yaml"):
        (tmp_path / name).write_text("a: 1\n")
    for asked, helps in (("nope.yaml", ()), ("hidden.yaml", ()), ("fleeet.yaml", ("write fleet.yaml",))):
        with pytest.raises(UserError) as e:
            load_yaml(tmp_path / asked)
        assert tuple(e.value.helps) == helps


def test_a_trace_with_a_column_twice(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("input_tokens,output_tokens,input_tokens\n1,2,3\n")
    with pytest.raises(UserError, match="column 'input_tokens' stands twice"):
        summarise_file(path)
