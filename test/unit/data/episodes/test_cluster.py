"""Episodes on a Ray cluster of two nodes, which are processes of this machine."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mujoco")

from support.ray_cluster import Cluster, ray, two_nodes
from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.data.episodes import cluster
from vla_ros.data.episodes.play import RunnerFailed
from vla_ros.data.episodes.store import read_records

FEW = ["eval", "--no-ros", "--policy", "scripted", "--tasks", "reach_red_cube", "reach_blue_cube",
       "--episodes", "2", "--image-size", "64", "--max-steps", "40"]  # fmt: skip


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with two_nodes(monkeypatch, sys.modules[__name__]) as made:
        yield made


def rows(folder: Path) -> list[tuple[object, ...]]:
    """What does not depend on the clock of an evaluation's records."""
    found = read_records(folder)
    assert not any(record.error for record in found)
    return sorted(
        (r.job.task, r.job.initial_state, r.success, r.steps, r.action_digest) for r in found
    )


def test_the_same_rows_as_processes_of_this_machine(two: Cluster, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    assert main([*FEW, "--workers", "2", "--out", str(here)]) == 0
    assert main([*FEW, "--ray", two.address, "--out", str(there)]) == 0
    assert len(rows(there)) == 4 and rows(there) == rows(here)
    assert not ray.is_initialized(), "nothing is left open"


class Slow:
    """A station that says where it was, and takes its time."""

    def play(self, order: int) -> tuple[int, str]:
        time.sleep(0.5)
        return order, str(ray.get_runtime_context().get_node_id())


def test_a_node_that_dies_costs_its_unfinished_jobs_alone(two: Cluster) -> None:
    second = two.list_all_nodes()[-1]
    killed = threading.Event()
    found: list[tuple[int, Any]] = []
    for order, result in cluster.results(two.address, Slow, list(range(10))):
        found.append((order, result))
        if len(found) == 4 and not killed.is_set():
            two.remove_node(second, allow_graceful=False)
            killed.set()
    assert sorted(order for order, _ in found) == list(range(10)), "each once"
    assert all(result[0] == order for order, result in found)
    assert len({result[1] for _, result in found}) == 2, "both took part"
    assert len({result[1] for _, result in found[-4:]}) == 1, "one is left"


class Deadly:
    """A station whose process dies over job 1."""

    def play(self, order: int) -> int:
        if order == 1:
            os._exit(1)
        return order


class Unable:
    def play(self, order: int) -> int:
        raise RunnerFailed("the policy cannot be loaded\nfor a reason")


def test_a_job_that_takes_its_process_with_it_is_lost_and_the_others_go_on(two: Cluster) -> None:
    found = dict(cluster.results(two.address, Deadly, [0, 1, 2]))
    assert (found[0], found[2]) == (0, 2)
    assert isinstance(found[1], cluster.LostJob)
    assert found[1].text.startswith("3 processes of a cluster died over it: ")


def test_what_cannot_be_played_ends_it(two: Cluster) -> None:
    with pytest.raises(RunnerFailed, match="the policy cannot be loaded"):
        list(cluster.results(two.address, Unable, [0, 1, 2]))


@pytest.mark.parametrize("address", ["", "local", "127.0.0.1:9"])
def test_where_no_cluster_is_one_line_names_what_to_do(address: str) -> None:
    with pytest.raises(UserError, match="ray start --head") as refused:
        list(cluster.results(address, Slow, [1]))
    assert "\n" not in str(refused.value)
