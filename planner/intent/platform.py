"""The platform: what a cluster's policies want on every object. All optional; defaults are safe."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from planner.documents import Strict
from planner.errors import UserError

_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^$|^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_IMAGE = re.compile(r"^[a-z0-9][a-zA-Z0-9._:/@-]{0,254}$")


def _labels(value: dict[str, str]) -> dict[str, str]:
    for k, v in value.items():
        if not _LABEL_KEY.match(k):
            raise UserError(
                "bad-label",
                f"{k!r} is not a Kubernetes label key",
                None,
                (),
                ("use [prefix/]name of letters, digits, '-', '_' and '.'",),
            )
        if not _LABEL_VALUE.match(v):
            raise UserError(
                "bad-label",
                f"{v!r} is not a Kubernetes label value",
                None,
                (),
                ("at most 63 letters, digits, '-', '_' and '.'",),
            )
    return dict(sorted(value.items()))


def _dns(value: str) -> str:
    if not _DNS_LABEL.match(value):
        raise UserError(
            "bad-name",
            f"{value!r} is not a Kubernetes name",
            None,
            (),
            ("use at most 63 lower-case letters, digits and dashes",),
        )
    return value


def _image(value: str) -> str:
    if not _IMAGE.match(value) or value.endswith(":latest"):
        raise UserError(
            "bad-image",
            f"{value!r} is not a pinned image",
            None,
            (),
            ("name a tag that is not latest, or a digest",),
        )
    return value


LabelMap = Annotated[dict[str, str], AfterValidator(_labels)]
DnsLabel = Annotated[str, AfterValidator(_dns)]
Image = Annotated[str, AfterValidator(_image)]


class ModelSource(Strict):
    """Where weights come from."""

    kind: Literal["hub", "pvc", "s3", "oci"] = "hub"
    secret: DnsLabel | None = None
    """Name of a secret with key HF_TOKEN (hub) or the bucket's credentials (s3); never its value."""
    claim: DnsLabel | None = None
    """PersistentVolumeClaim with the weights (pvc), or a cache for the hub's downloads."""
    path: str | None = None
    """Folder inside the claim, or s3://bucket/prefix, or the OCI reference of the weights."""
    offline: bool | None = None
    """Forbid the hub; none: true for everything but hub."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.kind == "pvc" and self.claim is None:
            raise UserError("model-source", "model source pvc needs a claim", None, (), ("add claim: NAME",))
        if self.kind in ("s3", "oci") and self.path is None:
            raise UserError("model-source", f"model source {self.kind} needs a path", None, (), ("add path: ...",))
        return self


class Platform(Strict):
    """Policies of one cluster."""

    schema_version: Literal[1] = 1
    namespace: DnsLabel | None = None
    labels: LabelMap = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    registry: dict[str, str] = Field(default_factory=dict)
    """Rewrite of image prefixes: {docker.io: registry.example.internal/hub}."""
    images: dict[str, Image] = Field(default_factory=dict)
    """Full image per engine or component, digest pins included: {vllm: registry/vllm@sha256:...}."""
    pull_secrets: tuple[DnsLabel, ...] = ()
    service_account: DnsLabel | None = None
    security: Literal["restricted", "baseline"] = "restricted"
    run_as_user: Annotated[int, Field(gt=0)] | None = None
    model_source: ModelSource = ModelSource()
    kueue_queue: DnsLabel | None = None
    runtime_class: DnsLabel | None = None
    priority_class: DnsLabel | None = None
    kubernetes_version: Annotated[str, Field(pattern=r"^1\.\d+$")] = "1.34"
    dynamo_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+$")] = "1.6.1"
    crds: (
        tuple[
            Literal[
                "leaderworkerset",
                "disaggregatedset",
                "keda",
                "prometheus",
                "gateway",
                "kserve",
                "dynamo",
                "inferencepool",
            ],
            ...,
        ]
        | None
    ) = None
    """CRDs the cluster has; none: what the target needs is assumed, monitoring and autoscaling included."""
    gateway: DnsLabel = "inference-gateway"
    """The Gateway that an HTTPRoute attaches to (target llm-d)."""
    resources: Literal["device-plugin", "dra"] = "device-plugin"
    autoscaling: Literal["none", "keda"] = "none"
    prometheus_url: str | None = None
    """Where KEDA reads the engines' metrics."""
    monitoring: bool = False
    """Render PodMonitor, PrometheusRule and the dashboard."""
    network_policy: bool = False
