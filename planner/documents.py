"""Reading YAML with places and writing YAML that every reader understands the same way.

Reading: YAML 1.2's plain scalars (so `on`, `no` and `12:30:00` stay the text that was typed), duplicate keys,
aliases and huge files refused, and each pydantic error pointed at the user's own line.
Writing: one value per line, strings quoted wherever a YAML 1.1 and a 1.2 reader could disagree.
"""

from __future__ import annotations

import difflib
import hashlib
import inspect
import json
import math
import os
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from planner.errors import UserError, Where, did_you_mean
from planner.units import FROM_DOCUMENT

M = TypeVar("M", bound=BaseModel)
Path_ = tuple[str | int, ...]

# Documents are written by people and reviewed by people; a larger one is a mistake (or an attack).
LARGEST_BYTES = 4 * 1024 * 1024
LARGEST_DEPTH = 40
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """YAML 1.2 core scalars only: null, true/false, integers, floats. Everything else is text."""

    yaml_implicit_resolvers: typing.ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:int", r"^[-+]?\d+$", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"^[-+]?(?:\.\d+|\d+(?:\.\d*)?)(?:[eE][-+]?\d+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$",
        "-+.0123456789",
    ),
):
    for _c in _first:
        _Loader.yaml_implicit_resolvers.setdefault(_c, []).append((_tag, re.compile(_pattern)))


class Strict(BaseModel):
    """Every document of ours: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data and where each value stood. `places[path]` is the value's place, `keys[path]` its key's."""

    data: Any
    source: str
    places: Mapping[Path_, Where] = field(default_factory=dict)
    keys: Mapping[Path_, Where] = field(default_factory=dict)

    def where(self, path: Iterable[str | int], *, key: bool = False) -> Where:
        """The place of `path`, or of its nearest known ancestor."""
        steps = tuple(path)
        while True:
            found = (self.keys.get(steps) if key else None) or self.places.get(steps)
            if found is not None:
                return found
            if not steps:
                return Where(self.source)
            steps = steps[:-1]
            key = False


def shown_path(path: Path) -> str:
    """A path as people wrote it or relative to the current folder; never an absolute path of this machine."""
    try:
        relative = os.path.relpath(path)
    except ValueError:  # another drive on Windows
        return path.name
    return path.as_posix() if not path.is_absolute() else (relative if not relative.startswith("..") else path.name)


def read_text(path: Path, *, what: str = "file", largest: int = LARGEST_BYTES) -> str:
    """The text of a file, or a UserError that says what is wrong with it."""
    shown = shown_path(path)
    where = Where(shown)
    try:
        if path.is_dir():
            raise UserError("not-a-file", f"{what} {shown} is a folder", where)
        size = path.stat().st_size
        if size > largest:
            raise UserError(
                "file-too-large",
                f"{what} {shown} is {size / 1e6:.0f} MB; at most {largest / 1e6:.0f} MB is read",
                where,
            )
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError as e:
        near: tuple[str, ...] = ()
        if path.parent.is_dir():
            near = close_files(path.name, path.parent)
        raise UserError("no-such-file", f"{what} {shown} does not exist", where, (), near) from e
    except UnicodeDecodeError as e:
        raise UserError("not-text", f"{what} {shown} is not UTF-8 text (byte {e.start})", where) from e
    except OSError as e:
        raise UserError("cannot-read", f"{what} {shown} cannot be read: {e.strerror}", where) from e


