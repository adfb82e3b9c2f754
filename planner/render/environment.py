"""The template environment: a sandbox in which templates place values and can do nothing else.

Shipped templates are in `templates/`; a user's folder overrides them one file at a time. Templates see frozen context
objects, a handful of filters and no global function. Reading files, importing, calling into Python and building huge
strings are refused (`tests/render/test_templates.py` tries).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from planner.data import shipped
from planner.documents import dump_yaml, shown_path
from planner.errors import UserError, Where, did_you_mean
from planner.render.text import comment, shell, to_yaml

LARGEST_TEMPLATE = 1_000_000
# What a template that misuses the values it is given can run into; a shipped template never does.
USER_MISTAKES = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Immutable values, no operators that build text, no attributes but data."""

    intercepted_binops = frozenset(["*", "**", "%", "+", "-", "/", "//"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        raise SecurityError(f"templates place values, they do not compute ({operator})")

    def is_safe_callable(self, obj: Any) -> bool:
        return isinstance(obj, jinja2.runtime.Macro)


def block(value: Any, indent: int) -> str:
    """Plain data as YAML lines, every line but the first indented: for `{{ x | block(6) }}` behind six spaces."""
    lines = dump_yaml(value).rstrip("\n").split("\n")
    return ("\n" + " " * indent).join(lines)


def trailing(why: str) -> str:
    """A reason as a comment at the end of a line, or nothing."""
    text = comment(why)
    return f"  # {text}" if text else ""


def indent(text: str, width: int) -> str:
    """Several lines, every line but the first indented; empty lines stay empty; no line break at the end."""
    first, *rest = text.rstrip("\n").split("\n")
    return "\n".join([first, *(" " * width + line if line else line for line in rest)])


def to_json(value: Any) -> str:
    """One value of a JSON file."""
    return json.dumps(value, sort_keys=True)


def to_shell(value: Any) -> str:
    """One word of a shell."""
    return shell(str(value))


def to_markdown(value: Any) -> str:
    """One line of Markdown that is nothing but text."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", comment(str(value))).replace("<", "&lt;")


FILTERS: dict[str, Callable[..., Any]] = {
    "yaml": to_yaml,
    "json": to_json,
    "sh": to_shell,
    "md": to_markdown,
    "block": block,
    "comment": comment,
    "trailing": trailing,
    "indent": indent,
}


@functools.cache
def shipped_templates() -> Templates:
    """The templates that ship, compiled once per process."""
    return Templates()


def _nearest(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """The shipped template that was probably meant: the same file name elsewhere, or a near one."""
    same = [k for k in known if k.rsplit("/", 1)[-1] == name.rsplit("/", 1)[-1]]
    return (f"name it {' or '.join(same[:3])}",) if same else did_you_mean(name, known)


class Templates:
    """Shipped templates, overridden file by file from a user's folder."""

    def __init__(self, templates_dir: Path | None = None) -> None:
        self._shipped = shipped("templates")
        self._own = templates_dir
        if templates_dir is not None and not templates_dir.is_dir():
            raise UserError("templates", f"template folder {templates_dir.as_posix()} does not exist")
        if templates_dir is not None:
            self._check_own(templates_dir)
        self._env = _Sandbox(
            loader=jinja2.FunctionLoader(self._load),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self._env.globals.clear()
        self._env.filters = dict(FILTERS)
        self._env.tests = {name: self._env.tests[name] for name in ("none", "defined")}

    def _check_own(self, folder: Path) -> None:
        """Every template of the user's replaces one that ships; another would be ignored in silence."""
        known = sorted(p.relative_to(self._shipped).as_posix() for p in self._shipped.rglob("*.j2"))
        own = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        for name in own:
            if name.endswith((".j2", ".jinja", ".jinja2")) and name not in known:
                shown = shown_path(folder / name)
                raise UserError(
                    "templates", f"template {shown} replaces nothing", Where(shown), (), _nearest(name, known)
                )
        if not any(name in known for name in own):
            shown = shown_path(folder)
            raise UserError(
                "templates",
                f"template folder {shown} replaces nothing",
                Where(shown),
                (),
                _nearest(own[0], known) if own else ("copy a file of templates/ into it under the same path",),
            )

    def _overrides(self, name: str) -> Path | None:
        if self._own is None:
            return None
        path = self._own / name
        if not path.is_file():
            return None
        if not path.resolve().is_relative_to(self._own.resolve()):
            raise UserError("templates", f"template {name} leads out of its folder", None, (), ("copy the file",))
        return path

    def _load(self, name: str) -> str | None:
        if name.startswith(("/", ".")) or ".." in name.split("/") or "\\" in name or not name.endswith(".j2"):
            return None
        path = self._overrides(name) or self._shipped / name
        if not path.is_file():
            return None
        try:
            data = path.read_bytes()
            if len(data) > LARGEST_TEMPLATE:
                raise UserError("templates", f"template {name} is larger than {LARGEST_TEMPLATE} bytes")
            return data.decode("utf-8")
        except UnicodeDecodeError as e:
            raise UserError("templates", f"template {name} is not UTF-8 text") from e
        except OSError as e:
            raise UserError("templates", f"template {name} cannot be read: {e.strerror}") from e

    def render(self, name: str, context: Mapping[str, Any]) -> str:
        """One artefact. A mistake in a user's template is a UserError; in a shipped one, a bug."""
        mistakes: tuple[type[Exception], ...] = (jinja2.TemplateError,)
        if self._own is not None:
            mistakes += USER_MISTAKES
        try:
            return self._env.get_template(name).render(context)
        except UserError:
            raise
        except mistakes as e:
            line = getattr(e, "lineno", None)
            place = f"{getattr(e, 'name', None) or name}" + (f":{line}" if line else "")
            raise UserError(
                "templates",
                f"template {place}: {comment(str(e))[:200] or type(e).__name__}",
                None,
                ("templates place values; Python decides them",),
                ("compare with the shipped template of the same name",),
            ) from e
