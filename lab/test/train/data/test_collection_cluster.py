"""A collection on a Ray cluster: the same shards as one process makes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mujoco")
pytest.importorskip("h5py", exc_type=ImportError)

from support.ray_cluster import Cluster, two_nodes
from support.train import SIZE
from vla_ros.cli.main import main
from vla_ros_lab.train.collect import collect
from vla_ros_lab.train.demonstrations import digest, shards
from vla_ros_lab.train.options import CollectOptions

REACH = CollectOptions(4, tasks=("reach",), image_size=SIZE, per_shard=1)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with two_nodes(monkeypatch, sys.modules[__name__]) as made:
        yield made


def test_shards_of_a_cluster_are_those_of_one_process(
    two: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    list(collect(REACH, here))
    made = list(collect(REACH, there, ray=two.address))
    assert [one.shards_done for one in made] == [1, 2, 3, 4]
    assert digest(shards(there)) == digest(shards(here))
    assert not list(there.glob("*.part"))
    shards(there)[1].unlink()
    words = ["collect", "--out", str(there), "--demos", "4", "--tasks", "reach"]
    assert main([*words, "--image-size", str(SIZE), "--ray", two.address]) == 2
    assert "holds a collection with per_shard 1: take another" in capsys.readouterr().err
    list(collect(REACH, there, ray=two.address))
    assert digest(shards(there)) == digest(shards(here))
