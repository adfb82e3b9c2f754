"""Templates place values and can do nothing else; users override them one file at a time."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest
from jinja2 import nodes

from planner.data import shipped
from planner.errors import UserError
from planner.render import check_tree, render, write_tree
from tests.render.plans import plan

TEMPLATES = sorted(
    name
    for p in shipped("templates").rglob("*.j2")
    if not (name := p.relative_to(shipped("templates")).as_posix()).startswith("review/")  # the report's own
)
FORBIDDEN = (
    nodes.Assign, nodes.AssignBlock, nodes.Concat, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv,
    nodes.Mod, nodes.Pow, nodes.Neg, nodes.CondExpr, nodes.Compare, nodes.And, nodes.Or, nodes.Include, nodes.Extends,
)  # fmt: skip
FILTERS = {"yaml", "block", "comment", "trailing", "indent", "json", "sh", "md"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_only_place_values(name: str) -> None:
    """No set, default, arithmetic, concatenation, comparison or inclusion; only our filters."""
    tree = jinja2.Environment(autoescape=True).parse((shipped("templates") / name).read_text())
    for node in tree.find_all(nodes.Node):
        assert not isinstance(node, FORBIDDEN), f"{name}:{node.lineno}: {type(node).__name__}"
        if isinstance(node, nodes.Filter):
            assert node.name in FILTERS, f"{name}:{node.lineno}: | {node.name}"
        if isinstance(node, nodes.Test):
            assert node.name in ("none",), f"{name}:{node.lineno}: is {node.name}"


def test_every_template_is_used() -> None:
    """A template nobody renders is dead: breaking any shipped template breaks some case."""
    from planner.render.render import artefacts
    from tests.render.cases import cases

    used = {a.template for c in cases().values() for a in artefacts(c.plan)}
    assert set(TEMPLATES) - used == {"_macros/pod.yaml.j2", "_macros/launch.j2"}


def own(tmp_path: Path, text: str, name: str = "kubernetes/pdb.yaml.j2") -> Path:
    path = tmp_path / "templates" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return tmp_path / "templates"


def test_one_file_is_overridden(tmp_path: Path) -> None:
    folder = own(tmp_path, "# ours, {{ budgets[0].meta.name | yaml }}\n{}\n")
    files = {f.path.as_posix(): f.text for f in render(plan(), templates_dir=folder)}
    shipped_files = {f.path.as_posix(): f.text for f in render(plan())}
    assert files["chat/kubernetes/pdb.yaml"] == "# ours, chat\n{}\n"
    assert {k: v for k, v in files.items() if "pdb" not in k} == {
        k: v for k, v in shipped_files.items() if "pdb" not in k
    }


def test_check_knows_the_users_templates(tmp_path: Path) -> None:
    folder = own(tmp_path, "# ours\n{}\n")
    write_tree(render(plan(), templates_dir=folder), tmp_path / "out")
    assert check_tree(tmp_path / "out", templates_dir=folder) == ()
    assert [d.kind for d in check_tree(tmp_path / "out")] == ["drifted"]


@pytest.mark.parametrize(
    "text",
    [
        "{% include '/etc/passwd' %}",
        "{% include '../../../../etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% from 'nowhere.j2' import x %}",
        "{{ ''.__class__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ budgets.__class__ }}",
        "{{ budgets[0].meta.__init__ }}",
        "{{ budgets[0].meta.__init__.__globals__ }}",
        "{{ header.format(budgets) }}",
        "{{ header.encode() }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 10 ** 1000000 }}",
        "{{ range(10) }}",
        "{{ self._TemplateReference__context }}",
        "{{ lipsum }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner }}",
        "{{ namespace() }}",
        "{{ dict() }}",
        "{{ missing }}",
        "{{ budgets[0].nothing }}",
        "{{ budgets[99] }}",
        "{{ header | attr('__class__') }}",
        "{{ budgets | map(attribute='__class__') | list }}",
        "{{ header | yaml(1, 2, 3) }}",
        "{% for x in 5 %}{% endfor %}",
        "{% set x = budgets.append(1) %}{{ x }}",
        "{{ budgets.append(1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% if %}",
        "{{ unclosed",
        "{% call header() %}{% endcall %}",
        "key: [unclosed\n",
        "a: 1\na: {{ header }\n",
    ],
)
def test_a_hostile_or_broken_template_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError) as e:
        render(plan(), templates_dir=own(tmp_path, text))
    assert "root:" not in str(e.value)


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = own(tmp_path, "x", "kubernetes/notes.txt")
    (tmp_path / "secret").write_text("top secret")
    (folder / "kubernetes" / "pdb.yaml.j2").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="leads out of its folder"):
        render(plan(), templates_dir=folder)


def test_a_template_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        render(plan(), templates_dir=tmp_path / "nothing")


@pytest.mark.parametrize("data", [b"\xff\xfe", b"x" * 1_000_001])
def test_a_template_that_is_no_text_or_too_large(tmp_path: Path, data: bytes) -> None:
    folder = own(tmp_path, "")
    (folder / "kubernetes" / "pdb.yaml.j2").write_bytes(data)
    with pytest.raises(UserError):
        render(plan(), templates_dir=folder)
