"""Engine descriptions: complete, consistent, and the same as the engines' own parsers say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.catalog.engines import (
    DEFAULT_VERSION,
    DYNAMO_CARRIES,
    ENGINES,
    engine_versions,
    find_engine,
    find_router,
)
from planner.data import catalog_data
from planner.errors import UserError

ROOT = Path(__file__).resolve().parent.parent.parent


def test_defaults_and_carried_versions_exist() -> None:
    for engine in ENGINES:
        assert find_engine(engine).version == DEFAULT_VERSION[engine]
    for engine, version in DYNAMO_CARRIES.items():
        assert find_engine(engine, version).carried_by == "dynamo 1.6.1"


def test_tables_are_complete() -> None:
    assert len(find_engine("vllm").flag_table()) == 320  # 321 arguments, one of them the positional model
    assert len(find_engine("sglang").flag_table()) == 531
    assert len(find_router("smg").flag_table()) == 212
    assert len(find_router("vllm-router").flag_table()) > 60


def test_flags_carry_their_facts() -> None:
    table = find_engine("vllm").flag_table()
    assert table["--gpu-memory-utilization"].kind == "float"
    assert table["--gpu-memory-utilization"].default == 0.92
    assert "--no-enable-prefix-caching" in table["--enable-prefix-caching"].negations
    assert "pplx" in (table["--all2all-backend"].choices or ())
    assert table["--max-num-batched-tokens"].kind == "human_int"
    assert table["--kv-transfer-config"].kind == "json"
    sglang = find_engine("sglang").flag_table()
    assert sglang["--tp-size"].aliases == ("--tensor-parallel-size",)
    assert "fp8" not in (sglang["--kv-cache-dtype"].choices or ())
    assert sglang["--enable-dp-attention"].deprecated
    assert not sglang["--lora-paths"].yaml


def test_an_allow_list_is_all_there_is() -> None:
    table = find_engine("vllm", "0.31.0").flag_table()
    assert "--disaggregation-mode" in table
    assert "--shutdown-timeout" not in table


@pytest.mark.parametrize("key", sorted(engine_versions()), ids="-".join)
def test_description(key: tuple[str, str]) -> None:
    e = engine_versions()[key]
    assert e.source
    if e.predicts_only:
        with pytest.raises(UserError, match="not supported yet"):
            e.flag_table()
        return
    assert e.flags_source
    assert e.command
    for image in e.images.values():
        assert "latest" not in image
        assert ":" in image.rsplit("/", 1)[-1]
    for edges in e.bucket_edges.values():
        assert list(edges) == sorted(set(edges))
    for flag in e.bucket_flags.values():
        assert flag in e.flag_table()
    assert set(e.bucket_flags) | set(e.bucket_families) <= set(e.metrics)


def test_unknown_engine_has_near_misses() -> None:
    with pytest.raises(UserError) as e:
        find_engine("vlm")
    assert "write vllm" in str(e.value)
    with pytest.raises(UserError, match="not in the catalogue"):
        find_engine("vllm", "0.1")


def test_tables_come_from_the_extracts(shared: Path, tmp_path: Path) -> None:
    """Generating again changes nothing."""
    code = (
        "import sys, pathlib; sys.path.insert(0, 'benchmarks'); import make_flag_tables as m;"
        f"m.TARGET = pathlib.Path({str(tmp_path)!r}); m.main(pathlib.Path({str(shared / 'engines')!r}))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    made = sorted(p.name for p in tmp_path.iterdir())
    assert made == ["sglang-0.5.23.flags.json", "smg-1.13.0.flags.json", "vllm-0.33.0.flags.json"]
    for name in made:
        assert (tmp_path / name).read_bytes() == catalog_data("engines").joinpath(name).read_bytes()


def test_one_flag_per_line() -> None:
    """A new version's diff is a list of changed flags."""
    for path in sorted(catalog_data("engines").glob("*.flags.json")):
        lines = path.read_text().splitlines()
        assert len(lines) == len(json.loads(path.read_text())["flags"]) + 2
