"""A `Found` against the catalogue: its model, checkpoint, GPU and layout, as the performance model takes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.assess.defaults import Caps, caps
from planner.assess.found import Found
from planner.candidates.ask import Ask
from planner.candidates.replica import arch_of, deployment_of
from planner.catalog.engines import DEFAULT_VERSION
from planner.catalog.gpus import find_gpu
from planner.catalog.models import Checkpoint, Model, find_model
from planner.errors import UserError
from planner.intent.document import Service, TrafficClass
from planner.intent.fleet import Fleet, Pool
from planner.perf.arch import Shape
from planner.perf.deployment import Deployment, Hardware, KvDtype, hardware

# Engine-side quantisation of a bf16 checkpoint, by the flag's value.
_ONLINE = {
    "fp8": "fp8", "fp8_per_tensor": "fp8", "fp8_per_block": "fp8", "fp8_per_channel": "fp8", "w8a8_fp8": "fp8",
    "int8_per_channel_weight_only": "int8", "w8a8_int8": "int8", "mxfp4": "mxfp4", "nvfp4_per_token": "nvfp4",
    "nvfp4_online": "nvfp4",
}  # fmt: skip
_KV: dict[str, KvDtype] = {
    "bf16": "bf16", "bfloat16": "bf16", "float16": "bf16", "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Resolved:
    """What runs, in the model's terms."""

    ask: Ask
    pool: Pool
    deployment: Deployment
    checkpoint: Checkpoint
    caps: Caps
    copies: int
    """Whole copies inside one launcher: each takes its share of a replica's traffic."""
    notes: tuple[str, ...]


def resolve(found: Found, *, service: Service | None, fleet: Fleet | None, gpu: str | None) -> Resolved:
    """UserError where something is not known: each by name, never guessed."""
    if found.engine is None:
        raise UserError("unknown-engine", found.problems[-1] if found.problems else "no engine that is known")
    notes: list[str] = []
    at = _pool(found, fleet, gpu)
    hw = hardware(
        find_gpu(at.gpu), override=at.override, gpus_per_node=at.gpus_per_node, nic_bytes_per_s=at.nic, rdma=at.rdma
    )
    model = _model(found, service, notes)
    checkpoint = _checkpoint(found, model)
    arch = arch_of(model)
    shape, copies = found.shape, found.copies
    if not arch.moe and shape.dp > 1:
        # Data parallelism of a dense model is whole copies behind one address.
        shape, copies = Shape(tp=shape.tp, pp=shape.pp), copies * shape.dp
    if shape.ep and not arch.moe:
        notes.append("expert parallelism is on for a model without experts: it changes nothing")
        shape = replace(shape, ep=False)
    asked = service or Service(
        name="service", model=model.id, engine=found.engine, traffic=(TrafficClass(input=1, output=1),)
    )
    asked = asked.model_copy(update={"engine": found.engine, "gpu_memory_utilization": found.memory_ratio})
    pools = (at,)
    ask = Ask(
        asked,
        Fleet(name=fleet.name if fleet else "assessed", pools=pools),
        model=model,
        engine_version=DEFAULT_VERSION[found.engine],
    )
    deployment = deployment_of(
        ask, hw, checkpoint=checkpoint, kv_dtype=_kv_dtype(found, checkpoint), shape=shape, role=found.role
    )
    return Resolved(ask, at, deployment, checkpoint, _caps(found, hw, arch.max_context_tokens), copies, tuple(notes))


def _caps(found: Found, hw: Hardware, longest: int) -> Caps:
    assert found.engine is not None
    return caps(
        found.engine, hw, max_num_seqs=found.max_num_seqs, max_num_batched_tokens=found.max_num_batched_tokens,
        max_model_len=found.max_model_len, longest_tokens=longest,
    )  # fmt: skip


def _pool(found: Found, fleet: Fleet | None, gpu: str | None) -> Pool:
    """Where it runs: what was said, the node selector, or the fleet's only pool."""
    wanted = find_gpu(gpu).id if gpu is not None else found.gpu
    if fleet is not None:
        fitting = [p for p in fleet.pools if wanted is None or find_gpu(p.gpu).id == wanted]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            names = ", ".join(sorted({find_gpu(p.gpu).id for p in fleet.pools}))
            raise UserError(
                "unknown-gpu", f"it asks for {wanted} nodes, which fleet {fleet.name} does not have (it has {names})"
            )
        if wanted is not None:
            return fitting[0]
    if wanted is None:
        raise UserError(
            "which-gpu",
            "nothing says which GPU it runs on",
            None,
            (),
            ("name it with --gpu, or a fleet with one pool",),
        )
    return Pool(name=wanted, gpu=wanted, nodes=1)


def _model(found: Found, service: Service | None, notes: list[str]) -> Model:
    """The model by the name in the launch; a path means something to the cluster only, so the service's model stands
    in for it."""
    if found.model is None:
        if service is None:
            raise UserError("unknown-model", "no model is named that can be read")
        notes.append(f"the launch does not say its model; taken as the service's, {service.model}")
        return find_model(service.model)
    try:
        return find_model(found.model)
    except UserError:
        looks_local = found.model.startswith(("/", ".", "~", "pvc://", "s3://", "oci://", "gs://"))
        if service is None or not looks_local:
            raise
        notes.append(f"{found.model} is a path; taken as the service's model, {service.model}")
        return find_model(service.model)


def _checkpoint(found: Found, model: Model) -> Checkpoint:
    """The checkpoint that is loaded: the repository's own, or what the engine makes of it while loading."""
    named = next(
        (c for c in model.checkpoints if found.model is not None and c.repo.lower() == found.model.lower()), None
    )
    own = named or model.native
    flag = found.quantization
    if flag is None or flag in ("compressed-tensors", "auto") or own.precision != "bf16":
        return own
    precision = _ONLINE.get(flag)
    if precision is None:
        raise UserError(
            "unknown-quantisation", f"{found.flag_of('quantization')} {flag} on a bf16 checkpoint is not modelled"
        )
    made = next((c for c in model.checkpoints if c.precision == precision and c.online), None)
    made = made or next((c for c in model.checkpoints if c.precision == precision), None)
    if made is None:
        raise UserError("unknown-precision", f"no {precision} form of {model.id} is known")
    return made


def _kv_dtype(found: Found, checkpoint: Checkpoint) -> KvDtype:
    if found.kv_cache_dtype in (None, "auto"):
        return checkpoint.kv_precision or "bf16"
    known = _KV.get(str(found.kv_cache_dtype))
    if known is None:
        raise UserError(
            "unknown-kv-dtype", f"{found.flag_of('kv_cache_dtype')} {found.kv_cache_dtype} is not modelled",
            None, (), (f"known: {', '.join(_KV)}",),
        )  # fmt: skip
    return known
