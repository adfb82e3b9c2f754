"""Models cut out of a larger one layer by layer (Nemotron-Super/Ultra, DeciLM): every layer has its own sizes, and
some have no attention or no feed-forward network at all."""

from __future__ import annotations

from planner.perf.families.base import Fields, Part, group, norms
from planner.perf.families.decoder import Read, Traits, label
from planner.perf.families.dense import attention, mlp, read_shape


def nas(f: Fields, t: Traits) -> Read:
    blocks = f.items("block_configs", dict, length=f.layers)
    if blocks is None:
        raise f.error(f"{f.path}block_configs is missing", "give attention and ffn of each layer")
    return Read(
        group([(label(p), p) for p in (_layer(f, Fields(b, f.model, f"{f.path}block_configs.")) for b in blocks)])
    )


def _layer(f: Fields, block: Fields) -> Part:
    part = Part()
    a, ff = block.mapping("attention"), block.mapping("ffn")
    if a is None or ff is None:
        raise block.error(f"{block.path}attention and ffn must both be there")
    for half in (a, ff):
        if half.flag("replace_with_linear", default=False) or half.has("sparsify"):
            raise half.error(f"{half.path}replace_with_linear and sparsify are not known", "leave them out")
    if not a.flag("no_op", default=False):
        per_group = a.whole("n_heads_in_group")
        kv = f.divided(f.heads, per_group, "attention heads by n_heads_in_group")
        window = a.whole_or_none("window_length")
        part += attention(read_shape(f.over(num_key_value_heads=kv), window_tokens=window)) + norms(f.hidden, 1)
    if not ff.flag("no_op", default=False):
        part += mlp(f.hidden, _width(f.hidden, ff)) + norms(f.hidden, 1)
    return part


def _width(hidden: int, ff: Fields) -> int:
    """The class gives the width as a multiple of hidden, counted before the gate's two thirds, rounded up to 256."""
    if ff.has("intermediate_size"):
        return ff.whole("intermediate_size")
    multiple = ff.number("ffn_mult", default=0.0)
    if not 0 < multiple < 1000:
        raise ff.error(f"{ff.path}ffn_mult must be above 0")
    width = int(2 * multiple * hidden / 3)
    return -(-width // 256) * 256
