"""Which image runs: the platform's own where it names one, the documented default otherwise; never `latest`."""

from __future__ import annotations

import re

from planner.catalog.engines import EngineVersion
from planner.intent.platform import Platform
from planner.render.files import refused
from planner.render.text import plain

# Components that are no engines of the catalogue. Sources: Dynamo 1.6.1's documentation; llm-d's repository.
COMPONENTS = {
    "dynamo-frontend": "nvcr.io/nvidia/ai-dynamo/dynamo-frontend:1.6.1",
    "llm-d": "ghcr.io/llm-d/llm-d-cuda:v0.9.0",
    "llm-d-sidecar": "ghcr.io/llm-d/llm-d-routing-sidecar:v0.8.0",
}


def engine_image(engine: EngineVersion, platform: Platform, *, vendor: str, key: str | None = None) -> str:
    """The image of an engine or router for a GPU vendor (`any` for what needs no GPU)."""
    key = key or engine.engine
    if key in platform.images:
        return pinned(platform.images[key])
    default = engine.images.get(vendor) or engine.images.get("any")
    if default is None:
        raise refused(
            "image-unknown",
            f"no image of {engine.label} for {vendor} GPUs is known"
            if vendor != "any"
            else f"no image of {engine.label} is known",
            f"name yours in platform.yaml: images: {{{key}: REGISTRY/IMAGE:TAG}}",
        )
    return rewrite(default, platform)


def component_image(name: str, platform: Platform) -> str:
    """The image of a component that is no engine."""
    return pinned(platform.images[name]) if name in platform.images else rewrite(COMPONENTS[name], platform)


def pinned(image: str) -> str:
    """An image with a tag that is not `latest`, or a digest."""
    plain(image, "image")
    last = image.rsplit("/", 1)[-1]
    if "@sha256:" not in image and (":" not in last or last.endswith(":latest")):
        raise refused("bad-image", f"image {image!r} is not pinned", "add a tag that is not latest, or a digest")
    return image


def rewrite(image: str, platform: Platform) -> str:
    """The default image behind the platform's registry: the longest matching prefix is replaced."""
    for prefix in sorted(platform.registry, key=len, reverse=True):
        if image == prefix or image.startswith(prefix.rstrip("/") + "/"):
            return pinned(platform.registry[prefix].rstrip("/") + image[len(prefix.rstrip("/")) :])
    return pinned(image)


def version_of(image: str) -> str | None:
    """The semantic version in an image's tag, if it has one (Dynamo's admission reads it).

    >>> version_of("nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1"), version_of("a/b@sha256:00")
    ('1.6.1', None)
    """
    match = re.search(r":v?(\d+\.\d+\.\d+)[^/]*$", image.split("@", 1)[0])
    return match[1] if match else None
