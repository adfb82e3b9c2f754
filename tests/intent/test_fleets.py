"""The fleets that ship: loadable, priced with source and date, and true to the GPU catalogue."""

from __future__ import annotations

import re

import pytest

from planner.catalog.gpus import find_gpu
from planner.data import shipped
from planner.documents import load_yaml, parse_yaml, read_as
from planner.errors import UserError
from planner.intent.fleet import Fleet
from planner.perf.deployment import hardware

NAMES = ("a100-80gb", "b200", "gb200", "h100", "h200", "l40s", "mi300x", "mixed")


def fleet(name: str) -> Fleet:
    return read_as(Fleet, load_yaml(shipped("fleets") / f"{name}.yaml", what="fleet"), what="a fleet")


def test_the_shipped_fleets_are_these() -> None:
    assert tuple(sorted(p.stem for p in shipped("fleets").glob("*.yaml"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_fleet_is_complete(name: str) -> None:
    found = fleet(name)
    assert found.name == name
    for pool in found.pools:
        gpu = find_gpu(pool.gpu)
        assert gpu.status == "shipping"
        assert pool.gpus_per_node == gpu.node.gpus
        assert pool.price is not None
        assert pool.price.per_gpu_hour > 0
        assert pool.price.source
        assert re.match(r"^20\d\d-\d\d(-\d\d)?$", pool.price.as_of)
        assert gpu.kubernetes is not None
        assert gpu.kubernetes.label_key is not None
        assert pool.kubernetes.node_selector[gpu.kubernetes.label_key] == gpu.kubernetes.label_value
        assert pool.kubernetes.gpu_resource == gpu.kubernetes.resource
        assert pool.rdma == (pool.kubernetes.rdma_resource is not None), "a pool with RDMA names its resource"
        assert pool.nic == gpu.node.nic
        assert hardware(gpu, nic_bytes_per_s=pool.nic, rdma=pool.rdma).memory_bytes > 0


def test_h100_is_four_nodes_of_eight() -> None:
    (pool,) = fleet("h100").pools
    assert (pool.gpu, pool.nodes, pool.gpus_per_node, pool.reserved_nodes) == ("h100-sxm", 4, 8, 0)


def test_gb200_is_one_rack_in_one_domain() -> None:
    (pool,) = fleet("gb200").pools
    assert pool.nodes * (pool.gpus_per_node or 0) == 72 == hardware(find_gpu(pool.gpu)).scale_up_gpus


def test_mixed_has_several_gpus() -> None:
    assert len({p.gpu for p in fleet("mixed").pools}) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: f\npools: []\n", "fleet 'f' has no pools"),
        ("name: f\npools:\n  - {name: a, gpu: h100, nodes: 0}\n", "nodes"),
        (
            "name: f\npools:\n  - {name: a, gpu: h100, nodes: 1, reserved_nodes: 1}\n",
            "every node of fleet",
        ),
        ("name: f\npools:\n  - {name: a, gpu: h100, nodes: 1, reserved_nodes: 2}\n", "reserves 2 of 1 nodes"),
        (
            "name: f\npools: [{name: a, gpu: h100, nodes: 1}, {name: a, gpu: l4, nodes: 1}]",
            "two pools are called 'a'",
        ),
        ("name: f\npools:\n  - {name: a, gpu: h100, nodes: 1, nic: 400}\n", "bare number"),
        ("name: f\npools:\n  - {name: a, gpu: h100, nodes: 1, override: {hbm: 3TB/s}}\n", "unknown key 'hbm'"),
    ],
)
def test_a_bad_fleet_is_one_clear_error(text: str, message: str) -> None:
    with pytest.raises(UserError) as e:
        read_as(Fleet, parse_yaml(text, "fleet.yaml"), what="a fleet")
    assert message in e.value.render()