def close_files(name: str, folder: Path) -> tuple[str, ...]:
    """Help where a file of the folder has nearly that name; a folder's contents are no help."""
    try:
        there = [p.name for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")]
    except OSError:
        return ()
    lowered = {n.lower(): n for n in sorted(there)}
    near = difflib.get_close_matches(name.lower(), list(lowered), n=2, cutoff=0.75)
    # The suffix alone makes short names look alike.
    stem = Path(name).stem.lower()
    close = [lowered[n] for n in near if difflib.SequenceMatcher(None, stem, Path(n).stem).ratio() >= 0.6]
    return (f"write {' or '.join(close)}",) if close else ()


def parse_yaml(text: str, source: str) -> Document:
    """YAML text -> plain data with places. Raises UserError, with the line, for anything doubtful."""
    lines = text.splitlines()

    def at(mark: Any, width: int = 1) -> Where:
        line = lines[mark.line] if mark.line < len(lines) else ""
        return Where(source, mark.line + 1, mark.column + 1, line[:200], max(1, min(width, len(line) - mark.column)))

    if len(text) > LARGEST_BYTES:
        raise UserError(
            "file-too-large",
            f"{source} is {len(text) / 1e6:.0f} MB; at most {LARGEST_BYTES / 1e6:.0f} MB is read",
            Where(source),
        )
    try:
        loader = _Loader(text)
        try:
            for event in yaml.parse(text, Loader=_Loader):
                if isinstance(event, yaml.AliasEvent):
                    raise UserError(
                        "yaml-alias",
                        f"alias *{event.anchor} is not read",
                        at(event.start_mark, len(event.anchor or "") + 1),
                        ("aliases can grow without bound and hide what a reviewer reads",),
                        ("write the value out",),
                    )
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except UserError:
        raise
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        raise UserError(
            "yaml-syntax", f"not valid YAML: {e.problem or e.context}", at(mark) if mark else Where(source)
        ) from e
    except (yaml.YAMLError, RecursionError, ValueError) as e:
        raise UserError("yaml-syntax", f"not valid YAML: {str(e).splitlines()[0][:120]}", Where(source)) from e

    places: dict[Path_, Where] = {}
    keys: dict[Path_, Where] = {}
    scalar = yaml.constructor.SafeConstructor()

    def build(node: yaml.Node, path: Path_) -> Any:
        if len(path) > LARGEST_DEPTH:
            raise UserError("yaml-depth", f"nested deeper than {LARGEST_DEPTH} levels", at(node.start_mark))
        width = node.end_mark.column - node.start_mark.column if node.end_mark.line == node.start_mark.line else 1
        places[path] = at(node.start_mark, width)
        if isinstance(node, yaml.MappingNode):
            result: dict[str, Any] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, yaml.ScalarNode):
                    raise UserError("yaml-key", "a key must be plain text", at(key_node.start_mark))
                key = str(key_node.value)
                here = at(key_node.start_mark, len(key))
                if key in result:
                    raise UserError(
                        "duplicate-key",
                        f"key {key!r} stands twice",
                        here,
                        (f"first at line {keys[(*path, key)].line}",),
                        ("keep one of them",),
                    )
                keys[(*path, key)] = here
                result[key] = build(value_node, (*path, key))
            return result
        if isinstance(node, yaml.SequenceNode):
            return [build(child, (*path, i)) for i, child in enumerate(node.value)]
        if node.tag not in _PLAIN_TAGS:
            raise UserError(
                "yaml-tag",
                f"tag {node.tag.rsplit(':', 1)[-1]!r} is not read",
                at(node.start_mark),
                (),
                ("write plain YAML without tags",),
            )
        try:
            if node.tag.endswith(":int"):
                return int(node.value) if len(node.value) < 40 else str(node.value)
            if node.tag.endswith(":float"):
                return float(node.value.replace(".inf", "inf").replace(".nan", "nan"))
            return scalar.construct_object(node)
        except (ValueError, yaml.YAMLError) as e:
            raise UserError("yaml-syntax", f"not valid YAML: {node.value[:60]!r}", at(node.start_mark)) from e

    data = build(root, ()) if root is not None else None
    return Document(data, source, places, keys)


_PLAIN_TAGS = {f"tag:yaml.org,2002:{t}" for t in ("str", "int", "float", "bool", "null")}


def parse_json(text: str, source: str) -> Document:
    """JSON text -> plain data; duplicate keys and NaN refused. Only a syntax error has a line."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise UserError(
                    "duplicate-key",
                    f"key {key!r} stands twice in {source}",
                    Where(source),
                    (),
                    ("keep one of them",),
                )
            result[key] = value
        return result

    def constant(name: str) -> float:
        raise UserError("not-a-number", f"{name} stands in {source}", Where(source), (), ("write a finite number",))

    try:
        return Document(json.loads(text, object_pairs_hook=unique, parse_constant=constant), source)
    except json.JSONDecodeError as e:
        line = text.splitlines()[e.lineno - 1] if text.splitlines() else ""
        raise UserError("json-syntax", f"not valid JSON: {e.msg}", Where(source, e.lineno, e.colno, line[:200])) from e
    except RecursionError as e:
        raise UserError("json-depth", f"{source} is nested too deeply", Where(source)) from e


def load_yaml(path: Path, *, what: str = "file") -> Document:
    """A YAML file -> plain data with places."""
    return parse_yaml(read_text(path, what=what), shown_path(path))


def read_as(model: type[M], document: Document, *, what: str) -> M:
    """Plain data -> a frozen pydantic model, or a UserError pointing at the user's own line."""
    if not isinstance(document.data, dict):
        kind = "empty" if document.data is None else f"a {_kind(document.data)}"
        raise UserError("not-a-mapping", f"{what} must be a mapping of keys to values, not {kind}", document.where(()))
    try:
        return model.model_validate(document.data, context=FROM_DOCUMENT)
    except ValidationError as e:
        raise _user_error(e, model, document) from e


