"""Where the weights come from: the string the engine loads, and the volumes, variables and flags that go with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from planner.errors import not_supported
from planner.intent.platform import Platform
from planner.plan.document import ModelDoc
from planner.render.args import Arg, Env, arg
from planner.render.files import refused
from planner.render.text import plain

HUB_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$(?!\n)")
CACHE = "/cache"
MODELS = "/models"


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """How one engine reaches its model."""

    reference: str
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    env: tuple[Env, ...] = ()
    args: tuple[Arg, ...] = ()
    uri: str = ""
    """The same as KServe writes it."""


def model_access(model: ModelDoc, platform: Platform, engine: str, *, local: bool = False) -> ModelAccess:
    """The platform's model source applied to one model. `local`: launched where the user's own folder is."""
    source = platform.model_source
    offline = source.offline if source.offline is not None else source.kind != "hub"
    env = [Env("HF_HUB_OFFLINE", "1"), Env("TRANSFORMERS_OFFLINE", "1")] if offline else []
    if source.kind == "hub":
        if model.own and local:
            return ModelAccess(plain(model.repo, "model"), (), (), tuple(env))
        if model.own:
            raise refused(
                "model-reference",
                f"{model.repo[:80]!r} is a folder of yours: a pod would look for it on the hub",
                "say where pods find it: model_source: {kind: pvc, claim: ..., path: ...} in platform.yaml, "
                "or --target none for the launch script alone",
            )
        if not HUB_ID.match(model.repo) or ".." in model.repo:
            raise refused(
                "model-reference",
                f"{model.repo[:80]!r} is not a Hugging Face id",
                "name the checkpoint's id, or set model_source: {kind: pvc, claim: ..., path: ...} in platform.yaml",
            )
        if source.secret is not None:
            env.insert(0, Env("HF_TOKEN", secret=source.secret, secret_key="HF_TOKEN"))  # noqa: S106 - the key's name
        volumes: tuple[dict[str, Any], ...] = ()
        mounts: tuple[dict[str, Any], ...] = ()
        if source.claim is not None:
            volumes = ({"name": "hub-cache", "persistentVolumeClaim": {"claimName": source.claim}},)
            mounts = ({"name": "hub-cache", "mountPath": f"{CACHE}/huggingface"},)
        return ModelAccess(model.repo, volumes, mounts, tuple(env), uri=f"hf://{model.repo}")
    if source.kind == "pvc":
        path = _inside(source.path or "", "model_source.path")
        reference = f"{MODELS}/{path}".rstrip("/")
        return ModelAccess(
            reference,
            (
                {
                    "name": "models",
                    "persistentVolumeClaim": {"claimName": source.claim, "readOnly": True},
                },
            ),
            ({"name": "models", "mountPath": MODELS, "readOnly": True},),
            tuple(env),
            uri=f"pvc://{source.claim}/{path}".rstrip("/"),
        )
    assert source.path is not None  # ModelSource checks it
    path = plain(source.path, "model_source.path")
    if source.kind == "s3":
        if not path.startswith("s3://"):
            raise refused("model-source", f"{path[:60]!r} is not an s3:// path", "write s3://BUCKET/PREFIX")
        if engine != "vllm":
            raise not_supported(f"model source s3 with {engine}", helps=("copy the weights to a claim: kind: pvc",))
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if source.secret is not None else ()
        return ModelAccess(
            path,
            env=(*(Env(k, secret=source.secret, secret_key=k) for k in keys), *env),
            args=(arg("--load-format", "runai_streamer"),),
            uri=path,
        )
    if (minor := int(platform.kubernetes_version.split(".")[1])) < 33:
        raise not_supported(
            f"an OCI image volume on Kubernetes 1.{minor}", helps=("image volumes need 1.33 or later; use a claim",)
        )
    reference = path.removeprefix("oci://")
    if ":" not in reference.rsplit("/", 1)[-1] or reference.endswith(":latest"):
        raise refused("bad-image", f"{path[:60]!r} is not pinned", "name a tag that is not latest, or a digest")
    return ModelAccess(
        MODELS,
        ({"name": "models", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}},),
        ({"name": "models", "mountPath": MODELS, "readOnly": True},),
        tuple(env),
        uri=f"oci://{reference}",
    )


def _inside(path: str, what: str) -> str:
    """A relative path that stays inside its volume."""
    if path == "":
        return path
    path = plain(path, what).strip("/")
    if ".." in path.split("/"):
        raise refused("model-source", f"{what} {path[:60]!r} leaves its volume", "remove the ..")
    return path
