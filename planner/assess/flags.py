"""An engine's words against its flag table: what each flag says, and what the table does not know.

More lenient than the check of rendered files, because people's files use what the engines accept: aliases,
underscores, abbreviations, `--no-` forms, dotted JSON. Whatever is not in the table is named, never guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.assess.shell import unresolved
from planner.catalog.engines import DEFAULT_VERSION, EXTRA, EngineVersion, Flag, engine_versions, find_engine
from planner.errors import near_misses


@dataclass(frozen=True, slots=True)
class Option:
    """One flag as it was given. `value` is text, `true` or `false` for a switch."""

    name: str
    value: str
    written: str
    """The flag as the user wrote it."""


@dataclass(frozen=True, slots=True)
class Options:
    """All of a command line."""

    engine: str
    table_version: str
    positional: tuple[str, ...]
    given: tuple[Option, ...]
    problems: tuple[str, ...]
    """What could not be read: unknown flags, values without a flag, variables without a value."""
    notes: tuple[str, ...] = ()
    """What was read and deserves a word: abbreviations, deprecated flags."""

    def text(self, name: str) -> str | None:
        """The last value given (the engines' own rule), None where the flag is absent or not known before start."""
        found = None
        for o in self.given:
            if o.name == name:
                found = o.value
        return None if found is None or unresolved(found) else found

    def written(self, name: str) -> str | None:
        """How the user spelled a flag."""
        return next((o.written for o in reversed(self.given) if o.name == name), None)

    def number(self, name: str) -> int | None:
        """A whole number, also `8k` and `8K`."""
        text = self.text(name)
        return None if text is None else human_int(text)

    def ratio(self, name: str) -> float | None:
        text = self.text(name)
        try:
            return None if text is None else float(text)
        except ValueError:
            return None

    def on(self, name: str) -> bool | None:
        """A switch: True, False (its negation), None where not given."""
        text = self.text(name)
        return None if text is None else text != "false"

    def json(self, name: str) -> dict[str, Any]:
        """A JSON flag with its dotted parts merged in; empty where absent or not JSON."""
        merged: dict[str, Any] = {}
        for o in self.given:
            if o.name != name or unresolved(o.value):
                continue
            try:
                data = json.loads(o.value)
            except ValueError:
                continue
            if isinstance(data, dict):
                merged |= data
        return merged


def human_int(text: str) -> int | None:
    """vLLM's numbers: k is 1000, K is 1024.

    >>> human_int("8192"), human_int("8k"), human_int("8K"), human_int("1.5m"), human_int("auto")
    (8192, 8000, 8192, 1500000, None)
    """
    m = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", text.strip().replace("_", ""))
    if m is None:
        return None
    factor = {"": 1, "k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}[m[2]]
    value = float(m[1]) * factor
    return int(value) if value == int(value) else None


def reading_table(engine: str) -> tuple[EngineVersion, dict[str, Flag]]:
    """The fullest table the catalogue has of an engine, with what Dynamo's wrappers add."""
    version = find_engine(engine, DEFAULT_VERSION[engine])
    return version, {**EXTRA.get(engine, {}), **version.flag_table()}


def parse_options(engine: str, words: Sequence[str]) -> Options:
    """Words after the launch command -> options."""
    version, table = reading_table(engine)
    spellings = _spellings(table)
    positional: list[str] = []
    given: list[Option] = []
    problems: list[str] = []
    notes: list[str] = []
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not re.match(r"^-{1,2}[A-Za-z]", word):
            named = positional or any(o.name in ("--model", "--model-path") for o in given)
            if unresolved(word) and named:
                problems.append(f"{word} is filled in at start: the flags it holds are not known")
            else:
                positional.append(word)
            continue
        if re.search(r"\s", word.partition("=")[0].strip()):
            problems.append(f"one argument holds several words: {word[:60]!r}; the engine gets it as one flag")
            words = [*words[:i], *word.split(), *words[i:]]
            continue
        written, equals, value = word.partition("=")
        found, how = _find(written, table, spellings)
        if found is None:
            level = re.fullmatch(r"-O(\d)", written)
            if engine == "vllm" and level:
                given.append(Option("--optimization-level", level[1], written))
                continue
            # Its value, if it has one, goes with it: the next word that is no flag.
            values: list[str] = []
            while not equals and i < len(words) and not words[i].startswith("-") and not values:
                values.append(words[i])
                i += 1
            near = near_misses(written, table, 1)
            hint = f" (near: {near[0]})" if near else ""
            problems.append(f"{written} is not a flag of {version.label}{hint}")
            continue
        if how:
            notes.append(f"{written} {how}")
        flag, negated, dotted = found
        if flag.kind == "switch" and not dotted:
            given.append(Option(flag.name, "false" if negated else (value if equals else "true"), written))
            continue
        values = [value] if equals else []
        many = flag.nargs in ("+", "*") or (isinstance(flag.nargs, int) and flag.nargs > 1)
        while not equals and i < len(words) and not re.match(r"^--?[A-Za-z]", words[i]) and (many or not values):
            values.append(words[i])
            i += 1
        if not values:
            problems.append(f"{written} has no value")
            continue
        text = " ".join(values)
        unknown = unresolved(text) if flag.kind != "json" and flag.name not in AT_START else ()
        if unknown:
            problems.append(f"{written} depends on {', '.join(unknown)}, which is not among the files")
        if flag.choices and not unknown and values[0] not in flag.choices and not dotted:
            problems.append(f"{written} {values[0]} is none of the values {version.label} knows")
        if dotted:
            text = json.dumps(_nested(dotted, values[0]))
        given.append(Option(flag.name, text, written))
    return Options(engine, version.version, tuple(positional), tuple(given), tuple(problems), tuple(notes))


def parse_config(engine: str, data: Mapping[str, Any]) -> list[str]:
    """A `--config` mapping as the words the engine makes of it."""
    words: list[str] = []
    for key, value in data.items():
        flag = f"--{key}"
        if isinstance(value, bool):
            words += [flag] if value else ([f"--no-{key}"] if engine == "vllm" else [])
        elif isinstance(value, dict):
            words += [f"{flag}={json.dumps(value)}"]
        elif isinstance(value, list):
            words += [flag, *(str(v) for v in value)]
        elif value is not None:
            words += [f"{flag}={value}"]
    return words


AT_START = {
    "--node-rank", "--master-addr", "--master-port", "--dist-init-addr", "--host", "--data-parallel-address",
    "--data-parallel-start-rank", "--data-parallel-rank", "--nnodes",
}  # fmt: skip
"""Flags that say where a process stands in its group: known at start by their nature, and no part of the plan."""
_Hit = tuple[Flag, bool, str]


def _spellings(table: Mapping[str, Flag]) -> dict[str, tuple[Flag, bool]]:
    found: dict[str, tuple[Flag, bool]] = {}
    for flag in table.values():
        for name in (flag.name, *flag.aliases):
            found[name] = (flag, False)
        for name in flag.negations:
            found[name] = (flag, True)
    return found


def _find(
    written: str, table: Mapping[str, Flag], spellings: Mapping[str, tuple[Flag, bool]]
) -> tuple[_Hit | None, str]:
    """((flag, negated, dotted path), remark)."""
    for name in (written, written.replace("_", "-")):
        if name in spellings:
            flag, negated = spellings[name]
            return (flag, negated, ""), ("is deprecated" if flag.deprecated else "")
    head, dot, rest = written.partition(".")
    head = head.replace("_", "-")
    if dot and head in spellings and spellings[head][0].kind == "json":
        return (spellings[head][0], False, rest.rstrip("+")), ""
    if written.startswith("--"):
        longer = sorted({spellings[n][0].name for n in spellings if n.startswith(written.replace("_", "-"))})
        if len(longer) == 1:
            flag = table[longer[0]]
            return (flag, False, ""), f"is an abbreviation of {flag.name}"
        if longer:
            return None, ""
    return None, ""


def _nested(path: str, value: str) -> dict[str, Any]:
    parsed: Any = value
    if re.fullmatch(r"-?\d+(\.\d+)?|true|false|null", value):
        parsed = json.loads(value)
    for key in reversed(path.split(".")):
        parsed = {key: parsed}
    assert isinstance(parsed, dict)
    return parsed


def engine_names() -> tuple[str, ...]:
    """Engines whose command lines are read."""
    return tuple(sorted({e for (e, _), v in engine_versions().items() if not v.router and not v.predicts_only}))
