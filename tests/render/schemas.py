"""Compact schemas of the custom kinds that we render: only the fields we use, everything else refused.

Field names and types come from the kinds' public definitions; `test_manifests.py` holds them against the real ones
where those are at hand. Pod specs and metadata refer to the core schemas of kubernetes-validate.
"""

from __future__ import annotations

from typing import Any

CORE = "core:/definitions.json"
META = {"$ref": f"{CORE}#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}
TEMPLATE = {"$ref": f"{CORE}#/$defs/io.k8s.api.core.v1.PodTemplateSpec"}
POD = {"$ref": f"{CORE}#/$defs/io.k8s.api.core.v1.PodSpec"}
STR: dict[str, Any] = {"type": "string", "minLength": 1}
INT: dict[str, Any] = {"type": "integer", "minimum": 0}
POSITIVE: dict[str, Any] = {"type": "integer", "minimum": 1}
BOOL: dict[str, Any] = {"type": "boolean"}
STRINGS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT: dict[str, Any] = {"type": ["integer", "string"]}


def obj(required: str = "", **fields: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


def arr(items: Any, least: int = 1) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least}


def kind(api: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return obj(
        "apiVersion kind metadata spec", apiVersion={"const": api}, kind={"const": name}, metadata=META, spec=spec
    )


ROLLING = obj(
    "type", type={"enum": ["RollingUpdate"]}, rollingUpdateConfiguration=obj("", maxSurge=COUNT, maxUnavailable=COUNT)
)
LWS_SPEC = obj(
    "leaderWorkerTemplate",
    replicas=INT,
    startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
    rolloutStrategy=ROLLING,
    leaderWorkerTemplate=obj(
        "workerTemplate",
        size=POSITIVE,
        restartPolicy={"enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
        leaderTemplate=TEMPLATE,
        workerTemplate=TEMPLATE,
    ),
)
TRIGGERS = arr(obj("type metadata", type=STR, metricType={"enum": ["AverageValue", "Value"]}, metadata=STRINGS))
KSERVE_HALF: dict[str, Any] = {
    "labels": STRINGS,
    "replicas": INT,
    "scaling": obj(
        "maxReplicas",
        minReplicas=POSITIVE,
        maxReplicas=POSITIVE,
        keda=obj("triggers", pollingInterval=INT, triggers=TRIGGERS),
    ),
    "rolloutStrategy": obj("", maxSurge=COUNT, maxUnavailable=COUNT),
    "parallelism": obj("", tensor=POSITIVE, pipeline=POSITIVE, data=POSITIVE, dataLocal=POSITIVE, expert=BOOL),
    "template": POD,
    "worker": POD,
}

SCHEMAS: dict[tuple[str, str], dict[str, Any]] = {
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): LWS_SPEC,
    ("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet"): obj(
        "roles",
        slices=INT,
        roles=arr(obj("name spec", name=STR, scaling=obj("", mode={"enum": ["Static", "External"]}), spec=LWS_SPEC), 2),
    ),
    ("nvidia.com/v1beta1", "DynamoGraphDeployment"): obj(
        "components",
        backendFramework={"enum": ["vllm", "sglang", "trtllm"]},
        components=arr(
            obj(
                "name type podTemplate",
                name={"type": "string", "pattern": "^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$", "maxLength": 63},
                type={"enum": ["frontend", "worker", "prefill", "decode"]},
                replicas=INT,
                multinode=obj("nodeCount", nodeCount={"type": "integer", "minimum": 2}),
                sharedMemorySize={"type": "string", "pattern": r"^\d+[KMGT]i$"},
                scalingAdapter=obj(),
                runtimeVersionOverride={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
                podTemplate=TEMPLATE,
            )
        ),
    ),
    ("serving.kserve.io/v1alpha2", "LLMInferenceService"): obj(
        "model",
        model=obj("uri", uri={"type": "string", "pattern": "^(hf|pvc|s3|oci)://"}, name=STR),
        **KSERVE_HALF,
        prefill=obj("", **KSERVE_HALF),
        router=obj("", gateway=obj(), route=obj(), scheduler=obj()),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): obj(
        "selector targetPorts",
        selector=obj("matchLabels", matchLabels=STRINGS),
        targetPorts=arr(obj("number", number=POSITIVE)),
        endpointPickerRef=obj(
            "name", name=STR, port=obj("number", number=POSITIVE), failureMode={"enum": ["FailOpen", "FailClose"]}
        ),
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): obj(
        "parentRefs rules",
        parentRefs=arr(obj("name", group=STR, kind=STR, name=STR)),
        rules=arr(
            obj(
                "backendRefs",
                matches=arr(obj("", path=obj("", type={"enum": ["Exact", "PathPrefix"]}, value=STR))),
                backendRefs=arr(obj("name", group=STR, kind=STR, name=STR, weight=INT)),
                timeouts=obj("", request=STR, backendRequest=STR),
            )
        ),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): obj(
        "scaleTargetRef triggers",
        scaleTargetRef=obj("name", apiVersion=STR, kind=STR, name=STR),
        minReplicaCount=INT,
        maxReplicaCount=POSITIVE,
        pollingInterval=POSITIVE,
        cooldownPeriod=POSITIVE,
        fallback=obj("failureThreshold replicas", failureThreshold=POSITIVE, replicas=INT),
        triggers=TRIGGERS,
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): obj(
        "selector podMetricsEndpoints",
        selector=obj("matchLabels", matchLabels=STRINGS),
        podTargetLabels=arr(STR),
        podMetricsEndpoints=arr(obj("port", port=STR, path=STR, interval={"type": "string", "pattern": r"^\d+[sm]$"})),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): obj(
        "groups",
        groups=arr(
            obj(
                "name rules",
                name=STR,
                rules=arr(
                    obj("alert expr", alert={"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9]*$"}, expr=STR,
                        labels=STRINGS, annotations=STRINGS, **{"for": {"type": "string", "pattern": r"^\d+[smh]$"}})
                ),
            )
        ),
    ),
}  # fmt: skip
CRD_FILES = {
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io_leaderworkersets.yaml",
    "DisaggregatedSet": "disaggregatedset.x-k8s.io_disaggregatedsets.yaml",
    "LLMInferenceService": "serving.kserve.io_llminferenceservices.yaml",
    "InferencePool": "inference.networking.k8s.io_inferencepools.yaml",
    "HTTPRoute": "gateway.networking.k8s.io_httproutes.yaml",
    "ScaledObject": "keda.sh_scaledobjects.yaml",
    "PodMonitor": "monitoring.coreos.com_podmonitors.yaml",
    "PrometheusRule": "monitoring.coreos.com_prometheusrules.yaml",
}
