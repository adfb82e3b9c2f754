"""Models: what exists, by Hugging Face id, with the checkpoints people serve them from.

`models/` holds one config.json per shape, trimmed to what matters, with its source; `model_aliases.yaml` the other
repositories of the same shape and the names that people and benchmark files write; `checkpoints.yaml` the quantised
repositories and what is known of their accuracy; `checkpoints/` the quantisation settings of those whose files are at
hand. A user's own folder with a config.json is a model too.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from planner.catalog.quantisation import LABELS, Precision, Quantisation, read_quantisation
from planner.data import catalog_data
from planner.documents import Strict, load_yaml, parse_json, read_as, read_text, shown_path
from planner.errors import UserError, Where, did_you_mean

LARGEST_CONFIG_BYTES = 8 * 1024 * 1024
"""Real ones are 1 to 200 kB."""
LARGEST_INDEX_BYTES = 64 * 1024 * 1024


class Accuracy(Strict):
    """Share of the original model's accuracy that a checkpoint keeps: a prior with its band."""

    value: float = Field(gt=0, le=1.1)
    low: float = Field(gt=0, le=1.1)
    high: float = Field(gt=0, le=1.1)
    source: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One set of weights that can be served."""

    repo: str
    """Hugging Face repository (or the user's own path) to put into a launch config."""
    precision: Precision
    accuracy: Accuracy
    source: str
    scheme: str = "bf16"
    """Number format of weights where `quantisation` has nothing to say."""
    wide: tuple[str, ...] = ()
    """Groups or matrices that stay in bf16 besides embedding, head, norms and router, where that is known."""
    mtp_quantised: bool = False
    """Prediction layers are stored like the rest; 4-bit checkpoints usually leave them wide."""
    quantisation: Quantisation | None = None
    """What the checkpoint's own files say, where they are at hand."""
    weights_bytes: float | None = None
    """Size where it was read off the checkpoint; it beats the formula."""
    weights_source: str | None = None
    kv_precision: Literal["fp8"] | None = None
    """Cache precision the checkpoint implies; none: the engine's default."""
    online: bool = False
    """The engine quantises the bf16 checkpoint while it loads (vLLM `--quantization fp8`)."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name, with the config that tells its shape."""

    id: str
    """The repository as asked for, spelled as its owner does, or the user's path."""
    config: Mapping[str, Any] = field(compare=False)
    kind: Literal["real", "preset", "reconstructed", "own"]
    """real: a config.json; preset: from another tool's table; reconstructed: from dimensions, checked by its parameter
    count; own: the user's file."""
    source: str
    checkpoints: tuple[Checkpoint, ...]
    """The model's own precision first; the first of each precision is the preferred one."""
    shape_of: str
    """The bundled id whose config this is."""
    hf_quant: Any = field(default=None, compare=False)
    """hf_quant_config.json of a user's own folder."""

    @property
    def native(self) -> Checkpoint:
        """What the id itself holds."""
        return self.checkpoints[0]


# ---------------------------------------------------------------- the files


class _Variant(Strict):
    """Another repository of the same shape."""

    max_position_embeddings: int | None = None
    names: tuple[str, ...] = ()


class _Aliases(Strict):
    names: tuple[str, ...] = ()
    variants: dict[str, _Variant] = Field(default_factory=dict)


class _Repository(Strict):
    repo: str
    precision: str
    scheme: str | None = None
    like: str | None = None
    """A repository with the same quantisation settings, whose files are at hand."""
    wide: tuple[str, ...] = ()
    mtp_quantised: bool = False
    accuracy: str | None = None
    weights_bytes: float | None = None
    kv: Literal["fp8"] | None = None
    source: str


class _Native(Strict):
    scheme: str
    wide: tuple[str, ...] = ()
    source: str


class _Checkpoints(Strict):
    accuracy: dict[str, Accuracy]
    native: dict[str, _Native]
    """Models whose own repository is quantised otherwise than the config at hand says."""
    repositories: dict[str, tuple[_Repository, ...]]


@dataclass(frozen=True, slots=True)
class _Shape:
    id: str
    kind: Literal["real", "preset", "reconstructed", "own"]
    source: str
    config: dict[str, Any]


def _json(path: Path, *, what: str, largest: int = LARGEST_CONFIG_BYTES) -> Any:
    text, shown = read_text(path, what=what, largest=largest), shown_path(path)
    try:
        return parse_json(text, shown).data
    except UserError:
        raise
    except ValueError as e:  # a number of thousands of digits
        raise UserError("json-number", f"{shown} holds a number that cannot be read", Where(shown)) from e


@functools.cache
def _shapes() -> dict[str, _Shape]:
    found = {}
    for path in sorted(catalog_data("models").glob("*.json")):
        d = _json(path, what="model file")
        assert d["id"].replace("/", "--") == path.stem, path.name
        found[d["id"]] = _Shape(d["id"], d["kind"], d["source"], d["config"])
    return found


@functools.cache
def _quantised() -> dict[str, dict[str, Any]]:
    """Repository -> its quantisation settings as they stand in its files."""
    return {
        d["repo"]: d for p in sorted(catalog_data("checkpoints").glob("*.json")) for d in [_json(p, what="checkpoint")]
    }


@functools.cache
def _aliases() -> dict[str, _Aliases]:
    data = load_yaml(catalog_data("model_aliases.yaml"), what="model aliases").data
    table = {k: _Aliases.model_validate(v) for k, v in data.items()}
    assert set(table) <= set(_shapes()), set(table) - set(_shapes())
    return table


@functools.cache
def _checkpoints() -> _Checkpoints:
    return read_as(_Checkpoints, load_yaml(catalog_data("checkpoints.yaml")), what="checkpoints")


# ---------------------------------------------------------------- names


@dataclass(frozen=True, slots=True)
class _Entry:
    """What a name stands for: an id, the shape it has, and the repository if that is a quantised one."""

    id: str
    shape: str
    context: int | None = None
    repo: str | None = None
    known_as: str | None = None


def squeeze(name: str) -> str:
    """A name without what people vary: case, dashes, spaces; the dot of a version stays.

    >>> squeeze("Llama 3.1-8B Instruct") == squeeze("llama-3.1-8b_instruct")
    True
    """
    return re.sub(r"[^a-z0-9.]", "", re.sub(r"(?<=\d)_(?=\d(?![\db.]))", ".", name.lower()))


@functools.cache
def _names() -> dict[str, _Entry]:
    """Squeezed name -> what it stands for; full ids first, then names without the owner, which never replace them."""
    entries: list[_Entry] = []
    said: dict[str, _Entry] = {}
    for shape in _shapes():
        entries.append(_Entry(shape, shape))
        a = _aliases().get(shape, _Aliases())
        said |= {squeeze(n): entries[-1] for n in a.names}
        for repo, v in a.variants.items():
            entries.append(_Entry(repo, shape, v.max_position_embeddings))
            said |= {squeeze(n): entries[-1] for n in v.names}
    by_id = {e.id: e for e in entries}
    for base, repos in _checkpoints().repositories.items():
        assert base in by_id, base
        entries += [replace(by_id[base], repo=r.repo) for r in repos if r.repo not in by_id]
    full = {squeeze((e.repo or e.id).replace("/", "")): e for e in reversed(entries)}
    short = {squeeze((e.repo or e.id).split("/")[-1]): e for e in reversed(entries)}
    return short | said | full


_PRECISION_SUFFIX = re.compile(
    r"[-_.](?P<fp8>fp8(?:[-_](?P<how>dynamic|block|kv|static.*))?)$"
    r"|[-_.](?P<nvfp4>nvfp4|fp4)(?:[-_]v\d)?$"
    r"|[-_.](?P<mxfp4>mxfp4)$"
    r"|[-_.](?P<int4>awq(?:[-_](?:int4|4bit))?|gptq(?:[-_]int4)?|int4(?:[-_](?:autoround|awq))?|(?:quantized\.)?w4a16(?:[-_]ct)?)$"
    r"|[-_.](?P<int8>(?:quantized\.)?w8a8|int8)$"
    r"|[-_.](?P<bf16>bf16)$",
    re.IGNORECASE,
)
_VARIANT_SUFFIX = re.compile(r"[-_](?:instruct|it|chat|base|hf|thinking|reasoning|\d{4}|v\d(?:\.\d)?)$", re.IGNORECASE)
_BLOCK_OWNERS = {"qwen", "zai-org", "deepseek-ai", "stepfun-ai", "minimaxai", "moonshotai", "tencent", "xiaomimimo"}
_SCHEMES: dict[str, str] = {
    "int4": "int4_g128",
    "int8": "int8_channel",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bf16": "bf16",
}


def find_model(name_or_path: str, *, where: Where | None = None, any_owner: bool = False) -> Model:
    """The model of that name: a bundled id, a repository of the same shape, an alias, or a folder with config.json.

    A known model under an owner who publishes none of it is refused, for the name goes into a launch command as it
    is; with `any_owner` (names in measurement files) it is taken for the known one.

    UserError with near misses for a name that is not known, and for a file that cannot be read.
    """
    name = name_or_path.strip()
    if _is_path(name):
        return _own(Path(name).expanduser(), name, where)
    asked = re.sub(r"\s+", "-", re.sub(r"\s*\([^)]*\)", "", name).rstrip("? ").strip())
    found = _find(asked)
    if found is not None:
        if not any_owner:
            _check_owner(asked, found, where)
        return found
    known = sorted({e.id for e in _names().values()})
    raise UserError(
        "unknown-model",
        f"unknown model {name!r}",
        where,
        (),
        (
            *did_you_mean(asked, known),
            "name a folder with the model's config.json instead, or see all with: plan catalog models",
        ),
    )


@functools.cache
def _repositories() -> frozenset[str]:
    """Every repository that the catalogue names, in lower case."""
    quantised = {r.repo for repos in _checkpoints().repositories.values() for r in repos}
    return frozenset(r.lower() for r in quantised | {e.id for e in _names().values()})


@functools.cache
def _quantisers() -> frozenset[str]:
    """Owners who publish other people's models in other formats."""
    repos = ((base, r.repo) for base, many in _checkpoints().repositories.items() for r in many)
    owners = {r.split("/")[0].lower() for b, r in repos if r.split("/")[0].lower() != b.split("/")[0].lower()}
    return frozenset(owners | {"neuralmagic"})  # RedHatAI's former name; its repositories still answer to it


def _check_owner(asked: str, found: Model, where: Where | None) -> None:
    owner, _, base = asked.lower().rpartition("/")
    if not owner or asked.lower() in _repositories():
        return
    if owner == found.shape_of.split("/")[0].lower() or owner in _quantisers():
        return
    known = [e.id for k, e in _names().items() if k in (squeeze(base), squeeze(found.shape_of.replace("/", "")))]
    owners = {i.split("/")[0].lower() for i in known}
    if owner in owners:
        return
    near = list(dict.fromkeys(known)) or [found.shape_of]
    raise UserError(
        "unknown-owner",
        f"{asked.rpartition('/')[0]!r} is not known to publish {asked.rpartition('/')[2]}",
        where,
        ("the repository's name goes into launch commands as it is",),
        (f"write {near[0]}", "or name a folder with the copy's config.json"),
    )


def _find(asked: str) -> Model | None:
    names = _names()
    owner, _, base = asked.rpartition("/")
    exact = names.get(squeeze(asked.replace("/", "")))
    if exact is not None:
        return _model(exact)
    for candidate in (base, f"{base}-instruct", f"{base}-it", f"{base}-chat", f"{base}-hf"):
        entry = names.get(squeeze(candidate))
        if entry is not None and entry.repo is None:
            # Somebody else's copy keeps its own name; without an owner it is the known one.
            return _model(replace(entry, id=asked, known_as=entry.id) if owner and candidate == base else entry)
    suffix = _PRECISION_SUFFIX.search(base)
    if suffix is not None:
        plain = _find(base[: len(base) - len(suffix.group())])
        return _named_checkpoint(plain, asked, suffix) if plain is not None else None
    shorter = _VARIANT_SUFFIX.search(base)
    if shorter is not None and owner:
        plain = _find(asked[: len(asked) - len(shorter.group())])
        return (
            replace(plain, id=asked, checkpoints=_own_checkpoints(asked, plain.config)) if plain is not None else None
        )
    return None


def _named_checkpoint(plain: Model, asked: str, suffix: re.Match[str]) -> Model | None:
    """A quantised copy that is not in the catalogue: its format as its name and owner suggest."""
    label = next(k for k in ("fp8", "nvfp4", "mxfp4", "int4", "int8", "bf16") if suffix.group(k))
    precision: Precision = label  # type: ignore[assignment]
    owner, slash, _ = asked.lower().partition("/")
    if not slash:
        # No repository is named: the known one of that precision, or none.
        first = next((c for c in plain.checkpoints if c.precision == precision), None)
        others = tuple(c for c in plain.checkpoints if c is not first)
        return None if first is None else replace(plain, checkpoints=(first, *others))
    how = (suffix.group("how") or "").lower()
    scheme = _SCHEMES.get(label, "")
    if label == "fp8":
        block = how == "block" or (owner in _BLOCK_OWNERS and not how.startswith("static"))
        scheme = (
            "fp8_block128"
            if block
            else "fp8_tensor"
            if owner == "nvidia" or how.startswith("static")
            else "fp8_channel"
        )
    made = Checkpoint(
        repo=asked,
        precision=precision,
        accuracy=_accuracy(precision),
        source="format read off the repository's name",
        scheme=scheme,
        kv_precision="fp8" if owner == "nvidia" and precision in ("fp8", "nvfp4") else None,
    )
    return replace(plain, checkpoints=(made, *plain.checkpoints))


@functools.cache
def models() -> dict[str, Model]:
    """Every bundled shape by id, in the order of their ids."""
    return {i: _model(_Entry(i, i)) for i in _shapes()}


def _model(e: _Entry) -> Model:
    shape = _shapes()[e.shape]
    config = shape.config
    if e.context is not None:
        inner = config.get("text_config")
        if inner is not None:
            config = {**config, "text_config": {**inner, "max_position_embeddings": e.context}}
        else:
            config = {**config, "max_position_embeddings": e.context}
    checkpoints = _own_checkpoints(e.id, config, known_as=e.known_as)
    if e.repo is not None:
        first = next(c for c in checkpoints if c.repo == e.repo)
        checkpoints = (first, *(c for c in checkpoints if c is not first))
    source = shape.source if e.id == e.shape else f"same shape as {e.shape}: {shape.source}"
    return Model(e.id, config, shape.kind, source, checkpoints, e.shape)


# ---------------------------------------------------------------- checkpoints


def _accuracy(precision: str, *, native: bool = False, name: str | None = None) -> Accuracy:
    table = _checkpoints().accuracy
    return table[name or ("native" if native else precision)]


def _own_checkpoints(
    model_id: str, config: Mapping[str, Any], *, known_as: str | None = None
) -> tuple[Checkpoint, ...]:
    """The model's own repository, the quantised ones that are known, and what an engine can make of a bf16 one.

    `known_as`: the catalogue's id where `model_id` is somebody else's copy.
    """
    known = known_as or model_id
    native = _native(known, config, model_id, "the repository itself")
    found = [native, *(_repository(r) for r in _checkpoints().repositories.get(known, ()))]
    if not any(c.precision == "fp8" for c in found) and native.precision == "bf16":
        found.append(_online(native))
    return tuple(found)


def _online(native: Checkpoint) -> Checkpoint:
    return replace(
        native,
        precision="fp8",
        scheme="fp8_tensor",
        accuracy=_accuracy("fp8"),
        source="the engine quantises the bf16 checkpoint while loading (vLLM and SGLang --quantization fp8)",
        weights_bytes=None,
        weights_source=None,
        online=True,
    )


def _native(model_id: str, config: Mapping[str, Any], repo: str, source: str) -> Checkpoint:
    known = _checkpoints().native.get(model_id)
    if known is not None:
        accuracy, precision = _accuracy("", native=True), LABELS[known.scheme]
        return Checkpoint(repo, precision, accuracy, known.source, known.scheme, known.wide)
    quantisation = _settings(config, model_id)
    if quantisation is not None:
        return Checkpoint(
            repo,
            quantisation.precision,
            _accuracy("", native=True),
            source,
            quantisation=quantisation,
            kv_precision=quantisation.kv,
        )
    return Checkpoint(repo, "bf16", _accuracy("", native=True), source)


def _settings(config: Mapping[str, Any], model: str, hf_quant: object = None) -> Quantisation | None:
    """What a config.json says about quantisation, at the top or in its text part."""
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else {}
    settings = config.get("quantization_config") or inner.get("quantization_config")
    if settings is not None and not isinstance(settings, Mapping):
        raise UserError("quantisation", f"config of {model}: quantization_config must be a mapping")
    extra = hf_quant if isinstance(hf_quant, Mapping) else None
    if not settings and not extra:
        return None
    dtype = config.get("expert_dtype") or inner.get("expert_dtype")
    return read_quantisation(settings, model=model, hf_quant=extra, expert_dtype=dtype)


def _repository(r: _Repository) -> Checkpoint:
    own = _quantised().get(r.like or r.repo)
    quantisation = None
    if own is not None:
        quantisation = read_quantisation(
            own.get("quantization_config"),
            model=r.repo,
            hf_quant=own.get("hf_quant_config"),
            expert_dtype=own.get("expert_dtype"),
        )
    precision: Precision = r.precision  # type: ignore[assignment]
    return Checkpoint(
        repo=r.repo,
        precision=precision,
        accuracy=_accuracy(precision, name=r.accuracy),
        source=own["source"] if own is not None and r.like is None else r.source,
        scheme=r.scheme or _SCHEMES[precision],
        wide=r.wide,
        mtp_quantised=r.mtp_quantised,
        quantisation=quantisation,
        weights_bytes=r.weights_bytes,
        weights_source=r.source if r.weights_bytes is not None else None,
        kv_precision=quantisation.kv if quantisation is not None else r.kv,
    )


# ---------------------------------------------------------------- a user's own


def _is_path(name: str) -> bool:
    """A name that starts like a path, ends in .json, or is a folder that holds a config.json."""
    return name.startswith((".", "/", "~")) or name.endswith(".json") or (Path(name) / "config.json").is_file()


def _own(path: Path, name: str, where: Where | None) -> Model:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        missing = f"{shown_path(path)} holds no config.json" if path.is_dir() else f"{shown_path(path)} does not exist"
        raise UserError("no-such-file", missing, where, (), ("name a config.json, or the folder that holds it",))
    data = _json(file, what="config")
    if not isinstance(data, dict):
        raise UserError(
            "model-config", f"{shown_path(file)} is not a mapping of keys to values", Where(shown_path(file))
        )
    folder = file.parent
    hf_quant = folder / "hf_quant_config.json"
    extra = _json(hf_quant, what="hf_quant_config") if hf_quant.is_file() else None
    return own_model(name, data, hf_quant=extra, weights_bytes=_index_bytes(folder), source=shown_path(file))


def own_model(
    name: str, config: Mapping[str, Any], *, hf_quant: Any = None, weights_bytes: float | None = None, source: str
) -> Model:
    """A user's own model from what its files say, as a plan embeds it."""
    native = _native(name, config, name, source)
    if native.precision != "bf16":
        # Nobody says that a folder holds its owner's own release: the prior of the format applies.
        native = replace(native, accuracy=_accuracy(native.precision))
    if hf_quant is not None:
        q = _settings(config, name, hf_quant)
        if q is not None:
            native = replace(
                native,
                precision=q.precision,
                quantisation=q,
                kv_precision=q.kv,
                accuracy=_accuracy(q.precision),
            )
    if weights_bytes is not None:
        native = replace(native, weights_bytes=weights_bytes, weights_source="model.safetensors.index.json, total_size")
    found = (native, _online(native)) if native.precision == "bf16" else (native,)
    return Model(name, config, "own", source, found, name, hf_quant=hf_quant)


def _index_bytes(folder: Path) -> float | None:
    """The checkpoint's size as its index gives it, if there is one."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return None
    data = _json(index, what="index", largest=LARGEST_INDEX_BYTES)
    meta = data.get("metadata") if isinstance(data, dict) else None
    size = meta.get("total_size") if isinstance(meta, dict) else None
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < 1e16:
        return None
    return float(size)
