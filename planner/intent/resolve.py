"""From a file and words on the command line to one intent. A command-line value wins over the file's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.documents import Document, load_yaml, read_as, shown_path
from planner.errors import UserError, Where, did_you_mean
from planner.intent.document import Arrivals, Intent, TrafficClass
from planner.intent.fleet import Fleet
from planner.intent.platform import Platform
from planner.intent.slo import parse_slo
from planner.intent.traces import busiest_minute, summarise_file

DEFAULT_MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEFAULT_INPUT_TOKENS = 3500
DEFAULT_OUTPUT_TOKENS = 500


@dataclass(frozen=True, slots=True)
class Words:
    """What was said on the command line about one service; None where nothing was."""

    service: str | None = None
    model: str | None = None
    engine: str | None = None
    target: str | None = None
    slo: tuple[str, ...] = ()
    rate: str | None = None
    input: str | None = None
    output: str | None = None
    trace: str | None = None
    prefix_cache: str | None = None
    arrivals_cv: str | None = None
    precision: tuple[str, ...] = ()
    kv_dtype: str | None = None
    tp: int | None = None
    gpu: str | None = None
    survive: str | None = None
    pools: str | None = None
    accuracy_floor: str | None = None
    max_context: int | None = None
    objective: str | None = None

    def any_for_service(self) -> bool:
        """Whether anything was said that changes a service."""
        return any(
            getattr(self, f.name) not in (None, ()) for f in fields(self) if f.name not in ("service", "objective")
        )


def service_name(model: str) -> str:
    """A service name from a model's: a DNS label of at most 30 characters.

    >>> service_name("meta-llama/Llama-3.1-8B-Instruct")
    'llama-3-1-8b-instruct'
    """
    slug = re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rsplit("/", 1)[-1].lower()).strip("-")
    slug = slug if slug[:1].isalpha() else f"m-{slug}"
    return slug[:30].rstrip("-") or "model"


@dataclass(frozen=True, slots=True)
class Loaded:
    """An intent and what else was learnt while it was read."""

    intent: Intent
    assumed: tuple[str, ...] = ()
    """What nobody said, one line each."""
    traces: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    """By service and class: the file that was read."""


def load_intent(path: Path | None, words: Words) -> Loaded:
    """The intent asked for."""
    assumed: list[str] = []
    if path is not None:
        document = load_yaml(path, what="intent")
        data = document.data
        if not isinstance(data, dict):
            read_as(Intent, document, what="an intent")
    else:
        model = words.model or DEFAULT_MODEL
        data = {"services": [{"name": service_name(model), "model": model, "traffic": [{}]}]}
        document = Document(data, "command line")
        cls = data["services"][0]["traffic"][0]
        if words.trace is None:
            cls["input"] = DEFAULT_INPUT_TOKENS
            cls["output"] = DEFAULT_OUTPUT_TOKENS
            told = [
                w
                for w, said in (
                    (f"model {model}", words.model),
                    (f"prompts of {DEFAULT_INPUT_TOKENS:,} tokens", words.input),
                    (f"answers of {DEFAULT_OUTPUT_TOKENS:,} tokens", words.output),
                )
                if said is None
            ]
            if words.prefix_cache is None:
                told.append("no prefix-cache hits")
            if not words.precision:
                told.append("the checkpoint's own precision")
            if told:
                assumed.append(", ".join(told))
    data = _apply(data, words, document)
    places = {**document.places, **_places(data, words)}
    intent = read_as(Intent, Document(data, document.source, places, document.keys), what="an intent")
    folder = path.parent if path is not None and words.trace is None else Path()
    return _with_traces(Loaded(intent, tuple(assumed)), folder, words)


def load_intents(paths: Sequence[Path], words: Words) -> Loaded:
    """Several intent files as one: their services side by side on the fleet."""
    if len(paths) <= 1:
        return load_intent(paths[0] if paths else None, words)
    if words.any_for_service() and words.service is None:
        raise UserError(
            "which-service",
            "options that change a service need --service when there are several intents",
            Where("command line"),
            (),
            ("add --service NAME",),
        )
    nothing = Words(objective=words.objective)
    found: list[Intent] = []
    traces: dict[tuple[str, str], Path] = {}
    assumed: list[str] = []
    named = 0
    for path in paths:
        services = load_yaml(path, what="intent").data
        names = (
            [s.get("name") for s in services.get("services", []) if isinstance(s, dict)]
            if isinstance(services, dict)
            else []
        )
        here = words.service is not None and words.service in names
        named += here
        one = load_intent(path, words if here else nothing)
        found.append(one.intent)
        traces |= one.traces
        assumed += one.assumed
    if words.service is not None and not named:
        raise UserError(
            "unknown-service",
            f"no service {words.service!r} in {len(paths)} intents",
            _said("--service", words.service),
            (),
            did_you_mean(words.service, [s.name for i in found for s in i.services]),
        )
    first = found[0]
    for path, other in zip(paths, found, strict=True):
        if (other.objective, other.change_cost) != (first.objective, first.change_cost):
            raise UserError(
                "two-objectives",
                f"{shown_path(path)} asks for another objective or change cost than {shown_path(paths[0])}",
                None,
                (),
                ("one fleet has one objective: make them agree, or say --objective",),
            )
    try:
        merged = Intent.model_validate({**first.model_dump(), "services": tuple(s for i in found for s in i.services)})
    except ValidationError as e:
        cause = (e.errors()[0].get("ctx") or {}).get("error")
        if isinstance(cause, UserError):
            raise cause from e
        raise
    return Loaded(merged, tuple(assumed), traces)


def _with_traces(loaded: Loaded, folder: Path, words: Words) -> Loaded:
    """The intent with each trace read once and summarised; trace paths are relative to the intent file."""
    services = []
    paths: dict[tuple[str, str], Path] = {}
    assumed = list(loaded.assumed)
    for service in loaded.intent.services:
        classes = []
        for cls in service.traffic:
            if cls.trace is None:
                classes.append(cls)
                continue
            path = folder / cls.trace
            paths[service.name, cls.name] = path
            summary = summarise_file(path)
            shown = Path(cls.trace).name if Path(cls.trace).is_absolute() else cls.trace
            read = cls.model_copy(update={"trace": shown, "trace_summary": summary})
            # A trace on the command line and nothing said of rate or arrivals: serve just that traffic.
            asked = words.trace is not None and "arrivals" not in cls.model_fields_set and cls.rate is None
            if asked and loaded.intent.objective != "throughput":
                if busiest_minute(summary) is not None:
                    read = read.model_copy(update={"arrivals": Arrivals(process="replay")})
                    assumed.append(f"arrivals as in {shown}, at its own pace")
                else:
                    assumed.append(f"{shown} has no arrival times, or all at one instant: only its lengths are used")
            classes.append(_replayed(read, path))
        services.append(service.model_copy(update={"traffic": tuple(classes)}))
    return Loaded(loaded.intent.model_copy(update={"services": tuple(services)}), tuple(assumed), paths)


def _replayed(cls: TrafficClass, path: Path) -> TrafficClass:
    """A class that replays its trace has a rate: what it says, else the trace's busiest minute."""
    if cls.arrivals.process != "replay":
        return cls
    busiest = busiest_minute(cls.trace_summary)
    if busiest is None:
        raise UserError(
            "trace",
            f"class {cls.name!r} replays {shown_path(path)}, which has no arrival times, or all at one instant",
            Where(shown_path(path)),
            (),
            ("give it a column timestamp_s that rises, or give a rate and leave arrivals out",),
        )
    if cls.rate is not None:
        return cls
    return cls.model_copy(update={"rate": float(f"{busiest:.6g}"), "rate_source": f"busiest minute of {cls.trace}"})


