"""Measured corrections by name: which of them a deployment can use.

A calibration carries what its constants left over, as log(measured / predicted) of a release, of a model on a GPU, of
a prompt length, and of a configuration (`planner.calibrate.anchors` says how they are estimated and shrunk). They add
up; what was never measured adds nothing.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import replace

from planner.perf.calibration import Calibration, engine_family
from planner.perf.deployment import Deployment

_SUFFIX = re.compile(r"-(instruct|chat|hf|fp8|nvfp4|0528|it|v0\.1|awq)(?=-|$)")
_SAME = {"deepseek-r1": "deepseek-v3", "deepseek-v3.1": "deepseek-v3", "llama-3.3-70b": "llama-3.1-70b"}


@functools.lru_cache(maxsize=4096)
def canonical(model: str) -> str:
    """One name per set of weight shapes: DeepSeek's R1 and V3 are one model, instruct and base versions too.

    >>> canonical("deepseek-ai/DeepSeek-R1-0528"), canonical("meta-llama/Meta-Llama-3.1-70B")
    ('deepseek-v3', 'llama-3.1-70b')
    """
    name = model.lower().split("/")[-1].split(" ")[0].replace("meta-llama", "llama")
    name = _SUFFIX.sub("", _SUFFIX.sub("", name))
    return _SAME.get(name, name)


def shape_key(*, tp: int, pp: int = 1, dp: int = 1, ep: bool = False) -> str:
    """A layout as configurations name it."""
    return f"tp{tp}pp{pp}dp{dp}{'ep' if ep else ''}"


def configuration_name(
    *, model: str, gpu: str, engine: str, shape: str, precision: str, speculation: bool = False
) -> str:
    """model x GPU x engine x parallelism x precision: what cross-validation leaves out as one."""
    return "/".join((canonical(model), gpu, engine, shape, precision, "mtp" if speculation else "plain"))


def configuration_key(name: str) -> str:
    """The correction of one configuration."""
    return f"configuration:{name}"


def release_key(*, model: str, precision: str, release: str) -> str:
    """Model and precision on one release of an engine (or, where it is not known, in one month)."""
    return f"release:{canonical(model)}/{precision}/{release or 'unknown'}"


def family_key(*, model: str, gpu: str, precision: str) -> str:
    """Model and precision on one GPU, whatever the layout."""
    return f"family:{canonical(model)}/{gpu}/{precision}"


def prompt_key(*, model: str, prompt_tokens: float) -> str:
    """Model at one octave of prompt lengths."""
    return f"prompt:{canonical(model)}/{2 ** round(math.log2(max(prompt_tokens, 1.0)))}"


def deployment_keys(d: Deployment, *, prompt_tokens: float | None = None) -> tuple[str, ...]:
    """Names of the corrections that apply to a deployment, general ones first."""
    model, gpu = d.arch.name, d.hardware.gpu_id
    s = d.shape
    name = configuration_name(
        model=model,
        gpu=gpu,
        engine=engine_family(d.engine),
        shape=shape_key(tp=s.tp, pp=s.pp, dp=s.dp, ep=s.ep),
        precision=d.precision,
    )
    return (
        release_key(model=model, precision=d.precision, release=d.engine_version),
        family_key(model=model, gpu=gpu, precision=d.precision),
        *((prompt_key(model=model, prompt_tokens=prompt_tokens),) if prompt_tokens else ()),
        configuration_key(name),
    )


def anchored(calib: Calibration, d: Deployment, *, prompt_tokens: float | None = None) -> Calibration:
    """The calibration with this deployment's measured corrections on every step time; as it is where there are none."""
    gain = calib.anchors.sum("tpot", deployment_keys(d, prompt_tokens=prompt_tokens))
    if gain == 0.0:
        return calib
    return replace(calib, constants=replace(calib.constants, pace_ratio=calib.constants.pace_ratio * math.exp(gain)))


def anchored_rows(calib: Calibration, d: Deployment) -> int:
    """Measurements of this very configuration behind the correction."""
    return calib.anchors.rows("tpot", deployment_keys(d)[-1])
