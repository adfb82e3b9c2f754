"""A Dask cluster of two worker processes gives the same table as the local run, also when one of them dies."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from planner.errors import UserError
from planner.intent.resolve import Words
from planner.sweep import points, run_sweep
from planner.sweep.run import Base, base_words

distributed = pytest.importorskip("distributed", reason="the extra `distributed` is not installed")
ROOT = Path(__file__).resolve().parent.parent.parent
GRID = points(["rate=2/s,5/s,10/s", "slo.itl=1ms,40ms,60ms"])


def base() -> Base:
    return Base("fleets/h100.yaml", None, None, base_words(Words(input="500", output="100")), verify=False)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    os.chdir(ROOT)
    table = tmp_path_factory.mktemp("local") / "t.csv"
    run_sweep(base(), GRID, table, workers=1)
    return table.read_bytes()


@pytest.mark.parametrize("kill", [False, True], ids=["two workers", "one dies"])
def test_same_table(kill: bool, local: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    table = tmp_path / "t.csv"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        if kill:
            with distributed.Client(cluster, set_as_default=False) as client:
                pids = sorted(client.run(os.getpid).values())

            def end_one() -> None:
                # As soon as the first point is done, so that the dying worker has work.
                log = table.with_name("t.csv.points.jsonl")
                for _ in range(600):
                    if log.is_file() and log.read_text():
                        break
                    time.sleep(0.05)
                os.kill(pids[0], signal.SIGKILL)

            killer = threading.Thread(target=end_one)
            killer.start()
        run_sweep(base(), GRID, table, scheduler=cluster.scheduler_address)
        if kill:
            killer.join()
    assert table.read_bytes() == local


def test_no_scheduler(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no Dask scheduler answers"):
        run_sweep(base(), GRID, tmp_path / "t.csv", scheduler="tcp://127.0.0.1:1")
