"""How long prompts wait for the prefill of others when C clients take turns (a closed loop).

Every client sends a prompt, reads its answer, sends the next; the prompts' prefills queue first come, first served.
All clients start at once, so the first wave waits C/2 prefills on average; the answers' lengths then spread the
clients out. The mean and 99th percentile over the run depend on two numbers only, C and think time over C prefills,
so they are simulated once (`planner.calibrate.waves`) and looked up here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.data import catalog_data
from planner.documents import Strict, load_yaml, read_as

Array = NDArray[np.float64]


class WaveFile(Strict):
    """The table: waits in units of one prefill."""

    source: str
    rounds: int
    length_spread: float
    clients: tuple[int, ...]
    think: tuple[float, ...]
    """Think time over (clients x prefill time)."""
    mean: tuple[tuple[float, ...], ...]
    p99: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Waves:
    """The table as arrays, in logarithms of both axes."""

    log_clients: Array
    log_think: Array
    mean: Array
    p99: Array

    def __call__(self, *, clients: Array, think_ratio: Array, p99: bool = False) -> Array:
        """Wait in units of one prefill, bilinear in the logarithms; per client beyond the table's most."""
        most = float(np.exp(self.log_clients[-1]))
        x = np.log(np.clip(clients, 1.0, most))
        y = np.log(np.clip(think_ratio, np.exp(self.log_think[0]), np.exp(self.log_think[-1])))
        i = np.clip(np.searchsorted(self.log_clients, x, side="right") - 1, 0, len(self.log_clients) - 2)
        j = np.clip(np.searchsorted(self.log_think, y, side="right") - 1, 0, len(self.log_think) - 2)
        u = (x - self.log_clients[i]) / (self.log_clients[i + 1] - self.log_clients[i])
        v = (y - self.log_think[j]) / (self.log_think[j + 1] - self.log_think[j])
        t = self.p99 if p99 else self.mean
        # Waits per client are nearly flat in the number of clients: interpolate those.
        per = (1 - u) * ((1 - v) * t[i, j] + v * t[i, j + 1]) + u * ((1 - v) * t[i + 1, j] + v * t[i + 1, j + 1])
        return np.asarray(per * np.maximum(clients, 1.0))


@functools.cache
def waves() -> Waves:
    """The shipped table."""
    f = read_as(
        WaveFile, load_yaml(catalog_data("efficiency/closed_loop_wait.yaml"), what="wait table"), what="a wait table"
    )
    return Waves(np.log(np.array(f.clients, float)), np.log(np.array(f.think)), np.array(f.mean), np.array(f.p99))
