"""The optimum equals brute force, objective and tie-breaks (benchmarks/optimality.py has 200 instances)."""

import pytest
from optimality import compare


@pytest.mark.parametrize("start", range(40, 100, 20))
def test_same_optimum_as_brute_force(start: int) -> None:
    found = [compare(seed) for seed in range(start, start + 20)]
    assert [f for f in found if f not in ("same", "no plan")] == []
    assert "same" in found