def _apply(data: dict[str, Any], words: Words, document: Document) -> dict[str, Any]:
    """The document's data with the command line's words laid over it."""
    data = dict(data)
    if words.objective is not None:
        data["objective"] = words.objective
    services = data.get("services")
    if not words.any_for_service() or not isinstance(services, list) or not services:
        return data
    names = [str(s.get("name")) for s in services if isinstance(s, dict)]
    if words.service is not None and words.service not in names:
        raise UserError(
            "unknown-service",
            f"no service {words.service!r} in {document.source}",
            Where("command line", 1, 1, f"--service {words.service}", 9),
            (),
            did_you_mean(words.service, names),
        )
    if words.service is None and len(services) > 1:
        raise UserError(
            "which-service",
            "options that change a service need --service when the intent has several",
            Where("command line"),
            (),
            (f"add --service {' or --service '.join(names[:4])}",),
        )
    chosen = words.service or names[0]
    data["services"] = [_one(s, words) if isinstance(s, dict) and str(s.get("name")) == chosen else s for s in services]
    return data


def _places(data: dict[str, Any], words: Words) -> dict[tuple[str | int, ...], Where]:
    """Where the command line's own words stand, so that an error shows them and not the file they replaced."""
    found: dict[tuple[str | int, ...], Where] = {}
    if words.objective is not None:
        found[("objective",)] = _said("--objective", words.objective)
    services = data.get("services")
    if not isinstance(services, list):
        return found
    for i, s in enumerate(services):
        if not isinstance(s, dict) or (words.service is not None and s.get("name") != words.service):
            continue
        for key in ("model", "engine", "target", "survive", "pools", "max_context"):
            said = getattr(words, key)
            if said is not None:
                found[("services", i, key)] = _said(f"--{key.replace('_', '-')}", str(said))
        for key, option, said in (
            ("rate", "--rate", words.rate),
            ("input", "--input", words.input),
            ("output", "--output", words.output),
            ("trace", "--trace", words.trace),
            ("arrivals", "--arrivals-cv", words.arrivals_cv),
        ):
            if said is not None:
                found[("services", i, "traffic", 0, key)] = _said(option, said)
        for j, said in enumerate(words.precision):
            found[("services", i, "precisions", j)] = _said("--precision", said)
        if words.tp is not None:
            found[("services", i, "fixed", "tp")] = _said("--tp", str(words.tp))
        if words.kv_dtype is not None:
            found[("services", i, "kv_dtypes", 0)] = _said("--kv-dtype", words.kv_dtype)
    return found


