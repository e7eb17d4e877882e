"""The checkpoints that come with the package: found, small enough, what they say they are."""

import json

import pytest

torch = pytest.importorskip("torch")

from support.flow import load_folder
from support.weights import needs_weights
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import Placement
from vla_ros.engine.families.openvla import load_checkpoint
from vla_ros.engine.io.hub import SHIPPED, resolve
from vla_ros_lab.train.flow import FLOW_ARCHITECTURES

studies = needs_weights("tabletop-draft", "tabletop-oft", "tabletop-chunk")
CPU = torch.device("cpu")
TARGET, DRAFT, CHUNKS = (f"shipped:tabletop{kind}" for kind in ("", "-draft", "-oft"))
FLOW, SAID = (f"shipped:tabletop-{kind}" for kind in ("flow", "chunk"))


def test_an_unknown_one_is_refused_with_those_there_are():
    with pytest.raises(CheckpointError, match=f"{TARGET}, {SAID}, {DRAFT}, {FLOW}, {CHUNKS}"):
        resolve(SHIPPED + "nothing")


@studies
@pytest.mark.parametrize("name", [TARGET, DRAFT, CHUNKS, SAID])
def test_it_loads_and_says_how_it_was_made(name):
    checkpoint = load_checkpoint(name, CPU, torch.float32)
    record = json.loads((checkpoint.directory / "training.json").read_text())
    assert record["step"] == record["options"]["steps"]
    assert list(checkpoint.norm_stats) == ["tabletop"]
    assert checkpoint.norm_stats["tabletop"]["action"]["q99"][:6] == [0.05] * 3 + [0.5] * 3


def test_the_flow_policy_loads_and_can_be_given_what_is_under_way():
    policy = load_folder(resolve(FLOW), Placement(CPU, torch.float32))
    record = json.loads((resolve(FLOW) / "training.json").read_text())
    assert record["step"] == record["options"]["steps"]
    assert policy.config == FLOW_ARCHITECTURES["small-flow"]
    assert policy.config.rtc_trained
    nothing = policy.processors.action.restore(torch.zeros(7))
    assert nothing.tolist() == [0.0] * 6 + [0.5]
    assert sum(file.stat().st_size for file in resolve(FLOW).iterdir()) < 20e6


@studies
def test_the_draft_has_its_target_s_vision_and_another_vocabulary():
    target, draft = (load_checkpoint(name, CPU, torch.float32) for name in (TARGET, DRAFT))
    assert target.config.action_vocab != draft.config.action_vocab
    shared = [name for name in draft.tensors if name.startswith("vision_backbone.")]
    assert shared and all(torch.equal(draft.tensors[n], target.tensors[n]) for n in shared)


def test_together_they_are_small():
    names = TARGET, DRAFT, CHUNKS, FLOW, SAID
    files = [file for name in names for file in resolve(name).iterdir()]
    assert sum(file.stat().st_size for file in files) < 70e6


@studies
def test_which_are_told_how_late_their_actions_are_is_in_their_configuration():
    told = {
        name: load_checkpoint(name, CPU, torch.float32).config.max_delay for name in (TARGET, SAID)
    }
    assert told == {TARGET: 8, SAID: 0}


@studies
def test_one_says_its_chunks_token_by_token():
    said, at_once = (load_checkpoint(name, CPU, torch.float32).config for name in (SAID, CHUNKS))
    assert (said.chunk, said.parallel) == (8, False)
    assert (at_once.chunk, at_once.parallel) == (8, True)


def test_weights_that_this_copy_lacks_are_named_with_what_brings_them(tmp_path, monkeypatch):
    text = (resolve(TARGET) / "config.json").read_text()
    (tmp_path / "tabletop-oft").mkdir()
    (tmp_path / "tabletop-oft" / "config.json").write_text(text)
    monkeypatch.setattr("vla_ros.engine.io.hub.SHIPPED_FOLDER", tmp_path)
    monkeypatch.setattr("vla_ros.engine.io.weights.SHIPPED_FOLDER", tmp_path)
    with pytest.raises(CheckpointError, match=r"weights of shipped:tabletop-oft .* `make weights`"):
        load_checkpoint(CHUNKS, CPU, torch.float32)
