"""blocks: matrices and their quantisation blocks over ranks.

    every split dimension % ranks = 0
    FP8 block 128 x 128:  each rank's outputs (column) or inputs (row) % 128 = 0; widths of MLPs and experts, and
                          q and k, also where they are not split
    INT4 groups:          each rank's inputs of a row-split matrix % group = 0
    NVFP4:                each rank's inputs of a row-split matrix % 16 = 0

Only checkpoints stored in 128 x 128 blocks have the first block rule; channel and tensor FP8 do not.
MXFP4 has none: engines pad its experts (gpt-oss: 2880 / 8 = 360 runs). Expert parallelism leaves experts whole,
which is the usual way out. vLLM 0.33.0 lets stacked column matrices be cut (linear.py
_maybe_allow_fp8_block_shape_mismatch); the matrix that follows them is then cut too and is refused, so the rule holds.
Sources: vllm 0.33.0 fp8_utils.py validate_fp8_block_shape and validate_fp8_block_shape_moe, sglang 0.5.23
layers/quantization/fp8.py; vllm-project/vllm issues 17569, 17604, 13640, 54178.
"""

from __future__ import annotations

from planner.perf.arch import Scheme
from planner.perf.rules.base import Layout

FP8_BLOCK = 128
INPUT_GROUP: dict[Scheme, int] = {"int4_g128": 128, "int4_g32": 32, "nvfp4": 16}


class Widths:
    code = "width"

    def check(self, layout: Layout) -> str | None:
        for x, ranks, part in layout.split():
            if part == 0:
                whole = x.inputs if x.shard == "row" else x.outputs
                return f"the {_shown(x.group)} width {whole} ({x.name}) does not divide by {ranks} ranks"
        return None


UNSPLIT = frozenset({"q_proj", "k_proj", "gate_proj", "up_proj"})
"""Matrices whose outputs must be whole blocks even unsplit: the engine stacks others below them (q k v, gate up) or
runs them in one expert kernel, and a cut block would mix two matrices' scales."""


class Fp8Block:
    code = "fp8-block"

    def check(self, layout: Layout) -> str | None:
        blocked = f"the FP8 checkpoint has blocks of {FP8_BLOCK}"
        for g in layout.groups:
            for x in g.linears:
                cut = x.name in UNSPLIT and x.group != "linear_attn" and x.outputs % FP8_BLOCK
                if cut and layout.weights.scheme_of(x) == "fp8_block128":
                    return f"{blocked}, and {_shown(x.group)} {x.name} has {x.outputs} outputs"
        for x, ranks, part in layout.split():
            # Input projections of recurrent layers are stacked from odd parts: engines let them be cut anywhere.
            if x.group == "linear_attn" and x.shard == "column":
                continue
            if part and layout.weights.scheme_of(x) == "fp8_block128" and part % FP8_BLOCK:
                whole = x.inputs if x.shard == "row" else x.outputs
                return f"{blocked}, and {_shown(x.group)} {x.name} over {ranks} ranks leaves {part} of {whole}"
        return None


class GroupSize:
    code = "group-size"

    def check(self, layout: Layout) -> str | None:
        for x, ranks, part in layout.split():
            scheme = layout.weights.scheme_of(x)
            group = INPUT_GROUP.get(scheme)
            if group and part and x.shard == "row" and part % group:
                return (
                    f"{scheme.split('_')[0]} weights are grouped by {group} inputs, and {_shown(x.group)} {x.name} "
                    f"over {ranks} ranks leaves {part} of {x.inputs}"
                )
        return None


def _shown(group: str) -> str:
    return {
        "attn": "attention",
        "linear_attn": "linear-attention",
        "dense_mlp": "MLP",
        "shared_expert": "shared expert",
        "routed_expert": "expert",
    }.get(group, group)
