"""`vla-ros verify`: a verdict, a page, a file; wrong usage is one line and status 2."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from support.engine import tiny_config
from vla_ros.cli.main import main
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.verdicts import Precision, find
from vla_ros_lab.precision.frames import spread

ANY = ["--max-mm", "1000", "--max-degrees", "360", "--max-margin", "1"]  # random weights


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_random(tmp_path / "it", tiny_config(towers="fused"), seed=1)
    return tmp_path / "it"


@pytest.fixture
def bags() -> None:
    pytest.importorskip("rclpy", reason="a bag's images need ROS 2's messages")
    pytest.importorskip("rosbags")


def test_a_check_is_passed_kept_and_shown(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    html = tmp_path / "verify.html"
    words = ["verify", "--checkpoint", str(checkpoint), "--synthetic", "--frames", "3", *ANY,
             "--html", str(html), "--json"]  # fmt: skip
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    found = json.loads(shown[-1])
    assert found["passed"] is True
    assert found["frames"] == 3
    assert found["dtype"] == "bfloat16"
    names = [stage["name"] for stage in found["stages"]]
    assert names[:4] == ["pixels of featurizer", "pixels of fused_featurizer", "vision",
                         "projector"]  # fmt: skip
    assert found["checked"]["tokens (argmax)"] == 21
    assert "passed" in shown
    page = html.read_text()
    assert page.count("<figure>") == len(names)
    assert "<script" not in page
    kept = find(found["checkpoint_sha256"], Precision("bfloat16"), checkpoint)
    assert kept is not None
    assert kept.passed
    assert Path(found["kept"]).is_file()


def test_a_check_that_is_failed(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", "--checkpoint", str(checkpoint), "--synthetic", "--frames", "1",
             "--max-error", "1e-6"]  # fmt: skip
    assert main(words) == 1
    shown = capsys.readouterr().out
    assert "stages are off by more than 1e-06; the first is pixels" in shown
    assert "FAILED" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--frames", "0"], "at least 1"),
        (["--dtype", "float32"], "the reference itself"),
        (["--synthetic", "--images", "x.npz"], "one of them"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--checkpoint", "nowhere"], "neither a directory nor a hub id"),
        (["--max-error", "-1"], "give 0 or more"),
        (["--html", "no/such/x.html"], "is no folder"),
        (["--images", "nowhere.npz"], "nowhere.npz"),
        (["--bag", "nowhere"], "there is no such bag"),
    ],
)
def test_wrong_usage(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *words]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "vla-ros verify" in one]
    assert said in line


def test_frames_are_taken_evenly() -> None:
    assert spread(100, 3) == [0, 50, 99]  # numpy rounds half to even
    assert spread(2, 5) == [0, 1]
    assert spread(10, 1) == [0]
    assert len(spread(1000, 24)) == 24
    assert np.ptp(np.diff(spread(1000, 24))) <= 1


@pytest.mark.usefixtures("bags")
def test_frames_of_a_bag(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Evenly over it, each under the instruction that was given by then."""
    from support.bags import START, T, film, picture, task, write_bag
    from vla_ros.cli.main import make_parser
    from vla_ros.policies.conventions import conventions_of
    from vla_ros_lab.precision.frames import frames_of

    spoken = [task(START - T, "push the red cube"), task(START + 7 * T, "reach the green cube")]
    bag = write_bag(tmp_path / "bag", [*film(9), *spoken])
    words = ["verify", "--checkpoint", str(checkpoint), "--bag", str(bag), "--frames", "3"]
    parser, _ = make_parser("verify")
    used = conventions_of(str(checkpoint))
    frames, source = frames_of(parser.parse_args(words), used, lambda *_: None)
    assert str(bag) in source
    assert [f.instruction for f in frames] == ["push the red cube"] * 2 + ["reach the green cube"]
    assert [f.episode for f in frames] == [0, 0, 1]
    assert [f.observation.stamp_ns for f in frames] == [START, START + 4 * T, START + 8 * T]
    np.testing.assert_array_equal(frames[1].observation.image, picture(4))
    assert main([*words, *ANY]) == 0
    assert "3 frames of" in capsys.readouterr().out


@pytest.mark.usefixtures("bags")
def test_a_bag_without_an_instruction_needs_one(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.bags import film, write_bag

    bag = write_bag(tmp_path / "bag", film(2))
    words = ["verify", "--checkpoint", str(checkpoint), "--bag", str(bag), *ANY]
    assert main(words) == 2
    assert "has no instruction: give --instruction" in capsys.readouterr().err
    assert main([*words, "--instruction", "push the red cube"]) == 0


def test_a_policy_that_says_nothing_has_failed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And that is kept, so that a node which asks for a verdict reports why."""
    from vla_ros.engine.load import sha256_on_disk
    from vla_ros_lab.precision import run

    sha256 = sha256_on_disk(str(checkpoint))

    def broken(*_: object) -> None:
        raise run.Broken(sha256, "frame 0: a logit is not finite")

    monkeypatch.setattr(run, "measure", broken)
    words = ["--synthetic", "--dtype", "float16", "--json"]
    assert main(["verify", "--checkpoint", str(checkpoint), *words]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["passed"] is False
    kept = find(sha256, Precision("float16"), checkpoint)
    assert kept is not None
    assert kept.reasons == ("it gives no action: frame 0: a logit is not finite",)


def test_the_tabletop_gives_as_many_frames_as_are_asked_for() -> None:
    """Of several tasks, though episodes of reaching are over before their third frame."""
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    from vla_ros.sim.factory import EnvConfig
    from vla_ros_lab.precision.frames import _played

    environment = EnvConfig("tabletop", image_size=32, wrist=False)()
    try:
        frames = list(_played(environment, 7, 8, 0))
    finally:
        environment.close()
    assert len(frames) == 7
    assert len({frame.instruction for frame in frames}) >= 3
    first, second = frames[:2]
    assert first.episode == second.episode
    assert np.abs(first.observation.image.astype(int) - second.observation.image).max() > 10
    assert first.observation.proprio is not None
    assert len({frame.observation.stamp_ns for frame in frames}) == 7
