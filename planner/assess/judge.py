"""Does it start, does it fit, what will its users see, and which flag breaks what.

    assess(found, intent=..., fleet=..., gpu=...) -> Assessment

Each deployment is held against model facts, the engine's own memory arithmetic and, where an intent says which
traffic and promises it has, the closed-form load model. Closed form only: `plan simulate` is the check of a choice,
this is a reading of what somebody else wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.assess.found import Found
from planner.assess.judged import Finding, Judged
from planner.assess.load import Run, loaded
from planner.assess.resolve import Resolved, resolve
from planner.assess.view import AssessmentView
from planner.candidates.replica import hits_depend_on_replicas, memory_of, spec_of
from planner.errors import UserError
from planner.intent.document import Intent, Service
from planner.intent.fleet import Fleet
from planner.perf.load import LoadModel
from planner.perf.memory import Memory
from planner.perf.rules import check_shape
from planner.perf.traffic import class_load
from planner.units import show_bytes


@dataclass(frozen=True, slots=True)
class Assessment(AssessmentView):
    """All deployments that were read."""

    judged: tuple[Judged, ...]
    idle_services: tuple[str, ...] = ()
    """Services of the intent that nothing read here serves."""

    @property
    def holds(self) -> bool:
        return all(j.holds for j in self.judged) and not self.idle_services


def assess(
    found: Sequence[Found], *, intent: Intent | None = None, fleet: Fleet | None = None, gpu: str | None = None
) -> Assessment:
    """Judge every deployment. `gpu` wins over node selectors; a fleet gives its figures and network."""
    served = {i: service_of(f, intent) for i, f in enumerate(found)}
    judged: dict[int, Judged] = {}
    runs: dict[int, Run] = {}
    for i, f in enumerate(found):
        service = served[i]
        judged[i], run = _static(f, service, fleet, gpu)
        if run is not None:
            runs[i] = run
    for service in {s.name: s for s in served.values() if s is not None}.values():
        mine = [i for i in runs if served[i] is service]
        for i, changed in loaded(service, {i: runs[i] for i in mine}, judged).items():
            judged[i] = changed
    names = {s.name for s in served.values() if s is not None}
    idle = tuple(s.name for s in intent.services if s.name not in names) if intent is not None else ()
    return Assessment(tuple(judged[i] for i in range(len(found))), idle)


def service_of(found: Found, intent: Intent | None) -> Service | None:
    """The intent's service that a deployment serves: by name, by model, or the only one there is."""
    if intent is None or found.engine is None:
        return None
    for s in intent.services:
        if found.name == s.name or found.name.startswith(f"{s.name}-"):
            return s
    base = (found.model or "").rsplit("/", 1)[-1].lower()
    same = [s for s in intent.services if base and s.model.rsplit("/", 1)[-1].lower() in base]
    if len(same) == 1:
        return same[0]
    return intent.services[0] if len(intent.services) == 1 else None


def _static(found: Found, service: Service | None, fleet: Fleet | None, gpu: str | None) -> tuple[Judged, Run | None]:
    """Everything that needs no load: known names, division, formats, GPU counts, memory."""
    unknown = [Finding("unknown", "", p) for p in found.problems]
    findings = [*unknown, *(Finding("note", "", n) for n in found.notes)]
    name = service.name if service is not None else None
    try:
        r = resolve(found, service=service, fleet=fleet, gpu=gpu)
    except UserError as e:
        if not any(e.message == u.message for u in unknown):
            findings.append(Finding("unknown", "", e.message, "; ".join(e.helps)))
        return Judged(found, name, findings=tuple(findings)), None
    d, caps = r.deployment, r.caps
    findings += [Finding("note", "", n) for n in r.notes]
    refusals = check_shape(d)
    findings += [
        Finding(
            "warns" if x.code in _UNWISE else "fails",
            _flag_of_rule(found, x.code),
            x.message,
            f"would do: {x.would_do}",
        )
        for x in refusals
    ]
    refusals = tuple(x for x in refusals if x.code not in _UNWISE)
    findings += _counts(found, r)
    findings += _caps_findings(found, r)
    m = memory_of(
        d, budget=caps.max_num_batched_tokens, seqs=caps.max_num_seqs, max_model_len=caps.max_model_len,
        utilization=found.memory_ratio,
    )  # fmt: skip
    if not m.fits and not refusals:
        findings.append(_does_not_fit(found, r, m))
    starts = not any(f.level == "fails" for f in findings)
    judged = Judged(
        found=found,
        service=name,
        model_id=r.ask.model.id if r.ask.model else None,
        precision=d.precision,
        kv_dtype=d.kv_dtype,
        gpu=d.hardware.gpu_id,
        starts=starts,
        max_num_seqs=caps.max_num_seqs,
        max_num_batched_tokens=caps.max_num_batched_tokens,
        max_model_len=caps.max_model_len,
        by_default=caps.by_default,
        memory=m,
        findings=tuple(findings),
    )
    if not starts or service is None:
        return judged, None
    classes = tuple(class_load(c, slos=service.slo, trace=c.trace_summary) for c in service.traffic)
    if len({c.priority for c in classes}) > 1 and found.served_first != "lower":
        judged = replace(judged, findings=(*judged.findings, _out_of_order(found)))
        turn = -1 if found.served_first == "higher" else 0
        classes = tuple(replace(c, priority=turn * c.priority) for c in classes)
    try:
        spec = spec_of(r.ask, d, m, budget=caps.max_num_batched_tokens, seqs=caps.max_num_seqs)
        replicas = (found.replicas or 1) if hits_depend_on_replicas(classes) else 1
        model = LoadModel(replace(spec, replicas=replicas), classes)
    except UserError as e:
        more = Finding("fails", found.flag_of("max_num_batched_tokens"), e.message, "; ".join(e.helps))
        return replace(judged, starts=False, findings=(*judged.findings, more)), None
    instances = None if found.replicas is None else found.replicas * r.copies
    return judged, Run(found, r, m, model, instances)


