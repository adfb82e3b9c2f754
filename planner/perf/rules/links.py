"""links: where the parts of a replica may stand.

    tp <= GPUs that share a fast link or a node      pp <= layers, in models whose engine class can be cut
    tp x dp ranks that exchange tokens beyond that need RDMA

Tensor parallelism exchanges activations twice per layer: over a network it costs more than it brings, so the plan
never spreads it beyond a node or an NVLink domain (72 GPUs in NVL72 racks).
"""

from __future__ import annotations

from planner.perf.deployment import Deployment
from planner.perf.rules.base import Refusal

WITHOUT_PIPELINE: dict[str, frozenset[str]] = {
    "vllm": frozenset(),
    "sglang": frozenset(
        {
            "CohereForCausalLM",
            "Cohere2ForCausalLM",
            "Gemma2ForCausalLM",
            "Gemma3ForCausalLM",
            "Gemma3ForConditionalGeneration",
            "GraniteForCausalLM",
            "Llama4ForConditionalGeneration",
            "MiMoForCausalLM",
            "Mistral3ForConditionalGeneration",
            "Olmo2ForCausalLM",
            "OlmoeForCausalLM",
            "Qwen3NextForCausalLM",
        }
    ),
}
"""Model classes that the engine does not cut into stages: every class of the catalogue implements SupportsPP in the
vllm 0.33.0 wheel; these build all layers on one rank in the sglang 0.5.23 wheel."""


def links(d: Deployment) -> list[Refusal]:
    s, hw = d.shape, d.hardware
    found = []
    near = max(hw.scale_up_gpus, hw.gpus_per_node)
    if s.tp > near:
        message = f"tp {s.tp} would cross nodes: {near} {hw.gpu_id} GPUs share a node or its fast link"
        found.append(Refusal("tp-link", message, f"tp up to {near}, or pp across nodes"))
    elif s.dp > 1 and s.tp * s.dp > near and not hw.rdma:
        message = f"{s.tp * s.dp} ranks exchange tokens every layer, {near} share a node, and the pool has no RDMA"
        found.append(Refusal("ep-link", message, f"tp x dp up to {near}, or a pool with rdma: true"))
    if s.pp > d.arch.layer_count:
        message = f"{d.arch.layer_count} layers do not fill {s.pp} pipeline stages"
        found.append(Refusal("pp-layers", message, f"pp up to {d.arch.layer_count}"))
    if s.pp > 1 and d.arch.architecture in WITHOUT_PIPELINE.get(d.engine, frozenset()):
        message = f"{d.engine} does not cut {d.arch.architecture} into pipeline stages"
        found.append(Refusal("pp-support", message, "pp 1"))
    return found
