"""config.json -> `ModelArch`. One module per kind of arithmetic; `classes.py` lists the architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import UserError, did_you_mean
from planner.perf.arch import Linear, ModelArch
from planner.perf.families import decoder
from planner.perf.families.base import CODE, Fields
from planner.perf.families.classes import CLASSES, DECODERS
from planner.perf.families.decoder import Read, Traits, flag

NESTED = ("text_config", "llm_config", "language_config")


def read_arch(config: Mapping[str, Any], name: str) -> ModelArch:
    """The arithmetic of the model that `config` (a parsed config.json) describes.

    Raises UserError for an architecture that is not known, and for fields that are missing or make no sense.
    """
    if not isinstance(config, Mapping):
        raise UserError(CODE, f"config of {name} must be a mapping of keys to values")
    outer = Fields(config, name)
    text = next((m for n in NESTED if (m := outer.mapping(n)) is not None), outer)
    architecture, key = _which(outer, text)
    t = DECODERS[key]
    read = decoder.read(text, t)
    return _finish(text, outer, t, read, name, architecture)


def _which(outer: Fields, text: Fields) -> tuple[str, str]:
    """(class name as the config gives it, key of the row that reads it)."""
    named = [c for f in (outer, text) for c in f.items("architectures", str) or []]
    kinds = [k for f in (text, outer) if (k := f.text("model_type"))]
    shown = named[0] if named else (kinds[0] if kinds else "")
    for c in reversed(named):
        if c in CLASSES:
            return shown, CLASSES[c]
    for k in kinds:
        if not named and k in DECODERS:
            return shown, k
    if not shown:
        raise outer.error(
            "neither architectures nor model_type says what it is",
            "add architectures: [LlamaForCausalLM], or whichever it is",
        )
    raise UserError(
        "unknown-architecture",
        f"{outer.model} has the architecture {shown}, which the planner does not know",
        helps=(
            *did_you_mean(shown, CLASSES),
            "add its class to planner/perf/families/classes.py, and a family module if its arithmetic differs",
        ),
    )


def _finish(f: Fields, outer: Fields, t: Traits, read: Read, name: str, architecture: str) -> ModelArch:
    """Adds embedding, head and what stands outside the layers."""
    h, vocab = f.hidden, f.int("vocab_size", "padded_vocab_size")
    tied = f.flag("tie_word_embeddings", default=outer.flag("tie_word_embeddings", default=t.tied))
    final = h * (2 if t.norm_bias else 1)
    context = f.int("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "model_max_length",
                    default=2048, high=10**10)  # fmt: skip
    moe, mixers = any(g.moe for g in read.layers), {type(g.mixer).__name__ for g in read.layers if g.mixer}
    windowed = any(getattr(g.mixer, "window_tokens", None) for g in read.layers)
    family = (
        "compressed" if "CompressedAttention" in mixers
        else "hybrid" if "Recurrent" in mixers
        else "mla" if "Mla" in mixers
        else "window" if windowed
        else "moe" if moe
        else "dense"
    )  # fmt: skip
    return ModelArch(
        name=name,
        family=family,
        architecture=architecture,
        hidden=h,
        vocab=vocab,
        max_context_tokens=context,
        layers=read.layers,
        embed=Linear("embed_tokens", "embed", h, vocab, "vocab", active=0, quantisable=False),
        lm_head=Linear("lm_head", "lm_head", h, vocab, "vocab", bias=flag(f, t.head_bias)),
        tied_embeddings=tied,
        final_norm_params=final,
        mtp=read.mtp,
        extra_params=read.extra_params,
        left_out=read.left_out,
        approximate=read.approximate,
        native_dtype=f.text("torch_dtype", "dtype", default=outer.text("torch_dtype", "dtype", default="bfloat16")),
    )
