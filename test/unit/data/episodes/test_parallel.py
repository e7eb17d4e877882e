"""Jobs in many processes: everything is played once, and what dies is a failed episode."""

import os
import time

import pytest

from support.runners import named_runner
from vla_ros.data.episodes.parallel import play_here, play_in_processes
from vla_ros.data.episodes.play import EpisodeOrder, RunnerFailed, keep
from vla_ros.data.episodes.records import Job, Setup, Variant

SETUP = Setup(policy="zero", route="direct")
VARIANTS = (Variant("a"),)


def orders(*tasks: str, strip: str = "") -> list[EpisodeOrder]:
    return [EpisodeOrder(Job("a", task, n, 0, number=n), strip) for n, task in enumerate(tasks)]


def test_every_job_is_played_once_and_a_process_keeps_its_runner():
    wanted = orders(*["solve"] * 12)
    played = list(play_in_processes(named_runner, SETUP, VARIANTS, wanted, 2))
    assert sorted(p.record.job.number for p in played) == list(range(12))
    pids = {p.record.passes for p in played}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert sum(max(p.record.steps for p in played if p.record.passes == pid) for pid in pids) == 12


def test_a_process_that_dies_costs_its_own_episode_only():
    wanted = orders("solve", "die", "solve", "solve")
    played = list(play_in_processes(named_runner, SETUP, VARIANTS, wanted, 1))
    assert [p.record.success for p in played] == [True, False, True, True]
    assert "exit code -9" in played[1].record.reason
    assert played[1].record.error == played[1].record.reason
    assert played[2].record.passes != played[0].record.passes


def test_when_process_after_process_dies_it_is_given_up():
    wanted = orders(*["die"] * 5)
    found = []
    with pytest.raises(RunnerFailed, match="3 processes in a row"):
        found.extend(play_in_processes(named_runner, SETUP, VARIANTS, wanted, 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_played_at_all_ends_it_in_one_line(workers):
    wanted = orders("solve", "refuse", "solve")
    play = play_in_processes(named_runner, SETUP, VARIANTS, wanted, 1)
    if not workers:
        play = play_here(named_runner, SETUP, VARIANTS, wanted)
    assert next(play).record.success
    with pytest.raises(RunnerFailed, match=r"^no such robot$"):
        next(play)


def test_who_stops_waits_for_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("VLA_ROS_TEST_NOTES", str(tmp_path))
    play = play_in_processes(named_runner, SETUP, VARIANTS, orders("solve", "sleep", "sleep"), 2)
    pids = {next(play).record.passes}
    until = time.monotonic() + 30
    while not (tmp_path / "asleep").exists() and time.monotonic() < until:
        time.sleep(0.02)
    pids |= set(map(int, (tmp_path / "asleep").read_text().split()))
    began = time.monotonic()
    play.close()
    assert time.monotonic() - began < 5
    closed = set(map(int, (tmp_path / "closed").read_text().split()))
    assert pids <= closed  # also those that were ended in the middle of their episode
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_strip_comes_back_as_a_file(tmp_path):
    wanted = orders("solve", strip="strips/001_solve.jpg")
    (played,) = play_in_processes(named_runner, SETUP, VARIANTS, wanted, 1)
    record = keep(played, tmp_path)
    assert record.strip == "strips/001_solve.jpg"
    assert (tmp_path / record.strip).read_bytes()[:2] == b"\xff\xd8"  # JPEG
