"""GPUs: what exists, each figure with its source.

One file per GPU in `gpus/`, named by its id; `gpu_aliases.yaml` holds the names that people, clusters and
benchmark files write. A GPU of status `announced` has preliminary figures and is never chosen by default.
"""

from __future__ import annotations

import functools
import re
from typing import Annotated, Literal

from pydantic import Field

from planner.data import catalog_data
from planner.documents import Strict, load_yaml, read_as
from planner.errors import UserError, Where, did_you_mean
from planner.units import Bytes, BytesPerSecond, FlopPerSecond, Watts

Source = Annotated[str, Field(min_length=1)]


class Rate(Strict):
    """A dense tensor rate; `native` False means the format is emulated (weights only) on this GPU."""

    dense: FlopPerSecond | None = None
    native: bool
    source: Source | None = None


class Memory(Strict):
    """What the board exposes as the vendor counts it, and what the driver reports (which is what planning uses)."""

    marketing: Bytes
    reported: Bytes | None = None
    """None where no driver output has been seen: planning then needs a figure from the fleet file."""
    bandwidth: BytesPerSecond
    source: Source


class ScaleUp(Strict):
    """The fast link between GPUs of one domain; bandwidth is one direction, per GPU."""

    kind: str
    bandwidth: BytesPerSecond | None = None
    """None where there is no link to another GPU (one GPU per node)."""
    domain_gpus: Annotated[int, Field(gt=0)]
    source: Source


class Node(Strict):
    """The usual server."""

    gpus: Annotated[int, Field(gt=0)]
    nic: BytesPerSecond | None = None
    """Per GPU, one direction; typical, a fleet file overrides it."""
    source: Source


class Labels(Strict):
    """How Kubernetes nodes report this GPU."""

    resource: str
    label_key: str | None = None
    label_value: str | None = None
    source: Source


class Gpu(Strict):
    """One accelerator."""

    id: str
    name: str
    vendor: Literal["nvidia", "amd", "intel", "google"]
    status: Literal["shipping", "announced"]
    arch: str
    """The vendor's architecture name (Hopper, CDNA3, ...): efficiency constants are keyed by it."""
    compute_capability: str | None = None
    memory: Memory
    bf16: Rate
    fp8: Rate
    int8: Rate
    fp4: Rate
    scale_up: ScaleUp
    pcie: BytesPerSecond | None = None
    """Host link, one direction, nominal; about 85% of it is usable."""
    pcie_source: Source | None = None
    node: Node
    tdp: Watts | None = None
    tdp_source: Source | None = None
    kubernetes: Labels | None = None
    unverified: tuple[str, ...] = ()
    """Figures that nobody has re-read at the source yet."""
    notes: str | None = None

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA compute capability as numbers, e.g. (9, 0)."""
        if self.compute_capability is None or not re.match(r"^\d+\.\d+$", self.compute_capability):
            return None
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Every GPU by id, in the order of their ids."""
    found = {}
    for path in sorted(catalog_data("gpus").glob("*.yaml")):
        gpu = read_as(Gpu, load_yaml(path, what="GPU file"), what="a GPU")
        assert gpu.id == path.stem, path.name
        found[gpu.id] = gpu
    return found


@functools.cache
def aliases() -> dict[str, str]:
    """Name as people write it, squeezed -> id."""
    table: dict[str, list[str]] = load_yaml(catalog_data("gpu_aliases.yaml"), what="GPU aliases").data
    known = {squeeze(g): g for g in gpus()}
    for gpu_id, names in table.items():
        assert gpu_id in gpus(), gpu_id
        known |= {squeeze(n): gpu_id for n in names}
    return known


def squeeze(name: str) -> str:
    """A name without what people vary: case, spaces, dashes, vendor words.

    >>> squeeze("NVIDIA H100 80GB HBM3"), squeeze("h100_sxm")
    ('h10080gbhbm3', 'h100sxm')
    """
    return re.sub(
        r"[^a-z0-9]",
        "",
        re.sub(
            r"\b(nvidia|amd|intel|google|instinct|tensor core|gpu)\b",
            "",
            name.lower().replace("-", " ").replace("_", " "),
        ),
    )


def find_gpu(name: str, *, where: Where | None = None) -> Gpu:
    """The GPU called `name`, by id or alias; UserError with near misses otherwise."""
    gpu_id = aliases().get(squeeze(name))
    if gpu_id is None:
        raise UserError(
            "unknown-gpu",
            f"unknown GPU {name!r}",
            where,
            (),
            (*did_you_mean(name, gpus()), "see all with: plan catalog gpus"),
        )
    return gpus()[gpu_id]
