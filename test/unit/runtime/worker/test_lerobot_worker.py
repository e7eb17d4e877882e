"""LeRobot's own policies in a worker of LeRobot's interpreter, against LeRobot itself."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.lerobot import interpreter, make_checkpoints, said
from support.lerobot_hostile import HOSTILE, WHILE_LOADING
from unit.runtime.worker.bench import CLOCK, Bench, MakeBench
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import Inference, Instruction, Observation
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicyRefused, PolicySpec
from vla_ros.runtime.worker.wire import PolicyLoaded, WorkerLimits

pytestmark = pytest.mark.slow
TASK = Instruction("push the blue block", 0)
ARM = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_flex", "wrist_roll", "gripper")
SPACE = joints(ActionKind.JOINT_POSITION, ARM, ("gripper",))
MORE = {"act": ("side",)}  # cameras beside main and wrist
LENGTH = {"act": 5, "diffusion": 4, "smolvla": 9}
PATIENT = WorkerLimits(hang_timeout_s=60.0)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    interpreter()
    return make_checkpoints(tmp_path_factory.mktemp("lerobot"))


@pytest.fixture
def copy(checkpoints: Path, tmp_path: Path):
    """A checkpoint to spoil."""

    def make(kind: str) -> Path:
        return Path(shutil.copytree(checkpoints / kind, tmp_path / kind))

    return make


def start(
    make_bench: MakeBench,
    folder: Path,
    camera_map: str = "",
    camera_roles: tuple[str, ...] | None = None,
    **fields,
) -> tuple[Bench, PolicyLoaded]:
    roles = MORE.get(folder.name, ()) if camera_roles is None else camera_roles
    engine = EngineOptions(
        str(folder), camera_roles=roles, seed=5, num_threads=1, camera_map=camera_map
    )
    settings = {"action_space": SPACE, "warmup_count": 1} | fields
    if "action_units" not in fields:
        settings |= {"gripper": "0..1"}  # its statistics are -2 to 1
    spec = PolicySpec("lerobot", engine=engine, **settings)
    bench = make_bench(spec=spec, limits=PATIENT)
    return bench, bench.executor.start(120.0)


def ask(bench: Bench, seen: dict[str, np.ndarray], state: np.ndarray, stamp: int) -> Inference:
    now = CLOCK.steady_ns()
    more = {role: seen[role] for role in ("side",)}
    frame = Observation(
        stamp, now, now, seen["main"], seen["wrist"], state.astype(float), more_images=more
    )
    bench.executor.submit(frame, TASK)
    result = bench.result(stamp, 60.0)
    assert result.inference is not None, result.error_text
    return result.inference


@pytest.mark.parametrize("kind", list(LENGTH))
def test_a_chunk_is_lerobot_s_own_in_the_runtime_s_units(make_bench, checkpoints, kind):
    own = said(checkpoints / kind)
    degrees = ("deg",) * 5 + ("0..10",)
    bench, ready = start(make_bench, checkpoints / kind, state_units=("deg",), action_units=degrees)
    info = ready.info
    assert (info.name, info.decoding, info.chunk_length) == ("lerobot", kind, LENGTH[kind])
    assert (info.cameras, info.state_dim, info.action_space) == (2, 6, SPACE)
    assert info.camera_roles == MORE.get(kind, ())
    assert "main is observation.images.top [48, 64]" in info.conventions
    assert "wrist is observation.images.gripper_wrist" in info.conventions
    assert ready.inference_p50_ms > 0
    state = np.deg2rad(own["state"].astype(float))
    found = ask(bench, own, state, 1000)
    wanted = own["actions"] * np.array([np.pi / 180] * 5 + [0.1])
    wanted[:, 5] = wanted[:, 5].clip(0, 1)
    assert found.actions.shape == (LENGTH[kind], 6)
    assert np.abs(found.actions - wanted).max() <= 1e-5
    assert [name for name, _ in found.timeline.marks] == [
        "queue", "preprocess", "vision", "prefill", "decode",
    ]  # fmt: skip


def test_the_noise_belongs_to_the_stamp(make_bench, checkpoints):
    own = said(checkpoints / "smolvla")
    bench, _ = start(make_bench, checkpoints / "smolvla")
    first, other = (ask(bench, own, own["state"], stamp).actions for stamp in (1000, 2000))
    again = ask(bench, own, own["state"], 1000).actions
    assert (again == first).all()
    assert np.abs(other - first).max() > 1e-3


def rewrite(folder: Path, change, more: bytes = b"") -> None:
    """Rewrite the header of model.safetensors; ``more`` goes after the last tensor."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + size :] + more)


