"""`vla-ros demo`: options become parameters, wrong ones end with one line and status 2."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from vla_ros.cli.demo.options import add_parser, parameters
from vla_ros.cli.main import main
from vla_ros.console.progress import Progress
from vla_ros.errors import UserError
from vla_ros.observe.film import MAX_FRAMES, Recorder

EXPERT = ("--policy", "scripted")


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["demo", *words])


def test_the_expert_needs_no_other_options() -> None:
    assert parameters(parsed("--policy", "scripted")) == {
        "policy": {"policy": "scripted", "mode": "realtime"},
        "bridge": {"mode": "realtime"},
        "monitor": {},
    }


#: What the policy reads from its checkpoint by itself: no command says it a second time.
CONVENTIONS = {"action_scale", "unnorm_key", "preprocessing", "center_crop", "use_wrist_image"}


def test_no_options_run_the_trained_policy_and_leave_its_units_to_it() -> None:
    pytest.importorskip("torch")
    policy = parameters(parsed())["policy"]
    assert (policy["policy"], policy["checkpoint"]) == ("vla", "shipped:tabletop")
    assert not {"max_age_s", *CONVENTIONS} & set(policy)


def test_random_weights_may_be_late() -> None:
    policy = parameters(parsed("--checkpoint", "random:small"))["policy"]
    assert policy["max_age_s"] > 0.5
    assert not CONVENTIONS & set(policy)
    given = parameters(parsed("--checkpoint", "random:small", "--device", "cuda:0"))["policy"]
    assert not {"max_age_s", "num_threads"} & set(given)


def test_a_checkpoint_that_is_not_there_is_refused_before_anything_starts() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UserError, match="neither a directory nor a hub id"):
        parameters(parsed("--checkpoint", "/no/such/directory"))


def test_lockstep_runs_all_who_need_it_on_simulated_time() -> None:
    found = parameters(parsed(*EXPERT, "--mode", "lockstep", "--seed", "4", "--control-rate", "10"))
    assert found["policy"]["use_sim_time"] is True
    assert found["monitor"]["use_sim_time"] is True
    assert found["bridge"] == {"mode": "lockstep", "seed": 4}
    assert found["policy"]["control_rate_hz"] == 10.0


def test_a_parameter_wins_over_the_option_it_doubles() -> None:
    found = parameters(parsed(*EXPERT, "--control-rate", "10", "-p", "policy.control_rate_hz=5.0"))
    assert found["policy"]["control_rate_hz"] == 5.0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--policy", "scripted", "--schedule", "actionflow"],
            "--schedule needs --policy vla, not scripted",
        ),
        (["--policy", "zero", "--checkpoint", "x"], "--checkpoint needs --policy vla"),
        (["--policy", "replay"], "--policy replay needs --replay-file"),
        (["--policy", "replay", "--replay-file", "/no/file"], "no file /no/file"),
        (["--control-rate", "0"], "must be 1 to 200 Hz"),
        (["--control-rate", "nan"], "must be 1 to 200 Hz"),
        (["--timeout", "-1"], "--timeout -1: must be above 0"),
        (["--timeout", "nan"], "--timeout nan: must be above 0"),
        (["--seed", "-1"], "--seed -1: must be 0 to"),
        (["--domain-id", "233"], "must be 0 to 232"),
        (["-p", "policy"], "write NODE.PARAMETER=VALUE"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *words]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1


def test_an_unknown_task_or_state_is_refused_with_the_valid_ones() -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(UserError, match="no such task; there are: pick_red_cube"):
        parameters(parsed("--task", "fold_towel"))
    with pytest.raises(UserError, match="pick_red_cube has 0 to"):
        parameters(parsed("--task", "pick_red_cube", "--initial-state", "1000"))


def test_a_gif_has_every_image_and_lasts_as_long_as_they_did(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "out.gif")
    ramp = np.arange(32 * 32 * 3).reshape(32, 32, 3)
    for i in range(10):
        assert recorder.wants()
        recorder.add(i * 50_000_000, ((ramp // 12 + 20 * i) % 256).astype(np.uint8))
    assert "10 images" in recorder.save()
    with Pillow.open(tmp_path / "out.gif") as gif:
        assert gif.n_frames == 10
        assert gif.info["duration"] == 50


def test_a_small_thing_keeps_its_colour_in_a_gif(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "out.gif")
    wood = np.random.default_rng(0).integers((150, 110, 70), (200, 160, 110), (64, 64, 3))
    image = wood.astype(np.uint8)
    image[30:34, 30:34] = (250, 220, 20)
    recorder.add(0, image)
    recorder.save()
    with Pillow.open(tmp_path / "out.gif") as gif:
        seen = np.array(gif.convert("RGB"))[32, 32]
    assert np.abs(seen - np.array([250, 220, 20])).max() < 20


def test_a_long_episode_is_thinned_out_evenly(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "out.gif")
    kept = []
    for i in range(4 * MAX_FRAMES):
        if recorder.wants():
            recorder.add(i, np.zeros((2, 2, 3), np.uint8))
    kept = [stamp for stamp, _ in recorder._frames]
    assert len(kept) <= MAX_FRAMES
    assert kept[0] == 0
    assert kept[-1] > 4 * MAX_FRAMES - 10
    assert len(set(np.diff(kept))) == 1


def test_a_png_is_the_last_image(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "out.png")
    for i in range(3):
        recorder.wants()
        recorder.add(i, np.full((4, 6, 3), i, np.uint8))
    recorder.save()
    with Pillow.open(tmp_path / "out.png") as png:
        assert png.size == (6, 4)
        assert png.getpixel((0, 0)) == (2, 2, 2)


@pytest.mark.parametrize("name", ["out.mp4", "out", "no/folder/out.gif"])
def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="--gif"):
        Recorder(tmp_path / name)


class Stream:
    """A terminal, or not, that keeps what is written."""

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def test_progress_rewrites_one_line_on_a_terminal() -> None:
    stream = Stream(terminal=True)
    progress = Progress(stream)  # type: ignore[arg-type]
    progress.update("RUNNING", "step 1")
    progress.update("RUNNING", "step 2")
    progress.say("done")
    assert stream.text.count("\n") == 2
    assert stream.text.count("\r") == 2
    assert stream.text.endswith("\ndone\n")


def test_progress_elsewhere_is_a_line_only_where_the_state_changes() -> None:
    stream = Stream(terminal=False)
    progress = Progress(stream)  # type: ignore[arg-type]
    for state in ("WAITING", "WAITING", "RUNNING", "RUNNING", "RUNNING"):
        progress.update(state, f"{state} step")
    assert stream.text == "WAITING step\nRUNNING step\n"
