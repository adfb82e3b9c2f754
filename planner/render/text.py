"""Making any text inert where it lands: YAML, comments, shell, Kubernetes' and Compose's variable expansion.

Names, model ids, labels and paths are data. They are either quoted so that no reader takes them for anything else, or
refused by name; nothing is silently changed except comments, which lose their line breaks.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from typing import Any

from planner.documents import yaml_scalar
from planner.render.files import refused

DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$(?!\n)")
QUALIFIED_NAME = re.compile(
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$(?!\n)"
)
"""Keys of labels and annotations, names of extended resources."""
LABEL_VALUE = re.compile(r"^$(?!\n)|^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$(?!\n)")
LONGEST_NAME = 45
LONGEST_VALUE = 512
# Service links of a Service called `vllm` set VLLM_PORT=tcp://... in every pod, which vLLM refuses to start with;
# `sglang` and `dyn` are the other prefixes that engines read.
RESERVED_NAMES = ("vllm", "sglang", "dyn", "nats", "etcd")


def plain(value: str, what: str) -> str:
    """`value` if it is one line of printable text that no command line takes for a flag; refused by name otherwise.

    >>> plain("meta-llama/Llama-3.1-8B-Instruct", "model")
    'meta-llama/Llama-3.1-8B-Instruct'
    """
    bad = next((c for c in value if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")), None)
    if bad is not None:
        raise refused("unsafe-text", f"{what} holds the control character U+{ord(bad):04X}", "write it on one line")
    if not value.strip() or value != value.strip():
        raise refused("unsafe-text", f"{what} is empty or begins or ends with a space", "remove the spaces")
    if value.startswith("-"):
        raise refused("unsafe-text", f"{what} {value[:40]!r} begins with a dash", "an engine would take it for a flag")
    if len(value) > LONGEST_VALUE:
        raise refused("unsafe-text", f"{what} is {len(value)} characters long", f"use at most {LONGEST_VALUE}")
    return value


def comment(value: str) -> str:
    """Text as it may stand behind `# `: one line, printable, no trailing space.

    >>> comment("96 sequences:\\n  - injected: true")
    '96 sequences: - injected: true'
    """
    kept = "".join(c if unicodedata.category(c)[0] not in "CZ" or c == " " else " " for c in value)
    return " ".join(kept.split())


def dns_name(value: str, what: str) -> str:
    """`value` if it is a DNS label of at most 45 characters that begins with a letter."""
    if not DNS_LABEL.match(value) or len(value) > LONGEST_NAME:
        raise refused(
            "bad-name",
            f"{what} {value[:60]!r} is not a name that Kubernetes takes everywhere",
            f"use at most {LONGEST_NAME} lower-case letters, digits and dashes, a letter first",
        )
    return value


def object_name(service: str) -> str:
    """The name of a service's own objects; a reserved one gets a suffix."""
    return f"{service}-api" if service in RESERVED_NAMES else service


def kubernetes_escape(value: str) -> str:
    """Text for a container's command, args or env value: `$(NAME)` would be expanded, `$$` is one dollar.

    >>> kubernetes_escape("a$(HOME)b$c")
    'a$$(HOME)b$$c'
    """
    return value.replace("$", "$$")


def compose_escape(value: str) -> str:
    """Text for a Compose file: `$NAME` and `${NAME}` would be expanded, `$$` is one dollar."""
    return value.replace("$", "$$")


def shell(value: str) -> str:
    """One word of a POSIX shell."""
    return shlex.quote(value)


def to_yaml(value: Any) -> str:
    """One value behind `key: `, quoted wherever two YAML readers could disagree."""
    return yaml_scalar(value)


def annotation_key(decision: str) -> str:
    """`max_num_seqs` -> the key under which its reason stands on a workload."""
    return "llm-deployment-planner/why-" + re.sub(r"[^a-z0-9]+", "-", decision.lower()).strip("-")[:40]
