"""Which pods a change restarts: pod templates compared, file by file. Comments and file order never count.

A controller restarts pods when, and only when, their template changes; more or fewer replicas start or stop pods
and leave the others alone. A changed ConfigMap restarts nothing by itself, which is worth a warning.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from planner.documents import dump_yaml
from planner.plan.manifests import Manifest, Workload, read_manifests, workloads

Tree = Mapping[str, str]
"""Path -> text of a rendered tree."""


@dataclass(frozen=True, slots=True)
class Restart:
    """One workload whose pods a change touches."""

    workload: str
    file: str
    action: str
    """`restart`, `start` (new), `stop` (gone), `scale`."""
    pods: int | None
    """How many pods restart, start or stop; None where an autoscaler owns the number."""
    because: tuple[str, ...]
    """What changed in the template, one `path: before -> after` each."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file of the tree."""

    path: str
    status: str
    """`changed`, `comments only`, `added`, `removed`."""
    added: int
    removed: int


def restarts(before: Tree, after: Tree) -> tuple[Restart, ...]:
    """What happens to pods when the files `before` become the files `after`."""
    old, new = _index(before), _index(after)
    found = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if a is None and b is not None:
            found.append(Restart(key, b.manifest.source, "start", _pods(b), ()))
        elif b is None and a is not None:
            found.append(Restart(key, a.manifest.source, "stop", _pods(a), ()))
        elif a is not None and b is not None:
            because = _template_changes(a, b)
            if because:
                # What runs now is what restarts; where replicas change as well, the smaller number does.
                counts = [n for n in (_pods(a), _pods(b)) if n is not None]
                found.append(Restart(key, b.manifest.source, "restart", min(counts) if counts else None, because))
            pods_a, pods_b = _pods(a), _pods(b)
            if pods_a is not None and pods_b is not None and pods_a != pods_b:
                text = f"pods: {pods_a} -> {pods_b}"
                found.append(Restart(key, b.manifest.source, "scale", abs(pods_b - pods_a), (text,)))
    return tuple(found)


def config_changes(before: Tree, after: Tree) -> tuple[str, ...]:
    """ConfigMaps and Secrets whose data changes: running pods keep the old values until they restart."""

    def data_of(tree: Tree) -> dict[str, str]:
        found: dict[str, str] = {}
        for m in _manifests(tree):
            if m.kind in ("ConfigMap", "Secret") and isinstance(m.data, dict):
                parts = {k: m.data.get(k) for k in ("data", "stringData", "binaryData")}
                found[f"{m.kind}/{m.name}"] = json.dumps(parts, sort_keys=True, default=str)
        return found

    old, new = data_of(before), data_of(after)
    return tuple(sorted(k for k in old.keys() & new.keys() if old[k] != new[k]))


def files(before: Tree, after: Tree) -> tuple[FileChange, ...]:
    """Files that differ, with lines added and removed."""
    found = []
    for path in sorted(before.keys() | after.keys()):
        a, b = before.get(path), after.get(path)
        if a == b:
            continue
        lines_a, lines_b = (a or "").splitlines(), (b or "").splitlines()
        delta = [x for x in list(difflib.unified_diff(lines_a, lines_b, n=0))[2:] if x[0] in "+-"]
        added = sum(x[0] == "+" for x in delta)
        status = "added" if a is None else "removed" if b is None else "changed"
        if status == "changed" and _without_comments(a or "", path) == _without_comments(b or "", path):
            status = "comments only"
        found.append(FileChange(path, status, added, len(delta) - added))
    return tuple(found)


def _without_comments(text: str, path: str) -> object:
    """What a file says to a program; the text itself where that is not known."""
    if path.endswith((".yaml", ".yml")):
        return [m.data for m in read_manifests(text, path)]
    if path.endswith((".sh", ".toml", ".cfg", ".ini")):
        return [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return text


def _manifests(tree: Tree) -> list[Manifest]:
    return [
        m
        for path in sorted(tree)
        if path.endswith((".yaml", ".yml")) and not path.endswith("plan.yaml")
        for m in read_manifests(tree[path], path)
    ]


def _index(tree: Tree) -> dict[str, Workload]:
    return {w.key: w for m in _manifests(tree) for w in workloads(m)}


def _pods(w: Workload) -> int | None:
    return None if w.replicas is None else w.replicas * w.pods_per_replica


def _template_changes(a: Workload, b: Workload) -> tuple[str, ...]:
    found: list[str] = []
    old, new = {t.role: t.data for t in a.templates}, {t.role: t.data for t in b.templates}
    for role in sorted(old.keys() | new.keys()):
        _compare(old.get(role), new.get(role), role, found)
    if a.pods_per_replica != b.pods_per_replica:
        found.append(f"pods per replica: {a.pods_per_replica} -> {b.pods_per_replica}")
    if a.kind != "Compose" and a.parallelism != b.parallelism:
        _compare(dict(a.parallelism), dict(b.parallelism), "parallelism", found)
    return tuple(found)


def _compare(a: object, b: object, path: str, found: list[str]) -> None:
    if a == b:
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(k for k in b if k not in a)]:
            _compare(a.get(key), b.get(key), f"{path}.{key}" if path else str(key), found)
    elif isinstance(a, list) and isinstance(b, list) and all(isinstance(x, str) for x in [*a, *b]):
        found += _compare_args(a, b, path)
    elif isinstance(a, list) and isinstance(b, list):
        named_a, named_b = _named(a), _named(b)
        if named_a is not None and named_b is not None:
            _compare(named_a, named_b, path, found)
        elif len(a) == len(b):
            for i, (x, y) in enumerate(zip(a, b, strict=True)):
                _compare(x, y, f"{path}[{i}]", found)
        else:
            found.append(f"{path}: {len(a)} -> {len(b)} items")
    else:
        found.append(f"{path}: {_short(a)} -> {_short(b)}")


def _named(items: list[object]) -> dict[str, object] | None:
    names = [str(i["name"]) for i in items if isinstance(i, dict) and "name" in i]
    if len(names) != len(items) or len(set(names)) != len(names):
        return None
    return dict(zip(names, items, strict=True))


def _compare_args(a: list[str], b: list[str], path: str) -> list[str]:
    """Arguments by flag, not by position: `--tensor-parallel-size: 4 -> 2`."""

    def split(args: list[str]) -> dict[str, str]:
        table: dict[str, str] = {}
        i = 0
        while i < len(args):
            flag, equals, value = args[i].partition("=")
            if flag.startswith("-") and not equals and i + 1 < len(args) and not args[i + 1].startswith("--"):
                value = args[i + 1]
                i += 1
            elif not flag.startswith("-"):
                flag, value = f"word {i + 1}", args[i]
            table[flag] = value
            i += 1
        return table

    old, new = split(a), split(b)
    changes = [
        f"{flag}: {_short(old.get(flag))} -> {_short(new.get(flag))}"
        for flag in [*old, *(k for k in new if k not in old)]
        if old.get(flag) != new.get(flag)
    ]
    return changes or [f"{path}: order of the same arguments"]


def _short(value: object) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    text = text if value != "" else "set"
    return text if len(text) <= 60 else text[:57] + "..."


def template_text(tree: Tree) -> str:
    """All pod templates of a tree as one canonical text: equal texts restart nothing."""
    return dump_yaml({k: [dict(t.data) for t in w.templates] for k, w in sorted(_index(tree).items())})