def _kind(value: Any) -> str:
    names = {
        dict: "mapping",
        list: "list",
        tuple: "list",
        str: "text",
        bool: "truth value",
        int: "number",
        float: "number",
    }
    return next((n for t, n in names.items() if isinstance(value, t)), type(value).__name__)


def _user_error(error: ValidationError, model: type[BaseModel], document: Document) -> UserError:
    raw = error.errors(include_url=False)
    # A list that came out empty because its items failed is not the user's mistake: the items are.
    raw = [
        e
        for e in raw
        if not (
            e["type"] == "too_short"
            and any(len(o["loc"]) > len(e["loc"]) and o["loc"][: len(e["loc"])] == e["loc"] for o in raw)
        )
    ]
    found = [_one(e, model, document) for e in raw]
    # A misspelt key is both unknown and missing: say the first, which has the user's own word.
    found.sort(key=lambda u: (u.code != "unknown-key", (u.where.line or 0, u.where.column or 0) if u.where else (0, 0)))
    first, rest = found[0], found[1:]
    also = tuple(f"also: {u.message} ({u.where})" for u in rest[:5] if u.message != first.message)
    return UserError(first.code, first.message, first.where, (*first.notes, *also), first.helps, first.exit_code)


def _one(e: Any, model: type[BaseModel], document: Document) -> UserError:
    loc = tuple(e["loc"])
    path = _real_path(loc, document.data)
    name = ".".join(str(p) for p in path) or "the document"
    kind = e["type"]
    if kind == "extra_forbidden":
        known = fields_at(model, path[:-1])
        return UserError(
            "unknown-key",
            f"unknown key {path[-1]!r}",
            document.where(path, key=True),
            (),
            did_you_mean(str(path[-1]), known),
        )
    if kind == "missing":
        return UserError(
            "missing-key",
            f"{path[-1] if path else loc[-1]!r} is missing" if path else f"{loc[-1]!r} is missing",
            document.where(path[:-1], key=True),
            (),
            (f"add {loc[-1]}: ...",),
        )
    cause = (e.get("ctx") or {}).get("error")
    if isinstance(cause, UserError):
        return cause.at(document.where(path))
    where = document.where(path)
    if cause is not None:
        advice = getattr(cause, "advice", "")
        return UserError("bad-value", f"{name}: {cause}", where, (), (advice,) if advice else ())
    key = next((str(p) for p in reversed(path) if isinstance(p, str)), "value")
    message, helps = _plain(e, key, where, tuple(fields_at(model, path)))
    return UserError("bad-value", f"{name} {message}", where, (), helps)


