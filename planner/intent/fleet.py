"""The fleet: which GPUs there are, where, at what price, with which network and labels."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from planner.documents import Strict
from planner.errors import UserError
from planner.intent.platform import LabelMap, ResourceName, label_key, label_value
from planner.units import (
    Bytes,
    BytesPerSecond,
    DollarsPerHour,
    FlopPerSecond,
    LinkBytesPerSecond,
    ScaleUpBytesPerSecond,
    StorageBytesPerSecond,
    Watts,
)

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def _name(value: str) -> str:
    # Names become labels, table headings and parts of file names.
    if not _NAME.fullmatch(value) or ".." in value:
        raise UserError(
            "bad-name",
            f"{value[:70]!r} cannot be a name here",
            None,
            (),
            ("use at most 63 letters, digits, '-', '_' and '.', a letter or digit first and last",),
        )
    return value


Name = Annotated[str, AfterValidator(_name)]


class Price(Strict):
    """Price of one GPU for one hour, with where it was read and when."""

    per_gpu_hour: DollarsPerHour
    source: str
    as_of: str
    committed: bool = False
    """Sunk cost: paid whether used or not, so zero at the margin."""


class Toleration(Strict):
    """A Kubernetes toleration, as the pod spec takes it."""

    key: Annotated[str, AfterValidator(label_key)] | None = None
    operator: Literal["Equal", "Exists"] = "Equal"
    value: Annotated[str, AfterValidator(label_value)] | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _as_the_api_server_wants(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise UserError("toleration", "operator Exists takes no value", None, (), ("remove value",))
        if self.operator == "Equal" and self.key is None:
            raise UserError(
                "toleration", "operator Equal needs a key", None, (), ("add key: ..., or write operator: Exists",)
            )
        return self


class Kubernetes(Strict):
    """How pods find this pool. Labels are data the user owns; defaults come from the GPU catalogue."""

    node_selector: LabelMap = Field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    gpu_resource: ResourceName | None = None
    rdma_resource: ResourceName | None = None


class GpuOverride(Strict):
    """Figures of the catalogue's GPU that this fleet knows better."""

    memory: Bytes | None = None
    hbm_bandwidth: BytesPerSecond | None = None
    bf16: FlopPerSecond | None = None
    fp8: FlopPerSecond | None = None
    int8: FlopPerSecond | None = None
    fp4: FlopPerSecond | None = None
    scale_up: ScaleUpBytesPerSecond | None = None
    """One direction, per GPU."""
    scale_up_domain: Annotated[int, Field(gt=0)] | None = None
    tdp: Watts | None = None


class Pool(Strict):
    """Nodes that are alike."""

    name: Name
    gpu: str
    nodes: Annotated[int, Field(gt=0, le=100_000)]
    gpus_per_node: Annotated[int, Field(gt=0, le=1024)] | None = None
    """None: what the usual server of this GPU holds."""
    reserved_nodes: Annotated[int, Field(ge=0)] = 0
    price: Price | None = None
    nic: LinkBytesPerSecond | None = None
    """Network bandwidth per GPU, one direction; none: the catalogue's typical figure."""
    rdma: bool = False
    storage_bandwidth: StorageBytesPerSecond = 1e9
    """Rate at which one node reads weights when a replica starts."""
    memory_per_node: Bytes | None = None
    cpus_per_node: Annotated[int, Field(gt=0)] | None = None
    kubernetes: Kubernetes = Kubernetes()
    override: GpuOverride | None = None

    @model_validator(mode="after")
    def _some_left(self) -> Self:
        if self.reserved_nodes > self.nodes:
            raise UserError(
                "fleet",
                f"pool {self.name!r} reserves {self.reserved_nodes} of {self.nodes} nodes",
                None,
                (),
                ("reserve at most all of them",),
            )
        return self


class Fleet(Strict):
    """Named pools of nodes."""

    schema_version: Literal[1] = 1
    name: Name
    pools: tuple[Pool, ...]

    @model_validator(mode="after")
    def _pools(self) -> Self:
        if not self.pools:
            raise UserError(
                "empty-fleet",
                f"fleet {self.name!r} has no pools",
                None,
                (),
                ("add a pool: {name: ..., gpu: h100-sxm, nodes: 4}",),
            )
        names = [p.name for p in self.pools]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise UserError("duplicate-pool", f"two pools are called {twice[0]!r}", None, (), ("name them apart",))
        if all(p.reserved_nodes >= p.nodes for p in self.pools):
            raise UserError(
                "empty-fleet",
                f"every node of fleet {self.name!r} is reserved",
                None,
                (),
                ("lower reserved_nodes",),
            )
        return self
