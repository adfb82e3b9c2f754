"""Which engine a command line starts, wherever in the line it stands, and what its words say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.assess.flags import engine_names, parse_config, parse_options
from planner.assess.found import Found, Place, from_options, hub_name
from planner.assess.shell import unresolved
from planner.catalog.engines import DYNAMO, DYNAMO_CARRIES
from planner.documents import parse_yaml
from planner.plan.manifests import mapping, whole

FileText = Callable[[str], str | None]
"""A path as the program sees it -> the file's text, or None where it is not known."""


def no_file(path: str) -> str | None:
    """Nothing is known about files."""
    return None


def launch(words: Sequence[str], base: Found, file_text: FileText = no_file) -> Found | None:
    """The engine that these words start, wherever in them it stands (behind exec, env, numactl, a profiler)."""
    plain = [w.rsplit("/", 1)[-1] for w in words]
    for i in range(len(words)):
        pair = tuple(plain[i : i + 2])
        if pair in (("vllm", "serve"), ("sglang", "serve")):
            return read_words(pair[0], words[i + 2 :], base, file_text)
        if pair[0] == "-m" and len(pair) == 2:
            module = words[i + 1]
            for start, engine in _MODULES.items():
                if module == start or module.startswith(start + "."):
                    return read_words(engine, words[i + 2 :], base, file_text)
    return None


_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang",
    "sglang.cli": "sglang",
    "dynamo.vllm": "vllm",
    "dynamo.sglang": "sglang",
}


def read_words(engine: str, words: Sequence[str], base: Found, file_text: FileText = no_file) -> Found:
    """The words after the launch command (or an image's arguments) -> what they deploy."""
    words = list(words)
    if words[:1] == ["serve"]:
        words = words[1:]
    notes: list[str] = []
    while "--config" in words[:-1]:
        at = words.index("--config")
        path = words[at + 1]
        text = file_text(path)
        words = words[:at] + words[at + 2 :]
        if text is None:
            notes.append(f"reads options from {path}, which is not among the files")
        else:
            data = parse_yaml(text, path).data
            # The command line wins over the file: the file's words come first.
            words = parse_config(engine, mapping(data)) + words
    silent = [w for w in words if w.startswith("--config=")]
    if silent and engine == "vllm":
        notes.append(f"{silent[0]} is ignored by vllm: write --config and the file as two words")
        words = [w for w in words if w not in silent]
    found = from_options(base, parse_options(engine, words))
    version = version_of_image(base.image)
    if version is None and base.image is not None and unresolved(base.image):
        notes.append(f"image {base.image} depends on {', '.join(unresolved(base.image))}")
    elif version is None and base.image is not None:
        remark = f"image {base.image} does not say its version; flags read as {engine} {_table(found)}"
        found = replace(found, notes=(*found.notes, remark))
    elif version is not None and version != _table(found) and engine in (base.image or ""):
        found = replace(
            found, notes=(*found.notes, f"image says {engine} {version}; flags read as {engine} {_table(found)}")
        )
    if found.model is None:
        asked = found.options.written("--model" if engine == "vllm" else "--model-path") if found.options else None
        notes.append("the model is filled in at start" if asked else "no model is named")
    elif unresolved(found.model):
        notes.append(f"the model depends on {', '.join(unresolved(found.model))}")
        found = replace(found, model=None)
    return replace(
        found,
        model=hub_name(found.model),
        engine_version=version,
        problems=tuple(dict.fromkeys((*found.problems, *notes))),
    )


def _table(found: Found) -> str:
    return found.options.table_version if found.options else ""


def engine_of_image(image: str | None) -> str | None:
    """The engine whose server is the image's entry point, by the last part of its name."""
    if image is None:
        return None
    name = re.sub(r"[:@].*$", "", image.rsplit("/", 1)[-1]).lower()
    return next((e for e in engine_names() if e in name and "router" not in name), None)


def version_of_image(image: str | None) -> str | None:
    """The engine's version, by the image's tag; Dynamo's tags are Dynamo's."""
    if image is None:
        return None
    tag = re.search(r":v?(\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)", image)
    if tag is None:
        return None
    runtime = re.search(r"ai-dynamo/(vllm|sglang)-runtime", image)
    if runtime:
        return DYNAMO_CARRIES[runtime[1]] if tag[1] == DYNAMO else None
    return tag[1]


def docker_run(words: Sequence[str], source: str) -> Found | None:
    """`docker run [options] IMAGE [args]`."""
    if not words or words[0].rsplit("/", 1)[-1] not in ("docker", "podman", "nerdctl") or "run" not in words:
        return None
    for i in range(words.index("run") + 1, len(words)):
        if words[i].startswith("-") or not re.search(r"[/:]", words[i]) or "=" in words[i]:
            continue
        engine = engine_of_image(words[i])
        if engine is None or words[i - 1] in ("-v", "-e", "--volume", "--env", "--name", "-p"):
            continue
        options = words[:i]
        gpus = next((options[j + 1] for j, w in enumerate(options[:-1]) if w == "--gpus"), None)
        gpus = gpus or next((w.partition("=")[2] for w in options if w.startswith("--gpus=")), None)
        count = None if gpus is None else (len(gpus.split("=")[-1].split(",")) if "device=" in gpus else whole(gpus))
        base = Found("service", Place(source), image=words[i], replicas=1, gpus_per_pod=count)
        inner = launch(words[i + 1 :], base)
        return inner or read_words(engine, words[i + 1 :], base)
    return None
