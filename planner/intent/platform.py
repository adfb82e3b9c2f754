"""The platform: what a cluster's policies want on every object. All optional; defaults are safe."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from planner.documents import Strict
from planner.errors import UserError, did_you_mean

_RESOURCE = re.compile(r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^$|^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_DNS_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_IMAGE = re.compile(r"^[a-z0-9][a-zA-Z0-9._:/@-]{0,254}$")


def _key(key: str, what: str, code: str) -> None:
    if not _LABEL_KEY.fullmatch(key):
        raise UserError(
            code,
            f"{key[:70]!r} is not a Kubernetes {what} key",
            None,
            (),
            ("use [prefix/]name of letters, digits, '-', '_' and '.'; the name at most 63 characters",),
        )


def _resource(value: str) -> str:
    if not _RESOURCE.fullmatch(value):
        raise UserError(
            "bad-resource",
            f"{value[:70]!r} is not an extended resource",
            None,
            (),
            ("write vendor/name, e.g. nvidia.com/gpu or rdma/ib",),
        )
    return value


OLDEST_KUBERNETES = 25
"""Minor version from which what is rendered here (policy/v1, autoscaling/v2) is served and nothing older needed."""


def _kubernetes(value: str) -> str:
    match = re.fullmatch(r"1\.(\d{1,3})", value)
    if match is None or int(match[1]) < OLDEST_KUBERNETES:
        raise UserError(
            "kubernetes-version",
            f"{value[:20]!r} is not a Kubernetes version that is rendered for",
            None,
            (f"1.{OLDEST_KUBERNETES} and newer serve what is rendered",),
            ('write it in quotes, e.g. kubernetes_version: "1.34"',),
        )
    return value


COMPONENTS = (
    "vllm", "sglang", "vllm-router", "smg", "dynamo-vllm", "dynamo-sglang", "kserve", "dynamo-frontend", "llm-d",
    "llm-d-sidecar",
)  # fmt: skip
"""What `images` may name: engines, routers, and the parts of Dynamo, KServe and llm-d."""


def _component(name: str) -> str:
    if name not in COMPONENTS:
        raise UserError(
            "unknown-component",
            f"{name[:70]!r} is no component with an image",
            None,
            (),
            did_you_mean(name, COMPONENTS) or (f"known: {', '.join(COMPONENTS)}",),
        )
    return name


def label_key(key: str) -> str:
    """`key` if Kubernetes takes it as the key of a label or taint."""
    _key(key, "label", "bad-label")
    return key


def label_value(value: str) -> str:
    """`value` if Kubernetes takes it as the value of a label or taint."""
    if not _LABEL_VALUE.fullmatch(value):
        raise UserError(
            "bad-label",
            f"{value[:70]!r} is not a Kubernetes label value",
            None,
            (),
            ("at most 63 letters, digits, '-', '_' and '.'",),
        )
    return value


def _annotation_key(key: str) -> str:
    _key(key, "annotation", "bad-annotation")
    return key


def _sorted(value: dict[str, str]) -> dict[str, str]:
    return dict(sorted(value.items()))


def _dns(value: str) -> str:
    if not _DNS_LABEL.fullmatch(value):
        raise UserError(
            "bad-name",
            f"{value!r} is not a Kubernetes name",
            None,
            (),
            ("use at most 63 lower-case letters, digits and dashes",),
        )
    return value


def _image(value: str) -> str:
    if not _IMAGE.fullmatch(value) or value.endswith(":latest"):
        raise UserError(
            "bad-image",
            f"{value!r} is not a pinned image",
            None,
            (),
            ("name a tag that is not latest, or a digest",),
        )
    return value


LabelMap = Annotated[
    dict[Annotated[str, AfterValidator(label_key)], Annotated[str, AfterValidator(label_value)]],
    AfterValidator(_sorted),
]
AnnotationMap = dict[Annotated[str, AfterValidator(_annotation_key)], str]
ResourceName = Annotated[str, AfterValidator(_resource)]
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
    annotations: AnnotationMap = Field(default_factory=dict)
    registry: dict[str, str] = Field(default_factory=dict)
    """Rewrite of image prefixes: {docker.io: registry.example.internal/hub}."""
    images: dict[Annotated[str, AfterValidator(_component)], Image] = Field(default_factory=dict)
    """Full image per engine or component, digest pins included: {vllm: registry/vllm@sha256:...}."""
    pull_secrets: tuple[DnsLabel, ...] = ()
    service_account: DnsLabel | None = None
    security: Literal["restricted", "baseline"] = "restricted"
    run_as_user: Annotated[int, Field(gt=0)] | None = None
    model_source: ModelSource = ModelSource()
    kueue_queue: DnsLabel | None = None
    runtime_class: DnsLabel | None = None
    priority_class: DnsLabel | None = None
    kubernetes_version: Annotated[
        str, AfterValidator(_kubernetes), Field(json_schema_extra={"pattern": r"^1\.\d+$"})
    ] = "1.34"
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
