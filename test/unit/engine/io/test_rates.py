"""The rate of a policy's data, from the files that people's trainers write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import SHIPPED_FOLDER
from vla_ros.engine.io.hub import WANTED
from vla_ros.engine.io.rates import action_rate_of, write_action_rate
from vla_ros.engine.io.weights import sha256_of, sha256_of_folder

#: What LeRobot 0.6.1 writes, but for what concerns no rate.
TRAINED = {"dataset": {"repo_id": "me/cubes", "root": None}, "env": None, "policy": {"type": "act"}}
CARD = """## Training Dataset

- **Repository:** [me/cubes](https://huggingface.co/datasets/me/cubes)
- **Episodes:** 50
- **Frames:** 22500
- **Frame rate:** 30 FPS
"""


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "of_lerobot"))
    write(tmp_path, "config.json", {"type": "act"})
    return tmp_path


def trained(**other: Any) -> dict[str, Any]:
    return {**TRAINED, **other}


@pytest.mark.parametrize(
    ("files", "hz"),
    [
        ({}, 0.0),
        ({"config.json": {"type": "act", "action_rate_hz": 12.5}}, 12.5),
        ({"train_config.json": TRAINED}, 0.0),
        ({"meta/info.json": {"fps": 15, "codebase_version": "v3.0"}}, 15.0),
        ({"train_config.json": TRAINED, "README.md": CARD}, 30.0),
        ({"train_config.json": trained(env={"type": "aloha", "fps": 50})}, 50.0),
        # of the data set, where LeRobot before 0.6 and since downloads it to
        ({"train_config.json": TRAINED, "of_lerobot/me/cubes/meta/info.json": {"fps": 5}}, 5.0),
        (
            {
                "train_config.json": TRAINED,
                "of_lerobot/hub/datasets--me--cubes/snapshots/0a/meta/info.json": {"fps": 8},
            },
            8.0,
        ),
        # the data are asked before the simulation that it was evaluated in
        ({"train_config.json": trained(env={"fps": 30}), "meta/info.json": {"fps": 10}}, 10.0),
        # LIBERO steps at 20 Hz, whatever LeRobot's defaults and its data sets' files say
        ({"train_config.json": trained(env={"type": "libero", "fps": 30})}, 20.0),
        (
            {
                "train_config.json": trained(dataset={"repo_id": "HuggingFaceVLA/libero"}),
                "meta/info.json": {"fps": 10},
            },
            20.0,
        ),
        # a stranger's files that say nothing usable
        ({"meta/info.json": {"fps": "fast"}, "train_config.json": "{"}, 0.0),
        ({"meta/info.json": {"fps": -3}, "README.md": "- **Frame rate:** . FPS"}, 0.0),
        ({"train_config.json": trained(dataset={"repo_id": "../../x"}, env=[1])}, 0.0),
        ({"train_config.json": trained(dataset=[{"repo_id": "a/b"}])}, 0.0),
    ],
)  # fmt: skip
def test_the_first_of_its_files_that_says_a_rate(folder: Path, files: dict, hz: float) -> None:
    for name, content in files.items():
        write(folder, name, content)
    assert action_rate_of(folder) == hz


def test_the_data_set_that_it_was_trained_from(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "recordings"
    write(folder, "train_config.json", trained(dataset={"repo_id": "x/y", "root": str(elsewhere)}))
    assert action_rate_of(folder) == 0.0  # it is no longer there
    write(elsewhere, "meta/info.json", {"fps": 25})
    assert action_rate_of(folder) == 25.0


def test_its_own_field_says_a_rate_or_is_refused(folder: Path) -> None:
    write(folder, "config.json", {"action_rate_hz": "20"})
    with pytest.raises(CheckpointError, match=r"config\.json: action_rate_hz is '20': wanted a"):
        action_rate_of(folder)


def test_a_rate_that_is_written_down_makes_no_other_policy(folder: Path) -> None:
    """Verdicts, certificates and evaluations go by the hash."""
    config = SHIPPED_FOLDER / "tabletop" / "config.json"
    plain = {k: v for k, v in json.loads(config.read_text()).items() if k != "action_rate_hz"}
    write(folder, "config.json", json.dumps(plain, indent=1) + "\n")
    before = sha256_of(folder, ()), sha256_of_folder(folder)
    write_action_rate(folder, 12.5)
    assert action_rate_of(folder) == 12.5
    assert (sha256_of(folder, ()), sha256_of_folder(folder)) == before
    write_action_rate(folder, 20.0)
    assert (folder / "config.json").read_text() == config.read_text()
    write(folder, "config.json", (folder / "config.json").read_text().replace("7", "8"))
    assert sha256_of(folder, ()) != before[0]


def test_what_says_a_rate_is_downloaded() -> None:
    assert {"*.json", "README.md"} <= set(WANTED)


@pytest.mark.parametrize(
    "name", sorted(p.parent.name for p in SHIPPED_FOLDER.glob("*/config.json"))
)
def test_shipped_policies_say_theirs(name: str) -> None:
    assert action_rate_of(SHIPPED_FOLDER / name) == 20.0
