"""Bursts at a queue's own time scale: exact corners, and the noise that a busy prompt queue adds."""

from __future__ import annotations

import numpy as np
import pytest

from planner.perf.bursts import Arrivals, clustering
from planner.perf.queue import birth_death


@pytest.mark.parametrize("cv", [0.0, 0.5, 2.0, 4.0])
def test_clustering_gives_the_variance_of_infinitely_many_servers(cv: float) -> None:
    # GI/M/infinity simulated: arrivals by gamma gaps (equal ones for CV 0), services of mean 1.
    rng = np.random.default_rng(7)
    rate, count = 3.0, 120_000
    gaps = np.full(count, 1 / rate) if cv == 0 else rng.gamma(1 / cv**2, cv**2 / rate, count)
    starts = np.cumsum(gaps)
    times = np.concatenate([starts, starts + rng.exponential(1.0, count)])
    order = np.argsort(times, kind="stable")
    n = np.cumsum(np.repeat([1, -1], count)[order])[:-1]
    took = np.diff(times[order])
    keep = (times[order][:-1] > 20) & (times[order][:-1] < starts[-1])
    mean = float(n[keep] @ took[keep] / took[keep].sum())
    var = float((n[keep] - mean) ** 2 @ took[keep] / took[keep].sum())
    assert var / mean == pytest.approx(clustering(cv=cv, rate_per_s=rate, decay_per_s=1.0), rel=0.06)


def test_clustering_is_that_of_the_time_scale() -> None:
    found = [clustering(cv=3.0, rate_per_s=5.0, decay_per_s=mu) for mu in (1e-9, 0.1, 1.0, 10.0, 1e4)]
    assert found[0] == pytest.approx(5.0)  # (1 + CV^2) / 2
    assert found == sorted(found, reverse=True)
    assert found[-1] < 1.7
    assert clustering(cv=1.0, rate_per_s=5.0, decay_per_s=0.3) == 1.0
    assert clustering(cv=0.5, rate_per_s=5.0, decay_per_s=1e-9) == pytest.approx(0.625)


def test_streams_add_up() -> None:
    mixed = Arrivals((1.0, 3.0), (0.75, 0.25))
    alone = 2 * clustering(cv=3.0, rate_per_s=2.0, decay_per_s=0.5) - 1
    assert mixed.variability(8.0, 0.5) == pytest.approx(0.75 + 0.25 * alone)
    assert mixed.variability(8.0, 0.5, members=[1]) == pytest.approx(alone)
    assert mixed.queueing(8.0, mean_s=0.05, square_s2=0.005, members=[0]) == 1.0


def test_a_wider_batch_keeps_its_load() -> None:
    mu = np.arange(1, 400) / (1 + 0.004 * np.arange(1, 400))
    for bursty in (0.0, 0.5):
        runs = [birth_death(rate_per_s=60.0, departures_per_s=mu, dispersion=d, bursty=bursty) for d in (1.0, 3.0, 9.0)]
        served = [float(r.probabilities[1:] @ mu) for r in runs]
        assert served == pytest.approx([60.0] * 3, rel=1e-3)
        assert runs[0].variance < runs[1].variance < runs[2].variance
        # Service slows with the batch, so a wider one is longer on average.
        assert runs[0].mean < runs[1].mean < runs[2].mean