def _out_of_order(found: Found) -> Finding:
    """The intent's priorities are not what this launch does with them; the figures are of the launch."""
    flag = "--scheduling-policy" if found.engine == "vllm" else "--schedule-low-priority-values-first"
    if found.served_first == "higher":
        return Finding("warns", flag, "higher priorities are served first here, the intent's lower ones", f"add {flag}")
    fix = "--scheduling-policy priority" if found.engine == "vllm" else f"--enable-priority-scheduling {flag}"
    message = "the classes' priorities have no effect: requests are served in order of arrival"
    return Finding("warns", flag, message, f"add {fix}")


_UNWISE = ("tp-link", "ep-link")
"""Rules of what the planner would choose; an engine starts all the same, only slower."""


def _flag_of_rule(found: Found, code: str) -> str:
    """The flag that a refused rule is about."""
    if code == "precision":
        return found.flag_of("quantization") if found.quantization else ""
    if code == "kv-dtype":
        return found.flag_of("kv_cache_dtype")
    if code.startswith("pp-"):
        return found.flag_of("pp")
    return found.flag_of("tp")


def _counts(found: Found, r: Resolved) -> list[Finding]:
    """GPUs that the flags ask for against GPUs that the pods get."""
    needs, given = found.gpus_needed, found.gpus_given
    if given is not None and given < needs:
        flag = found.flag_of("tp")
        return [
            Finding(
                "fails", flag, f"needs {needs} GPUs, the pods of a replica get {given}", f"give {needs} or lower it"
            )
        ]
    if given is not None and given > needs:
        return [Finding("warns", "", f"{given - needs} of a replica's {given} GPUs stay unused")]
    node = r.deployment.hardware.gpus_per_node
    if given is not None and found.gpus_per_pod is not None and found.gpus_per_pod > node:
        return [Finding("fails", "", f"asks for {found.gpus_per_pod} GPUs in one pod, a node has {node}")]
    return []


def _caps_findings(found: Found, r: Resolved) -> list[Finding]:
    caps, arch, result = r.caps, r.deployment.arch, []
    if found.max_model_len is not None and found.max_model_len > arch.max_context_tokens:
        result.append(
            Finding(
                "fails", found.flag_of("max_model_len"),
                f"{found.max_model_len:,} is beyond the model's {arch.max_context_tokens:,}",
                f"set {arch.max_context_tokens} or less",
            )
        )  # fmt: skip
    if found.engine == "vllm" and caps.max_num_batched_tokens < caps.max_num_seqs:
        result.append(
            Finding(
                "fails", found.flag_of("max_num_batched_tokens"),
                f"{caps.max_num_batched_tokens} is below max_num_seqs {caps.max_num_seqs}: vllm refuses to start",
                "raise it or lower max_num_seqs",
            )
        )  # fmt: skip
    if found.eager:
        result.append(Finding("warns", "", "CUDA graphs are off: steps are slower than predicted here"))
    if found.speculation is not None and r.ask.service.speculation is None:
        message = f"speculation ({found.speculation}) is on; figures are without it, since its acceptance is not known"
        result.append(Finding("note", "", message))
    if found.replicas is None:
        result.append(Finding("unknown", "", "the number of replicas is not said (an autoscaler owns it)"))
    return result


def _does_not_fit(found: Found, r: Resolved, m: Memory) -> Finding:
    """Why memory is short, and the flag that decides it."""
    caps = r.caps
    if m.kv_bytes <= 0:
        weights = f"weights take {show_bytes(m.weights_bytes)} of {show_bytes(m.usable_bytes)} usable per GPU"
        return Finding("fails", found.flag_of("tp"), f"{m.reason}; {weights}", "use more GPUs or fewer bits")
    longest = _longest(found, r)
    said = "" if found.max_model_len else " (the model's own length, since none is given)"
    cache = f"the {show_bytes(m.kv_bytes)} of cache per GPU, headroom kept"
    message = f"one request of {caps.max_model_len:,} tokens{said} does not fit into {cache}"
    fix = f"set {found.flag_of('max_model_len')} to {longest} or less" if longest else "use more GPUs or fewer bits"
    return Finding("fails", found.flag_of("max_model_len"), message, fix)


def _longest(found: Found, r: Resolved) -> int:
    """The longest max_model_len that starts with everything else as it is, in steps of 16; 0 where none does."""
    low, high = 0, r.caps.max_model_len // 16
    while high - low > 1:
        middle = (low + high) // 2
        m = memory_of(
            r.deployment, budget=r.caps.max_num_batched_tokens, seqs=r.caps.max_num_seqs, max_model_len=middle * 16,
            utilization=found.memory_ratio,
        )  # fmt: skip
        low, high = (middle, high) if m.fits else (low, middle)
    return low * 16
