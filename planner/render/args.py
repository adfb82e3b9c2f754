"""Arguments and environment of a launch, independent of the file they end up in.

A value may hold a `Var`: something that only the running replica knows (its rank, its leader's address). Each target
writes a variable its own way: Kubernetes `$(NAME)`, a shell `$NAME`; the flag check sees an example value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from planner.render.text import kubernetes_escape, shell


@dataclass(frozen=True, slots=True)
class Var:
    """A value known at start only: its name in a shell, in Kubernetes, and an example for checks."""

    shell: str
    kubernetes: str
    example: str


RANK = Var("NODE_RANK", "LWS_WORKER_INDEX", "0")
NAMESPACE = Var("POD_NAMESPACE", "POD_NAMESPACE", "default")
LEADER = Var("LEADER_ADDRESS", "LWS_LEADER_ADDRESS", "127.0.0.1")
PARTS = tuple["str | Var", ...]


@dataclass(frozen=True, slots=True)
class Arg:
    """`--flag=value`, `--flag`, `--flag v1 v2` (values), or a bare word (no flag); with the reason for its value."""

    flag: str
    parts: tuple[str | Var, ...] | None = None
    values: tuple[str, ...] = ()
    why: str = ""

    def words(self, write: Callable[[tuple[str | Var, ...]], str]) -> list[str]:
        """The words of the command line, each written by the target's own rule."""
        if self.values:
            return [write((self.flag,)), *(write((v,)) for v in self.values)]
        if self.parts is None:
            return [write((self.flag,))]
        return [write(self.parts)] if not self.flag else [write((f"{self.flag}=", *self.parts))]


def arg(flag: str, value: object = None, why: str = "") -> Arg:
    """`arg("--max-num-seqs", 96, "...")`; a dict becomes compact JSON with sorted keys; None a switch."""
    if value is None:
        return Arg(flag, None, (), why)
    if isinstance(value, dict):
        return Arg(flag, (json.dumps(value, sort_keys=True, separators=(",", ":")),), (), why)
    if isinstance(value, Var):
        return Arg(flag, (value,), (), why)
    return Arg(flag, (number(value),), (), why)


def number(value: object) -> str:
    """A value as an engine reads it: floats without exponent, no trailing zeros.

    >>> number(0.9), number(8192), number(0.00002)
    ('0.9', '8192', '0.00002')
    """
    if isinstance(value, float):
        text = f"{value:.10f}".rstrip("0")
        return text + "0" if text.endswith(".") else text
    return str(value)


def example(parts: Iterable[str | Var]) -> str:
    """What the engine would see on the first node."""
    return "".join(p.example if isinstance(p, Var) else p for p in parts)


def kubernetes(parts: Iterable[str | Var]) -> str:
    """For a container's args: text escaped, variables as `$(NAME)`."""
    return "".join(f"$({p.kubernetes})" if isinstance(p, Var) else kubernetes_escape(p) for p in parts)


def posix(parts: Iterable[str | Var]) -> str:
    """One word of a POSIX shell; variables in double quotes."""
    return "".join(f'"${{{p.shell}}}"' if isinstance(p, Var) else shell(p) for p in parts if p != "")


def argv(args: Iterable[Arg]) -> list[str]:
    """The arguments as the engine would see them on the first node."""
    return [w for a in args for w in a.words(example)]


@dataclass(frozen=True, slots=True)
class Env:
    """One environment variable: a value, a field of the pod, or a key of a secret (its name, never its value)."""

    name: str
    value: str | None = None
    field: str | None = None
    secret: str | None = None
    secret_key: str | None = None
    why: str = ""
