"""Clips of failed episodes: what is burnt in, which are kept, where the report shows them."""

import math
from dataclasses import replace

import numpy as np
from PIL import Image

from vla_ros.data.episodes.play import EpisodeOrder, PlayedEpisode, Player, keep
from vla_ros.data.episodes.records import Job, Record, Setup, Variant
from vla_ros.data.episodes.store import LIMIT, clip_path, save_clip
from vla_ros_lab.report.page import clips

JOB = Job("a", "reach_red_cube", 3, 0, number=7)
FAILED = Record(JOB, False, "step limit", ages=(50.0, math.nan))


class Filming:
    """A runner whose episodes are two frames long."""

    def __init__(self, record):
        self._record = record

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def play(self, job, variant, strip=None):
        for step in range(3):
            strip.add(np.full((32, 48, 3), 80 * step, np.uint8), step)
        return replace(self._record, job=job)


def played(record):
    player = Player(lambda *_: Filming(record), Setup(policy="zero"), (Variant("a"),))
    return player.play(EpisodeOrder(JOB, instruction="touch the red cube", clip=True))


def test_a_failed_episode_is_kept_as_a_clip_with_its_sentence(tmp_path):
    record = keep(played(FAILED), tmp_path)
    assert (record.clip, record.instruction) == (clip_path(JOB), "touch the red cube")
    assert record.ages == ()
    with Image.open(tmp_path / record.clip) as clip:
        assert clip.n_frames == 3
        assert clip.format == "WEBP"
    (shown,) = clips(tmp_path, [record])
    assert shown.source.startswith("data:image/webp;base64,")
    assert (shown.name, shown.instruction) == (JOB.key(), "touch the red cube")


def test_a_solved_episode_is_not():
    assert played(replace(FAILED, success=True)).clip == b""


def test_words_are_burnt_into_the_picture(tmp_path):
    frame = {1: Image.new("RGB", (128, 128), "blue")}
    for name, ages, told in (("a", [], ""), ("b", [42.0], ""), ("c", [], "touch it")):
        assert save_clip(frame, ages, told, tmp_path / name / "x.webp")
    plain, aged, told = (Image.open(tmp_path / n / "x.webp").convert("RGB") for n in "abc")
    assert plain.size == aged.size != told.size  # a line above the image
    assert np.asarray(plain).tobytes() != np.asarray(aged).tobytes()
    assert not save_clip({}, [], "", tmp_path / "none.webp")


def test_an_evaluation_keeps_the_first_clips_only(tmp_path):
    (tmp_path / "clips").mkdir()
    for number in range(LIMIT):
        (tmp_path / "clips" / f"{number}.webp").write_bytes(b"x")
    record = keep(PlayedEpisode(replace(FAILED, clip=clip_path(JOB)), b"", b"webp"), tmp_path)
    assert record.clip == ""
    assert len(list((tmp_path / "clips").iterdir())) == LIMIT


def test_every_task_and_variant_is_shown_before_the_second_episode_of_any(tmp_path):
    (tmp_path / "clips").mkdir()
    records = []
    for number, task in enumerate(("x", "x", "y")):
        job = Job("a", task, number, 0, number=number)
        (tmp_path / clip_path(job)).write_bytes(b"webp")
        records.append(Record(job, False, "step limit", clip=clip_path(job)))
    assert [one.name.split("/")[1:3] for one in clips(tmp_path, records)] == [
        ["x", "0"],
        ["y", "2"],
        ["x", "1"],
    ]
