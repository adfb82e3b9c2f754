"""config.json -> `ModelArch`. One module per kind of arithmetic; `classes.py` lists the architectures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.errors import UserError, did_you_mean
from planner.perf.arch import LayerGroup, Linear, ModelArch
from planner.perf.families import decoder
from planner.perf.families.base import CODE, Fields
from planner.perf.families.classes import CLASSES, DECODERS, REFINED, SPECIAL, TYPES, WRAPPERS
from planner.perf.families.decoder import flag

NESTED = ("text_config", "llm_config", "language_config")
SEES = ("vision_config", "audio_config", "visual", "vision_tower", "image_token_id", "image_token_index", "vit_config")


def read_arch(config: Mapping[str, Any], name: str) -> ModelArch:
    """The arithmetic of the model that `config` (a parsed config.json) describes.

    Raises UserError for an architecture that is not known, and for fields that are missing or make no sense.
    """
    if not isinstance(config, Mapping):
        raise UserError(CODE, f"config of {name} must be a mapping of keys to values")
    outer = Fields(config, name)
    text = next((m for n in NESTED if (m := outer.mapping(n)) is not None), outer)
    architecture, key = _which(outer, text)
    if "tie_word_embeddings" not in text.data and outer.has("tie_word_embeddings"):
        text = text.over(tie_word_embeddings=outer.raw("tie_word_embeddings"))
    traits = DECODERS[key]
    if key in REFINED:
        traits = REFINED[key](text, traits)
    read = SPECIAL[key](text, traits) if key in SPECIAL else decoder.read(text, traits)

    h, vocab = text.hidden, text.whole("vocab_size", "padded_vocab_size")
    tied = text.flag("tie_word_embeddings", default=traits.tied)
    left_out = read.left_out
    if architecture in WRAPPERS or outer.has(*SEES):
        left_out = ("vision and audio encoders (text part only)", *left_out)
    return ModelArch(
        name=name,
        family=_family(read.layers),
        architecture=architecture,
        hidden=h,
        vocab=vocab,
        max_context_tokens=_context(text),
        layers=read.layers,
        embed=Linear("embed_tokens", "embed", h, vocab, "vocab", active=0, quantisable=False),
        lm_head=Linear("lm_head", "lm_head", h, vocab, "vocab", bias=flag(text, traits.head_bias)),
        tied_embeddings=tied,
        final_norm_params=(h * (2 if traits.norm_bias else 1)) if traits.final_norm else 0,
        mtp=read.mtp,
        left_out=left_out,
        approximate=read.approximate,
        native_dtype=text.text("torch_dtype", "dtype", default=outer.text("torch_dtype", "dtype", default="bfloat16")),
        extra_params=read.extra_params + read.table_params,
        table_params=read.table_params,
    )


def _context(f: Fields) -> int:
    names = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions", "model_max_length")
    return f.whole(*names, default=2048, high=10**10)


def _which(outer: Fields, text: Fields) -> tuple[str, str]:
    """(class name as the config gives it, key of the row that reads it)."""
    named = outer.items("architectures", str) or []
    inner = (text.items("architectures", str) or []) if text is not outer else []
    kinds = [k for f in (text, outer) if (k := f.text("model_type"))]
    shown = named[0] if named else inner[0] if inner else kinds[0] if kinds else ""
    if not shown:
        raise outer.error(
            "neither architectures nor model_type says what it is",
            "add architectures, e.g. [LlamaForCausalLM]",
        )
    for c in named:
        if c in CLASSES:
            return shown, CLASSES[c]
        if c in WRAPPERS:
            # The text part inside says what it is; older and trimmed configs leave that to the class.
            known = [CLASSES[i] for i in inner if i in CLASSES] + [TYPES[k] for k in kinds if k in TYPES]
            return shown, known[0] if known else WRAPPERS[c]
    if not named:
        known = [CLASSES[i] for i in inner if i in CLASSES] + [TYPES[k] for k in kinds if k in TYPES]
        if known:
            return shown, known[0]
    raise UserError(
        "unknown-architecture",
        f"{outer.model} has the architecture {shown}, which the planner does not know",
        helps=(
            *did_you_mean(shown, [*CLASSES, *WRAPPERS]),
            "add its class to planner/perf/families/classes.py, and a family module if its arithmetic differs",
        ),
    )


def _family(layers: tuple[LayerGroup, ...]) -> str:
    """The kind of arithmetic that sets a model apart, most particular first."""
    kinds = {type(g.mixer).__name__ for g in layers if g.mixer is not None}
    if "CompressedAttention" in kinds:
        return "compressed"
    if "Recurrent" in kinds:
        return "hybrid"
    if "Mla" in kinds:
        return "mla"
    if any(getattr(g.mixer, "window_tokens", None) for g in layers):
        return "window"
    return "moe" if any(g.moe for g in layers) else "dense"
