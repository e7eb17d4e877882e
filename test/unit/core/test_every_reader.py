"""Whatever file a user names, a pipe, a device or gigabytes in its place are one line, at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.hostile import SPECIAL, laughs
from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.errors import UserError
from vla_ros.data.episodes.store import read_records, read_run
from vla_ros.policies.lerobot.checkpoint import CONFIG, read_features
from vla_ros.policies.remote.names import names_of
from vla_ros.policies.replay import rate_of, read_actions
from vla_ros.ros.bringup import contract
from vla_ros.ros.bringup.graph_file import GraphSpec, read_yaml
from vla_ros.runtime.control.requests import read_requests
from vla_ros.sim.libero.assets import categories, read_config
from vla_ros.sim.libero.suites import language_of

Reader = Callable[[Path], object]


def lerobot(path: Path) -> object:
    """Of a folder whose other files are there."""
    for name in ("model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json"):
        (path.parent / name).write_text("{}")
    return read_features(path.parent)


READERS: dict[str, tuple[str, Reader]] = {
    "a contract": ("c.yaml", contract.read_contract),
    "a parameter file": ("p.yaml", contract.robot_parameters),
    "a graph file": ("g.up.yaml", lambda path: GraphSpec.load(path)),
    "a list of names": ("n.yaml", lambda path: names_of(str(path))),
    "recorded actions": ("a.npz", lambda path: read_actions(path, END_EFFECTOR_DELTA)),
    "their rate": ("a.npz", rate_of),
    "requests": ("r.json", read_requests),
    "a LeRobot policy": (CONFIG, lerobot),
    "LIBERO's configuration": ("config.yaml", read_config),
    "a task of LIBERO": ("t.bddl", categories),
    "a task's instruction": ("t.bddl", language_of),
    "an evaluation": ("run.json", lambda path: read_run(path.parent)),
    "its episodes": ("episodes.jsonl", lambda path: read_records(path.parent)),
    "YAML": ("x.yaml", read_yaml),
}


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("reader", READERS)
def test_a_special_file_is_one_line(tmp_path, kind, reader):
    name, read = READERS[reader]
    SPECIAL[kind](tmp_path / name)
    with pytest.raises((UserError, ValueError)) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("reader", [name for name, (file, _) in READERS.items() if "yaml" in file])
def test_a_bomb_of_aliases_is_one_line(tmp_path, reader):
    name, read = READERS[reader]
    (tmp_path / name).write_text(laughs())
    with pytest.raises((UserError, ValueError), match="too much to be read") as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)
