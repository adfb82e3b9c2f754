"""The engine's own files: a launch script and a `--config` file per pool. The command line is the source of truth."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from planner.render import vllm
from planner.render.args import Arg, Var, argv, posix
from planner.render.artefact import Artefact
from planner.render.facts import PoolFacts
from planner.render.flags import check_config
from planner.render.pod import engine_args, engine_env
from planner.render.source import CACHE
from planner.render.text import shell


@dataclass(frozen=True, slots=True)
class ConfigLine:
    """One key of a `--config` file."""

    key: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Reason:
    """A decision beside a launch command, which has no room for comments."""

    why: str


def launch_artefacts(f: PoolFacts) -> list[Artefact]:
    """`<pool>.sh` and `<pool>.config.yaml` under the engine's folder."""
    folder = PurePosixPath(f.service.name) / f.engine.engine
    args = engine_args(f)
    return [
        Artefact(
            folder / f"{f.name}.sh", f"{f.engine.engine}/launch.sh.j2", {"launch": _script(f, args)}, executable=True
        ),
        Artefact(folder / f"{f.name}.config.yaml", f"{f.engine.engine}/config.yaml.j2", {"launch": _config(f, args)}),
    ]


def _script(f: PoolFacts, args: tuple[Arg, ...]) -> dict[str, Any]:
    words = [[shell(w) for w in f.engine.command], *(a.words(posix) for a in args)]
    required, tail = [], ['"$@"']
    if f.multi_node:
        required += [
            ': "${NODE_RANK:?set NODE_RANK to this node\'s index, from 0}"',
            ': "${LEADER_ADDRESS:?set LEADER_ADDRESS to the address of node 0}"',
        ]
        if f.engine.engine == "vllm":
            required.append('if [ "$NODE_RANK" -gt 0 ]; then set -- "$@" --headless; fi')
            step = vllm.start_rank_step(f)
            if step is not None:
                tail.insert(0, f'{vllm.START_RANK}="$((NODE_RANK * {step}))"')
    exports = []
    for e in engine_env(f):
        if e.field is not None:
            needed = ': "${HOST_ADDRESS:?set HOST_ADDRESS to this host\'s address as the other hosts see it}"'
            if needed not in required:
                required.append(needed)
            exports.append(f'export {e.name}="${{HOST_ADDRESS}}"')
        elif e.value is not None and not e.value.startswith(CACHE):
            exports.append(f"export {e.name}={shell(e.value)}")
    notes = [
        f"{f.service.model.id} on {f.pool.gpus_per_replica} x {f.pool.gpu}, {f.engine.label}: "
        f"one replica of {f.pool.replicas}"
    ]
    if f.multi_node:
        notes.append(f"run it on each of the {f.pods} nodes of a replica, {f.gpus_per_pod} GPUs each")
    text = " \\\n  ".join(" ".join(w) for w in [*words, *([w] for w in tail)])
    return {
        "notes": notes,
        "required": required,
        "exports": exports,
        "lines": [Reason(f"{' '.join(argv((a,)))[:80]}: {a.why}") for a in args if a.why],
        "command": f"exec {text}",
    }


def _config(f: PoolFacts, args: tuple[Arg, ...]) -> dict[str, Any]:
    lines = []
    for a in args:
        if a.parts is not None and any(isinstance(p, Var) for p in a.parts):
            continue  # known at start only: stays on the command line
        key = a.flag.removeprefix("--") or "model"
        if key in ("nnodes",):
            continue
        if a.values:
            value: Any = [_typed(f, a.flag, v) for v in a.values]
        elif a.parts is None:
            value = True
        else:
            value = _typed(f, a.flag, "".join(p for p in a.parts if isinstance(p, str)))
        lines.append(ConfigLine(key, value, a.why))
    check_config(f.engine, {line.key: line.value for line in lines})
    command = " ".join(f.engine.command)
    use = f"use: {command} --config {f.name}.config.yaml (two words; --config=FILE is ignored)"
    if f.multi_node:
        use += "; a node's rank and its leader's address stay on the command line, see the script"
    return {"use": use, "lines": lines}


def _typed(f: PoolFacts, flag: str, text: str) -> Any:
    """The value as YAML has it: numbers as numbers, JSON as a mapping."""
    known = f.engine.flag_table().get(flag)
    kind = known.kind if known is not None else "str"
    if kind in ("int", "human_int", "human_int_or_auto") and text.lstrip("-").isdigit():
        return int(text)
    if kind == "float":
        return float(text)
    if kind == "json":
        return json.loads(text)
    return text