_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def _plain(e: Any, key: str, where: Where, known: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """pydantic's complaint about one value in plain words, and what to write instead."""
    kind, value, ctx = e["type"], e["input"], e.get("ctx") or {}
    written = _written(value, where)
    scalar = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    nan = isinstance(value, float) and math.isnan(value)
    if kind in _BOUNDS and not nan:
        words, bound = _BOUNDS[kind]
        return f"must be {words} {ctx[bound]:,.12g}, not {written}", ()
    if nan or kind.startswith(("float_", "finite_number", "decimal_")):
        return f"must be a number, not {written}", ()
    if kind.startswith("int_"):
        return f"must be a whole number, not {written}", ()
    if kind.startswith("bool_"):
        return f"must be true or false, not {written}", ()
    if kind == "literal_error":
        return f"must be {ctx['expected']}, not {written}", did_you_mean(
            str(value), re.findall(r"'([^']+)'", ctx["expected"])
        )
    if kind == "string_type":
        quote = (f'quote it: {key}: "{written}"',) if isinstance(value, (int, float, bool)) else ()
        return f"must be text, not {_a_kind(value)}", quote
    if kind in ("tuple_type", "list_type", "set_type"):
        return f"must be a list, not {_a_kind(value)}", (f"write {key}: [{written}]",) if scalar else (
            f"write {key}: [...]",
        )
    if kind in ("model_type", "model_attributes_type", "dict_type", "dataclass_type"):
        form = f"its keys are {', '.join(known)}" if known and kind != "dict_type" else ""
        return f"must be a mapping of keys to values, not {_a_kind(value)}", (form or f"write {key}: {{name: value}}",)
    if kind in ("too_short", "too_long"):
        short = kind == "too_short"
        least = ctx["min_length"] if short else ctx["max_length"]
        items = "item" if least == 1 else "items"
        return f"must hold at {'least' if short else 'most'} {least} {items}, not {ctx['actual_length']}", ()
    if kind in ("string_too_short", "string_too_long"):
        short = kind == "string_too_short"
        least = ctx["min_length"] if short else ctx["max_length"]
        return f"must have at {'least' if short else 'most'} {least} character{'s' if least != 1 else ''}", ()
    if kind == "string_pattern_mismatch":
        return f"is {written}, which is not of the form {ctx['pattern']}", ()
    text = str(e["msg"]).removeprefix("Input ")
    return text[:1].lower() + text[1:], ()


def _written(value: Any, where: Where) -> str:
    """A value as the user wrote it where its place is known (`1.30` is no 1.3); text in quotes."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:60] + "...")
    if isinstance(value, (dict, list, tuple)):
        return _a_kind(value)
    if where.text is not None and where.column is not None and where.width > 1:
        there = where.text[where.column - 1 : where.column - 1 + where.width]
        if there and "\n" not in there and where.source != "command line":
            return there
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _a_kind(value: Any) -> str:
    return "empty" if value is None else "text" if isinstance(value, str) else f"a {_kind(value)}"


def _real_path(loc: tuple[Any, ...], data: Any) -> Path_:
    """pydantic's location without the names of union branches, which are not in the user's file."""
    path: list[str | int] = []
    for i, step in enumerate(loc):
        if (isinstance(data, dict) and step in data) or (
            isinstance(data, list) and isinstance(step, int) and step < len(data)
        ):
            data = data[step]
        elif i == len(loc) - 1 and isinstance(step, str) and isinstance(data, dict):
            path.append(step)  # a missing key
            break
        else:
            continue
        path.append(step)
    return tuple(path)


def fields_at(model: Any, path: Path_) -> list[str]:
    """Names of the fields a document may have at `path`, for near-miss suggestions."""
    models = _models_in(model)
    for step in path:
        nxt: list[type[BaseModel]] = []
        for m in models:
            for fname, info in m.model_fields.items():
                if isinstance(step, int):
                    nxt.append(m)
                    break
                if step in (fname, info.alias):
                    nxt += _models_in(info.annotation)
        models = nxt or models
    return sorted({info.alias or name for m in models for name, info in m.model_fields.items()})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in typing.get_args(annotation) for m in _models_in(arg)]


# ---------------------------------------------------------------- writing


class _Dumper(yaml.SafeDumper):
    """Indents lists under their key and never writes anchors."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Text that some YAML reader would take for something else: 1.1 booleans and sexagesimals, 1.2 octals, numbers.
_AMBIGUOUS = re.compile(
    r"^(?:y|n|yes|no|on|off|true|false|null|~|=|<<|\.nan|[-+]?\.inf|[-+.]?\d[\d_.,:eExXoOa-fA-F+-]*)$",
    re.IGNORECASE,
)


def _represent_str(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    if "\n" in value and not re.search(
        r"[ \t]\n|^\s|[^\S\n]$|\t|\r|[^\x09\x0a\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]", value
    ):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    if re.search("[\x85\u2028\u2029\ufeff]", value):  # line breaks to a YAML 1.1 reader, text to a 1.2 one: escaped
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')
    if _AMBIGUOUS.fullmatch(value):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value)


def _represent_float(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
    if math.isnan(value) or math.isinf(value):
        raise ValueError("a document never holds NaN or infinity")
    text = json.dumps(value)
    # YAML 1.1 takes 1e-05 for text: its floats have a dot.
    return dumper.represent_scalar("tag:yaml.org,2002:float", text.replace("e", ".0e") if "." not in text else text)


_Dumper.add_representer(str, _represent_str)
_Dumper.add_representer(float, _represent_float)


def dump_yaml(data: Any) -> str:
    """Plain data -> canonical YAML text; key order is the data's own, no line is folded."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10**6)


def yaml_scalar(value: Any) -> str:
    """One value as it may stand behind `key: ` in a template: strings quoted where readers could disagree."""
    if isinstance(value, str):
        text = yaml.dump(value, Dumper=_Dumper, allow_unicode=True, width=10**6, default_style=None)
        text = text.removesuffix("\n").removesuffix("\n...")
        if "\n" in text or "\n" in value:
            text = yaml.dump(value, Dumper=yaml.SafeDumper, allow_unicode=True, width=10**6, default_style='"').rstrip(
                "\n"
            )
        return text
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def digest(data: Any) -> str:
    """sha256 over the canonical JSON of plain data, never over file bytes."""
    return (
        "sha256:"
        + hashlib.sha256(
            json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        ).hexdigest()
    )