def test_a_name_that_changed_is_refused_and_never_random(make_bench, copy):
    """What another version of transformers does: LeRobot itself prints a line and goes on."""
    folder = copy("smolvla")

    def rename(header: dict) -> None:
        old = "model.vlm_with_expert.vlm.model.vision_model.post_layernorm.weight"
        header[old.replace("vision_model", "tower")] = header.pop(old)

    rewrite(folder, rename)
    with pytest.raises(
        PolicyRefused,
        match=r"^1 weights of the model are not in the file, and"
        r" would be random: .*vision_model.post_layernorm.weight",
    ):
        start(make_bench, folder)


def test_a_weight_that_nothing_uses_is_refused(make_bench, copy):
    folder = copy("act")

    def add(header: dict) -> None:
        end = max(t["data_offsets"][1] for n, t in header.items() if n != "__metadata__")
        extra = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
        header["normalize_inputs.buffer_observation_state.mean"] = extra

    rewrite(folder, add, bytes(4))
    with pytest.raises(PolicyRefused, match="1 weights of the file are not used: normalize_inputs"):
        start(make_bench, folder)


@pytest.mark.parametrize("way", ["class os.system", "an action tokenizer with code"])
def test_a_folder_that_names_code_runs_nothing(make_bench, copy, tmp_path, way):
    folder, canary = copy("act"), tmp_path / "canary"
    spoil, says = HOSTILE[way]
    spoil(folder, canary)
    with pytest.raises(PolicyRefused, match=re.escape(says)):
        start(make_bench, folder)
    assert not canary.exists()


@pytest.mark.parametrize("way", list(WHILE_LOADING))
def test_code_beside_a_tokenizer_is_not_run(make_bench, copy, tmp_path, way):
    """LeRobot's own step opens the tokenizer, and transformers finds the code there."""
    folder, canary = copy("act"), tmp_path / "canary"
    WHILE_LOADING[way](folder, canary)
    with pytest.raises(PolicyRefused, match=r"LeRobot cannot load .* custom code"):
        start(make_bench, folder)
    assert not canary.exists()


def test_another_table_of_positions_is_refused(make_bench, copy):
    folder = copy("smolvla")
    rows = list(range(64))
    (folder / "discrete.json").write_text(json.dumps({"position_ids": rows}))
    start(make_bench, folder)
    rows[9:11] = [8, 9]
    (folder / "discrete.json").write_text(json.dumps({"position_ids": rows}))
    with pytest.raises(PolicyRefused, match=r"2 of 64 position ids .* \(\[9\] 8 is 9, \[10\] 9 is"):
        start(make_bench, folder)


def test_what_does_not_fit_is_refused_with_wanted_and_offered(make_bench, checkpoints):
    with pytest.raises(PolicyRefused, match=r"actions wanted: 2 .* offered: 6 .without names"):
        start(make_bench, checkpoints / "act", action_space=joints(SPACE.kind, ("a", "b")))
    with pytest.raises(PolicyRefused, match="nothing is left for side"):
        start(make_bench, checkpoints / "act", camera_roles=())
    with pytest.raises(
        PolicyRefused, match="wants gripper_wrist, top, side, main, wrist, side are offered"
    ):
        start(make_bench, checkpoints / "act", camera_map="front=main")


def test_options_reach_lerobot_s_config(make_bench, checkpoints):
    own = said(checkpoints / "smolvla")
    bench, _ = start(make_bench, checkpoints / "smolvla", options={"num_steps": "1"})
    actions = ask(bench, own, own["state"], 1000).actions
    assert np.abs(actions[:, :5] - own["actions"][:, :5]).max() > 1e-3
    with pytest.raises(PolicyRefused, match=r"policy_options has speed: .* chunk_size, "):
        start(make_bench, checkpoints / "act", options={"speed": "1"})
    with pytest.raises(PolicyRefused, match="LeRobot cannot load"):
        start(make_bench, checkpoints / "act", options={"chunk_size": "many"})
