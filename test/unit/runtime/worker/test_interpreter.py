"""A worker in another interpreter: it has its own packages and, of ours, vla_ros alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.plugins import offer
from support.processes import alive
from unit.runtime.worker.bench import MakeBench
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicyRefused, PolicySpec
from vla_ros.policies.load import VARIABLE, worker_python
from vla_ros.runtime.worker.wire import WorkerLost, WorkerReady

TELLS = """
import os, sys
import numpy as np
from vla_ros.core import Inference, PolicyInfo
from vla_ros.policies.base import finish

class make:
    info = PolicyInfo(name="teller")
    def __init__(self, spec):
        import importlib.util
        self.there = [importlib.util.find_spec(n) is not None for n in ("torch", "rclpy", "yaml")]
    def reset(self, instruction): pass
    def step(self, observation, timeline, clock):
        action = np.zeros((1, 7))
        action[0, :3] = self.there
        action[0, 3] = observation.image[0, 0, 0]
        return Inference(observation.stamp_ns, action, finish(timeline, clock))
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    """An environment with numpy and a policy of its own, and nothing else of ours."""
    folder = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for path in Path(np.__file__).parents[1].glob("numpy*"):
        (site / path.name).symlink_to(path)
    offer(site, "teller", TELLS)
    return str(folder / "bin" / "python")


def test_a_policy_runs_in_the_interpreter_that_has_it(make_bench: MakeBench, other, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    bench = make_bench(spec=PolicySpec("teller", worker_python=other))
    ready = bench.executor.start(30.0)
    assert ready.info.name == "teller"
    command = Path(f"/proc/{ready.pid}/cmdline").read_bytes().split(b"\0")
    assert command[0].decode() == other
    stamp = bench.ask(value=7)
    inference = bench.result(stamp).inference
    assert inference is not None
    assert inference.actions[0, :4].tolist() == [0, 0, 0, 7]


def test_it_is_replaced_like_any_other_and_ends_with_the_executor(make_bench: MakeBench, other):
    import os
    import signal

    bench = make_bench(spec=PolicySpec("teller", worker_python=other))
    first = bench.executor.start(30.0).pid
    os.kill(first, signal.SIGKILL)
    bench.event(WorkerLost)
    second = bench.event(WorkerReady, 30.0).ready.pid
    assert bench.result(bench.ask()).inference is not None
    assert bench.executor.close(5.0)
    assert not alive(first)
    assert not alive(second)


def test_a_policy_that_it_lacks_is_refused_there(make_bench: MakeBench, other):
    bench = make_bench(spec=PolicySpec("juggler", worker_python=other))
    with pytest.raises(PolicyRefused, match=r"policy is 'juggler': .* offer teller$"):
        bench.executor.start(30.0)


def test_an_interpreter_that_is_not_there_is_refused_in_one_line(make_bench: MakeBench):
    bench = make_bench(spec=PolicySpec("zero", worker_python="/nowhere/python"))
    with pytest.raises(PolicyRefused, match="worker_python is '/nowhere/python': there is no such"):
        bench.executor.start(10.0)


def test_lerobot_without_its_environment_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = PolicySpec("lerobot", engine=EngineOptions("folder"))
    with pytest.raises(PolicyRefused, match="vla-ros lerobot setup"):
        worker_python(spec)
    python = tmp_path / "vla_ros" / "lerobot" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert worker_python(spec) == str(python)
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert worker_python(spec) == sys.executable
    assert worker_python(PolicySpec("zero")) is None
