"""The GPU catalogue: complete, sourced, dense rates only, and found by every name that people write."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import yaml

from planner.catalog.gpus import aliases, find_gpu, gpus, squeeze
from planner.data import catalog_data
from planner.errors import UserError
from planner.intent.fleet import GpuOverride
from planner.perf.deployment import hardware

PARTS = ("bf16", "fp8", "int8", "fp4")

NOT_IN_CATALOGUE = {
    "A40", "Arc-B60", "MI250", "RTX 3090", "RTX-3090", "RTX-5070Ti", "RTX-5090", "RTX5090 (PCIe)",
    "Intel(R) Arc Pro(R) B50", "Intel(R) Arc Pro(R) B60", "Intel(R) Arc Pro(R) B70", "NVIDIA RTX PRO 4500 Blackwell",
}  # fmt: skip
"""GPUs that benchmark files name and the catalogue does not hold: refused by name, never taken for another part."""


def test_every_gpu_loads_and_is_named_by_its_file() -> None:
    assert len(gpus()) == 35
    assert list(gpus()) == sorted(gpus())


@pytest.mark.parametrize("gpu_id", sorted(gpus()))
def test_every_figure_has_a_source(gpu_id: str) -> None:
    gpu = gpus()[gpu_id]
    for part in PARTS:
        rate = getattr(gpu, part)
        assert (rate.dense is None) or rate.source, part
        assert rate.dense is not None or not rate.native, f"{part} is native at an unknown rate"
    assert gpu.pcie is None or gpu.pcie_source
    assert gpu.tdp is None or gpu.tdp_source
    text = catalog_data("gpus").joinpath(f"{gpu_id}.yaml").read_text()
    assert gpu.compute_capability is None or f"compute_capability: '{gpu.compute_capability}'  # " in text


@pytest.mark.parametrize("gpu_id", sorted(gpus()))
def test_rates_are_dense_and_consistent(gpu_id: str) -> None:
    """Halving the width doubles the rate or leaves it: a factor of four would be a sparse figure beside a dense one."""
    gpu = gpus()[gpu_id]
    assert gpu.bf16.dense is not None
    if gpu.fp8.native and gpu_id not in ("vr200-nvl72", "mi455x", "gaudi3"):  # fp8 is 4.4, 4 and 1 times bf16 there
        assert gpu.fp8.dense is not None
        assert gpu.fp8.dense / gpu.bf16.dense == pytest.approx(2, rel=0.02)
    reported = gpu.memory.reported
    if reported is not None:
        # Drivers report a few percent less than marketing's decimal figure taken as GiB, never more.
        assert 0.9 * gpu.memory.marketing < reported <= gpu.memory.marketing * 1.074


def test_missing_figures_are_listed_not_filled_in() -> None:
    for gpu in gpus().values():
        assert (gpu.memory.reported is None) == ("memory.reported" in gpu.unverified), gpu.id
    with pytest.raises(UserError, match="nobody has seen yet") as e:
        hardware(find_gpu("mi455x"))
    assert "override: {memory: ...}" in e.value.render()
    assert hardware(find_gpu("mi455x"), override=GpuOverride.model_validate({"memory": "400GB"})).memory_bytes == 400e9


def test_announced_parts_are_marked() -> None:
    assert {g.id for g in gpus().values() if g.status == "announced"} == {"vr200-nvl72", "mi455x"}


def test_int8_is_not_native_where_its_rate_was_cut() -> None:
    for gpu_id in ("b300-sxm", "gb300-nvl72"):
        gpu = gpus()[gpu_id]
        assert not gpu.int8.native
        assert hardware(gpu).peak("int8") is None
        assert hardware(gpu).peak("fp4") == gpu.fp4.dense


def test_architectures_are_those_that_calibrations_are_keyed_by() -> None:
    found = {g.arch for g in gpus().values() if g.vendor in ("nvidia", "amd")}
    assert found == {"Ampere", "Ada", "Hopper", "Blackwell", "Rubin", "CDNA2", "CDNA3", "CDNA4", "CDNA5"}


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("H100", "h100-sxm"),
        ("H100-SXM", "h100-sxm"),
        ("NVIDIA-H100-80GB-HBM3", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("H100-80GB", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("A100", "a100-80-sxm"),
        ("A100-PCIe-80GB", "a100-80-pcie"),
        ("A100-SXM-40GB", "a100-40-sxm"),
        ("B200", "b200-sxm"),
        ("b200_sxm", "b200-sxm"),
        ("gb200", "gb200-nvl72"),
        ("NVIDIA-GB300", "gb300-nvl72"),
        ("MI300X", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("74a1", "mi300x"),
        ("L40S", "l40s"),
        ("RTX 4090", "rtx-4090"),
        ("Trillium", "tpu-v6e"),
    ],
)
def test_names_as_people_write_them(name: str, gpu_id: str) -> None:
    assert find_gpu(name).id == gpu_id


def test_no_name_means_two_gpus() -> None:
    table = yaml.safe_load(catalog_data("gpu_aliases.yaml").read_text())
    owner: dict[str, str] = {squeeze(g): g for g in gpus()}
    for gpu_id, names in table.items():
        for name in names:
            assert owner.setdefault(squeeze(name), gpu_id) == gpu_id, name
    assert set(table) == set(gpus())


def test_labels_that_nodes_report_are_names_too() -> None:
    for gpu in gpus().values():
        if gpu.kubernetes is not None and gpu.kubernetes.label_value is not None and gpu.id != "mi250x":
            assert aliases()[squeeze(gpu.kubernetes.label_value)] == gpu.id


def test_unknown_gpu_is_an_error_with_near_misses() -> None:
    with pytest.raises(UserError) as e:
        find_gpu("h100-smx")
    assert "write h100-sxm" in e.value.render()
    for name in sorted(NOT_IN_CATALOGUE):
        with pytest.raises(UserError):
            find_gpu(name)


def test_agrees_with_the_reference_table(shared: Path) -> None:
    table = {g["id"]: g for g in yaml.safe_load((shared / "facts/gpus.yaml").read_text())["gpus"]}
    assert set(table) == set(gpus())
    for gpu_id, gpu in gpus().items():
        fact = table[gpu_id]
        assert (gpu.name, gpu.vendor, gpu.status) == (fact["name"], fact["vendor"], fact["status"])
        assert gpu.compute_capability == fact["compute_capability"]
        mib = fact["memory"]["reported_mib"]
        assert gpu.memory.reported == (None if mib is None else mib * 2**20)
        assert gpu.memory.marketing == pytest.approx(fact["memory"]["marketing_gb"] * 1e9)
        assert gpu.memory.bandwidth == pytest.approx(fact["memory_bandwidth_tbps"] * 1e12)
        for part in PARTS:
            rate, dense = getattr(gpu, part), fact["dense_tflops"][part]
            assert (rate.dense is None) == (dense is None)
            assert rate.dense is None or rate.dense == pytest.approx(dense * 1e12)
            assert rate.native == bool(fact["native"][part])
        link = fact["interconnect"]
        one_way = link["unidirectional_gbps_per_gpu"]
        assert gpu.scale_up.bandwidth == (None if one_way is None else pytest.approx(one_way * 1e9))
        assert gpu.scale_up.domain_gpus == link["domain_gpus"]
        assert gpu.pcie == pytest.approx(link["pcie_x16_unidirectional_gbps"] * 1e9)
        assert gpu.node.gpus == fact["node"]["gpus"]
        nic = fact["node"]["nic_gbit_per_gpu"]
        assert gpu.node.nic == (None if nic is None else pytest.approx(nic * 1e9 / 8))
        assert gpu.tdp == fact["tdp_w"]
        assert gpu.kubernetes is not None
        labels = fact["kubernetes"]
        assert (gpu.kubernetes.resource, gpu.kubernetes.label_key, gpu.kubernetes.label_value) == (
            labels["resource"], labels["label_key"], labels["label_value"],
        )  # fmt: skip


def test_power_agrees_with_the_reference_table(shared: Path) -> None:
    names = {"GB200 (per GPU)": "gb200", "GB300 (per GPU)": "gb300", "Arc Pro B60": None}
    with (shared / "facts/tdp.csv").open() as f:
        for row in csv.DictReader(f):
            name = names.get(row["gpu"], row["gpu"])
            if name is not None:
                assert find_gpu(name).tdp == float(row["tdp_w"])


def test_every_gpu_of_the_measurements_is_known_or_refused_by_name(shared: Path) -> None:
    for file, column in (("measurements_open", "gpu"), ("silicon_open", "system"), ("sglang_published", "gpu")):
        with (shared / f"measurements/{file}.csv").open() as f:
            for name in sorted({row[column] for row in csv.DictReader(f)} - NOT_IN_CATALOGUE):
                find_gpu(name)