def _one(service: dict[str, Any], words: Words) -> dict[str, Any]:
    s = dict(service)
    for key in ("model", "engine", "target", "survive", "pools", "max_context"):
        said = getattr(words, key)
        if said is not None:
            s[key] = said
    if words.precision:
        s["precisions"] = list(words.precision)
    if words.kv_dtype is not None:
        s["kv_dtypes"] = [words.kv_dtype]
    if words.accuracy_floor is not None:
        s["accuracy_floor"] = _share(words.accuracy_floor, "--accuracy-floor")
    fixed = {k: v for k, v in (("tp", words.tp), ("gpu", words.gpu)) if v is not None}
    if fixed:
        s["fixed"] = {**(s.get("fixed") or {}), **fixed}
    if words.slo:
        said_slos = _slo_words(words.slo)
        classes = s.get("traffic")
        s["slo"] = {**(s.get("slo") or {}), **said_slos}
        # A class's own promise would shadow what the command line says for the service.
        if isinstance(classes, list):
            s["traffic"] = [
                {**c, "slo": {**c["slo"], **said_slos}} if isinstance(c, dict) and isinstance(c.get("slo"), dict) else c
                for c in classes
            ]
    traffic: dict[str, Any] = {
        k: v
        for k, v in (
            ("rate", words.rate),
            ("input", _tokens(words.input, "--input")),
            ("output", _tokens(words.output, "--output")),
            ("trace", words.trace),
        )
        if v is not None
    }
    if words.prefix_cache is not None:
        traffic["prefix_cache"] = _share(words.prefix_cache, "--prefix-cache")
    if words.arrivals_cv is not None:
        traffic["arrivals"] = {"cv": _number(words.arrivals_cv, "--arrivals-cv")}
    if traffic:
        classes = s.get("traffic")
        classes = [classes] if isinstance(classes, dict) else classes
        if not isinstance(classes, list) or not classes:
            classes = [{}]
        if len(classes) > 1:
            raise UserError(
                "which-class",
                f"service {s.get('name')!r} has several traffic classes: the command line cannot say which",
                Where("command line"),
                (),
                ("change the rate and lengths in the intent file",),
            )
        first = dict(classes[0])
        if words.trace is not None:
            first.pop("input", None)
            first.pop("output", None)
        if words.input is not None or words.output is not None:
            first.pop("trace", None)
        s["traffic"] = [{**first, **traffic}]
    return s


def _slo_words(said: Sequence[str]) -> dict[str, str]:
    """`--slo` words as the document writes them, each checked so that an error can show the word itself."""
    found: dict[str, str] = {}
    for text in said:
        where = Where("command line", 1, 7, f"--slo {text}"[:200], max(1, len(text)))
        try:
            slo = parse_slo(text)
        except UserError as e:
            raise e.at(where) from e
        if slo.key in found:
            raise UserError(
                "duplicate-slo",
                f"{slo.key} is given twice",
                where,
                ("a metric without percentile means p99",),
                ("keep one of them",),
            )
        found[slo.key] = text.partition("=")[2].strip()
    return found


def _tokens(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    clean = text.replace(",", "").replace("_", "")
    if not clean.isdigit() or int(clean) == 0:
        raise UserError(
            "lengths",
            f"{text!r} is not a number of tokens",
            _said(option, text),
            (),
            ("write a whole number of at least 1; distributions go into the intent file",),
        )
    return int(clean)


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError as e:
        raise UserError("not-a-number", f"{text!r} is not a number", _said(option, text)) from e


def _share(text: str, option: str) -> float:
    value = _number(text[:-1], option) / 100 if text.endswith("%") else _number(text, option)
    if not 0 <= value <= 1:
        raise UserError("not-a-share", f"{text!r} is not a share", _said(option, text), (), ("write 0.4 or 40%",))
    return value


def _said(option: str, text: str) -> Where:
    return Where("command line", 1, len(option) + 2, f"{option} {text}"[:200], max(1, min(len(text), 100)))


def load_fleet(path: Path) -> Fleet:
    """A fleet file."""
    return read_as(Fleet, load_yaml(path, what="fleet"), what="a fleet")


def load_platform(path: Path | None) -> Platform:
    """A platform file, or the safe defaults."""
    return Platform() if path is None else read_as(Platform, load_yaml(path, what="platform"), what="a platform")
