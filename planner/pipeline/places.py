"""Where things were said: in which file and line, or in which word of the command line.

Keys are (service, what, ...): `("chat", "model")`, `("chat", "slo", "itl.p99")`, `("chat", "fixed", "tp")`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from planner.documents import Document, load_yaml
from planner.errors import UserError, Where
from planner.intent.document import Intent
from planner.intent.resolve import Words
from planner.intent.slo import parse_slo_key

Places = Mapping[tuple[str, ...], Where]
_PLAIN = ("model", "engine", "survive", "pools", "accuracy_floor", "max_context")


def places(intent: Intent, intent_files: Sequence[Path], words: Words) -> Places:
    """Every place that an answer may want to point at; the command line wins over the file."""
    found: dict[tuple[str, ...], Where] = {}
    for path in intent_files:
        document = load_yaml(path, what="intent")
        for i, service in enumerate(document.data.get("services", [])):
            if isinstance(service, dict):
                found |= _service(document, i, service)
    names = [s.name for s in intent.services if words.service in (None, s.name)]
    for key in ("model", "engine", "survive", "pools"):
        said = getattr(words, key)
        if said is not None:
            found |= {(n, key): _word(f"--{key}", str(said)) for n in names}
    for text in words.slo:
        key = ".".join(parse_slo_key(text.partition("=")[0]))
        found |= {(n, "slo", key): _word("--slo", text) for n in names}
    if words.tp is not None:
        found |= {(n, "fixed", "tp"): _word("--tp", str(words.tp)) for n in names}
    if words.gpu is not None:
        found |= {(n, "fixed", "gpu"): _word("--gpu", words.gpu) for n in names}
    if words.max_context is not None:
        found |= {(n, "max_context"): _word("--max-context", str(words.max_context)) for n in names}
    if words.rate is not None:
        found |= {(n, "rate"): _word("--rate", words.rate) for n in names}
    return found


def _word(option: str, text: str) -> Where:
    return Where("command line", 1, len(option) + 2, f"{option} {text}"[:200], max(1, min(len(text), 100)))


def _service(document: Document, i: int, service: dict[str, object]) -> dict[tuple[str, ...], Where]:
    name = str(service.get("name"))
    at: tuple[str | int, ...] = ("services", i)
    found: dict[tuple[str, ...], Where] = {}
    found |= {
        (name, k): document.where((*at, k))
        for k in ("model", "engine", "survive", "pools", "accuracy_floor", "max_context")
    }
    found |= _slos(document, (*at, "slo"), service.get("slo"), name, "slo")
    fixed = service.get("fixed")
    if isinstance(fixed, dict):
        found |= {(name, "fixed", str(k)): document.where((*at, "fixed", k)) for k in fixed}
    traffic = service.get("traffic")
    for j, cls in enumerate(traffic if isinstance(traffic, list) else [traffic]):
        if not isinstance(cls, dict):
            continue
        here = (*at, "traffic", j) if isinstance(traffic, list) else (*at, "traffic")
        whose = str(cls.get("name", "default"))
        found[name, "rate", whose] = document.where((*here, "rate"))
        found.setdefault((name, "rate"), document.where((*here, "rate")))
        found |= _slos(document, (*here, "slo"), cls.get("slo"), name, f"slo of {whose}")
    return found


def _slos(
    document: Document, at: tuple[str | int, ...], slos: object, name: str, what: str
) -> dict[tuple[str, ...], Where]:
    if not isinstance(slos, dict):
        return {}
    return {(name, what, ".".join(parse_slo_key(str(k)))): document.where((*at, str(k))) for k in slos}


def placed(error: UserError, said: Places) -> UserError:
    """The error with the place of what it is about, where that is known."""
    if error.where is not None or len(error.about) != 3:
        return error
    code, service, detail = error.about
    keys: list[tuple[str, ...]] = []
    if code.startswith("slo-"):
        whose, _, key = detail.rpartition(" ")
        keys = [(service, f"slo of {whose}", key), (service, "slo", key)]
    elif code == "fixed-choices":
        keys = [(service, "fixed", detail)]
    elif code == "traffic-served":
        keys = [(service, "rate")]
    elif code in ("survive", "accuracy-floor", "kv-transfer"):
        keys = [(service, {"kv-transfer": "pools", "accuracy-floor": "accuracy_floor"}.get(code, code))]
    where = next((said[k] for k in keys if k in said), None)
    return error if where is None else error.at(where)
