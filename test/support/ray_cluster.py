"""A Ray cluster of nodes that are processes of this machine, for tests that have ray."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

ray = pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")

from ray.cluster_utils import Cluster


@contextmanager
def two_nodes(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Iterator[Cluster]:
    """Two nodes of a CPU each, the first the head; they cannot import ``module``, the test's."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.cloudpickle.register_pickle_by_value(module)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        made.wait_for_nodes()
        yield made
    finally:
        ray.cloudpickle.unregister_pickle_by_value(module)
        if ray.is_initialized():
            ray.shutdown()
        made.shutdown()
