"""What every family shares: reading config.json fields safely, the parts of a layer, and putting layers together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from planner.errors import UserError
from planner.perf.arch import LayerGroup, Linear, Mixer, Moe

CODE: Final = "model-config"
# Bounds that no real model reaches: they keep a mistyped config from costing minutes or gigabytes.
LARGEST: Final = 10**8
MOST_LAYERS: Final = 4096
LONGEST_LIST: Final = 2 * MOST_LAYERS
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Fields:
    """One mapping of a config.json, read with checks; `path` says where it stands (`text_config.`).

    Names are tried in order, because families call the same thing by different names; null counts as absent.
    """

    data: Mapping[str, Any]
    model: str
    path: str = ""

    def error(self, message: str, *helps: str) -> UserError:
        return UserError(CODE, f"config of {self.model}: {message}", None, (), helps)

    def raw(self, *names: str) -> Any:
        """The first of `names` that is present and not null, else None."""
        return next((self.data[n] for n in names if self.data.get(n) is not None), None)

    def has(self, *names: str) -> bool:
        return self.raw(*names) is not None

    def _found(self, names: Sequence[str], kind: str) -> tuple[str, Any]:
        for n in names:
            if self.data.get(n) is not None:
                return f"{self.path}{n}", self.data[n]
        also = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        raise self.error(f"{self.path}{names[0]}{also} is missing", f"add {names[0]}, {kind}")

    def whole(self, *names: str, default: int | None = None, low: int = 1, high: int = LARGEST) -> int:
        """A whole number within bounds; without a default it must be there."""
        if default is not None and not self.has(*names):
            return default
        name, value = self._found(names, "a whole number")
        return self._whole(name, value, low, high)

    def _whole(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{name} must be a whole number, not {_shown(value)}")
        if not low <= value <= high:
            raise self.error(f"{name} is {_shown(value).removeprefix('number ')}, outside {low} to {high}")
        return value

    def whole_or_none(self, *names: str, low: int = 1, high: int = LARGEST) -> int | None:
        return self.whole(*names, low=low, high=high) if self.has(*names) else None

    def flag(self, *names: str, default: bool) -> bool:
        if not self.has(*names):
            return default
        name, value = self._found(names, "true or false")
        if not isinstance(value, bool):
            raise self.error(f"{name} must be true or false, not {_shown(value)}")
        return value

    def text(self, *names: str, default: str = "") -> str:
        if not self.has(*names):
            return default
        name, value = self._found(names, "text")
        if not isinstance(value, str):
            raise self.error(f"{name} must be text, not {_shown(value)}")
        return value

    def number(self, *names: str, default: float) -> float:
        if not self.has(*names):
            return default
        name, value = self._found(names, "a number")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
            raise self.error(f"{name} must be a finite number, not {_shown(value)}")
        return float(value)

    def items(self, name: str, kind: type, *, length: int | None = None) -> list[Any] | None:
        """A list whose items are all of one kind (bool is not int); None where absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)):
            raise self.error(f"{self.path}{name} must be a list, not {_shown(value)}")
        for item in value:
            if not isinstance(item, kind) or (kind is int and isinstance(item, bool)):
                raise self.error(f"{self.path}{name} holds {_shown(item)} where {kind.__name__} is expected")
        # Some configs list their prediction layers behind the others.
        ahead = self.data.get("num_nextn_predict_layers") or 0
        if length is not None and ahead and isinstance(ahead, int) and len(value) == length + ahead:
            value = value[:length]
        if len(value) > LONGEST_LIST:
            raise self.error(f"{self.path}{name} has {len(value)} entries, more than any model has layers")
        if length is not None and len(value) != length:
            raise self.error(
                f"{self.path}{name} has {len(value)} entries for {length} layers", "give one entry per layer"
            )
        return list(value)

    def mapping(self, name: str) -> Fields | None:
        """A nested mapping as fields of its own; None where absent."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{self.path}{name} must be a mapping, not {_shown(value)}")
        return Fields(value, self.model, f"{self.path}{name}.")

    def over(self, **values: Any) -> Fields:
        """The same fields with some replaced: for layers whose sizes stand in the config under other names."""
        return Fields({**self.data, **values}, self.model, self.path)

    # ---- what every decoder has

    @property
    def hidden(self) -> int:
        return self.whole("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", high=10**6)

    @property
    def layers(self) -> int:
        return self.whole("num_hidden_layers", "n_layer", "n_layers", "num_layers", high=MOST_LAYERS)

    @property
    def heads(self) -> int:
        return self.whole("num_attention_heads", "n_head", "n_heads", high=10**5)

    def divided(self, whole: int, parts: int, what: str) -> int:
        if whole % parts:
            raise self.error(f"{what}: {whole} is not divisible by {parts}")
        return whole // parts


def _shown(value: object) -> str:
    # Python refuses to print integers of thousands of digits.
    huge = isinstance(value, int) and value.bit_length() > 200
    text = "of hundreds of digits" if huge else repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    kind = {bool: "truth value", str: "text", list: "list", dict: "mapping", float: "number", int: "number"}
    return f"{kind.get(type(value), type(value).__name__)} {text}"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of one layer: a mixer, a feed-forward network, norms, or all of them added up."""

    linears: tuple[Linear, ...] = ()
    mixer: Mixer | None = None
    moe: Moe | None = None
    norm_params: int = 0
    other_params: int = 0

    def __add__(self, other: Part) -> Part:
        assert self.mixer is None or other.mixer is None
        assert self.moe is None or other.moe is None
        return Part(
            self.linears + other.linears,
            self.mixer or other.mixer,
            self.moe or other.moe,
            self.norm_params + other.norm_params,
            self.other_params + other.other_params,
        )


def norms(width: int, count: int, *, bias: bool = False) -> Part:
    """`count` RMS norms (a scale), or layer norms (scale and shift) with `bias`."""
    return Part(norm_params=width * count * (2 if bias else 1))


def group(parts: Iterable[tuple[str, Part]], *, first_index: int = 0) -> tuple[LayerGroup, ...]:
    """Layers in order -> groups of layers that are alike, ordered by first appearance.

    The label names the group; equal parts with different labels stay apart.
    """
    found: dict[tuple[str, Part], list[int]] = {}
    for i, labelled in enumerate(parts, start=first_index):
        found.setdefault(labelled, []).append(i)
    return tuple(
        LayerGroup(name, tuple(indices), part.mixer, part.moe, part.linears, part.norm_params, part.other_params)
        for (name, part), indices in found.items()
    )
