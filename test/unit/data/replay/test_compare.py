"""What was recorded against what is said now: plan, comparison, golden file and report."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip(
    "rosbags", reason="rosbags is not installed: pip install '.[replay]' in the checkout"
)

from rosbags.typesys import get_types_from_msg

from support.bags import START, Entry, T, action, film, task, write_bag
from support.browser import browser, missing
from support.wait import wait_until
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import CommandKind
from vla_ros.data.bag_frames import BagFrames, FrameTime, pick
from vla_ros.data.bag_writer import ros_types
from vla_ros.data.bags import Bag, BagError
from vla_ros.data.replay import Recorded, Task, make_plan, read_recorded
from vla_ros.data.replay_compare import (
    PolicyRun,
    Report,
    RunCommand,
    RunFigures,
    compare,
    json_line,
    load_golden,
    save_golden,
    text,
)
from vla_ros.viz.replay_page import page

COMMAND = "vla_ros/msg/ActionCommand"
STAGES = dict.fromkeys(("transport", "queue", "preprocess", "vision", "prefill", "decode"), 3.0)


def said(stamp, value=0.25, kind=CommandKind.POLICY, index=0):
    numbers = (value, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    stages = {**STAGES, "gate": 1.0}
    return RunCommand(kind, stamp, stamp, stamp + 5, stamp, numbers, 1, index, "", stages)


def run(stamps, **options):
    return PolicyRun(tuple(said(stamp) for stamp in stamps), frames=len(stamps), **options)


def test_the_same_run_is_identical():
    tokens = dict.fromkeys(range(5), (1, 2, 3))
    found = compare(run(range(5), tokens=tokens), run(range(5), tokens=tokens), range(5))
    assert found.identical
    assert (found.compared, found.missing, found.extra, found.token_match_rate) == (5, 0, 0, 1.0)


@given(at=st.integers(0, 9), off=st.floats(1e-12, 1.0))
def test_one_number_that_differs_is_found(at, off):
    now = run(range(10))
    commands = list(now.commands)
    commands[at] = said(at, 0.25 + off)
    found = compare(run(range(10)), replace(now, commands=tuple(commands)), range(10))
    assert not found.identical
    assert found.largest == abs(0.25 + off - 0.25)
    assert found.first.frame == at
    assert str(found.first).startswith(f"frame {at} ")


MOVES = (True,) * 6 + (False,)


def in_steps(stamp, value, steps, index=0):
    """An action made in so many commands."""
    one = replace(said(stamp, value / steps, index=index), displaced=MOVES)
    return [replace(one, action_phase=i / steps, at_ns=stamp + i) for i in range(steps)]


def test_an_action_made_of_several_commands_is_compared_as_one():
    """A run commanded at five times the rate of its actions."""
    five = PolicyRun(tuple(c for i in range(4) for c in in_steps(i, 0.25, 5)))
    assert len(five.actions) == 4 and five.actions[0, 0].action[0] == pytest.approx(0.25)
    assert compare(five, five, range(4)).identical
    found = compare(five, run(range(4)), range(4))  # in one step each
    assert (found.compared, found.largest, found.missing, found.extra) == (4, 0.0, 0, 0)
    # The same sum in other steps of the same number is no identical action.
    moved = list(five.commands)
    for at, off in ((1, 0.01), (2, -0.01)):
        numbers = (moved[at].action[0] + off, *moved[at].action[1:])
        moved[at] = replace(moved[at], action=numbers)
    found = compare(five, replace(five, commands=tuple(moved)), range(4))
    assert found.largest == pytest.approx(0.01) and not found.identical


def test_missing_extra_and_pipelined_actions_are_told_apart():
    before = run([*range(10), 99])  # frame 99 is not in the bag
    pipelined = run([0, 1, 2, 5, 6, 7], pipeline_depth=3)
    found = compare(before, pipelined, range(10), ends=[4])
    assert (found.tail, found.missing) == (4, 0)
    found = compare(before, replace(pipelined, pipeline_depth=1), range(10), ends=[4])
    assert (found.tail, found.missing) == (0, 4)
    assert not found.identical
    found = compare(pipelined, run(range(10)), range(10))
    assert (found.compared, found.missing, found.extra) == (6, 0, 4)


def test_commands_that_are_no_actions_are_not_compared():
    stops = PolicyRun((said(0), said(1, kind=CommandKind.STOP), said(2, 0.5, CommandKind.HELD)))
    assert set(stops.actions) == {(0, 0)}
    found = compare(run(range(2)), PolicyRun((said(0, kind=CommandKind.STOP),)), range(2))
    assert found.compared == 0
    assert not found.identical


def test_tokens_are_counted_one_by_one():
    before = run(range(2), tokens={0: (1, 2, 3), 1: (4, 5, 6), 7: (1,)})
    now = run(range(2), tokens={0: (1, 2, 3), 1: (4, 0, 6)})
    assert compare(before, now, range(2)).token_match_rate == pytest.approx(5 / 6)


def test_a_recorded_run_is_read_with_its_tasks_and_resets(tmp_path):
    entries = [task(START - T, "reach"), *film(6)]
    entries += [action(START + i * T, [0.01 * i] * 7, epoch=2 + (i > 2)) for i in range(6)]
    entries.append(task(START + 4 * T, "lift"))
    entries.append(action(START + 5 * T, [0.0] * 7, epoch=5, kind=2))
    with Bag(write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns))) as bag:
        recorded = read_recorded(bag, pick(bag.topics, {}))
    assert len(recorded.run.actions) == 6
    assert [task.text for task in recorded.tasks] == ["reach", "lift"]
    times = tuple(FrameTime(START + i * T, START + i * T) for i in range(6))
    plan = make_plan(BagFrames(times), recorded, None)
    # A reset where the epoch moves on; the new task at frame 4 alone is none.
    assert [(b.stamp_ns, b.instruction, b.reset) for b in plan.begins] == [
        (START, "reach", True),
        (START + 3 * T, "reach", True),
        (START + 4 * T, "lift", False),
    ]
    given_text = make_plan(BagFrames(times), recorded, "push")
    assert {begin.instruction for begin in given_text.begins} == {"push"}


def test_frames_before_the_first_task_are_left_out():
    times = BagFrames(tuple(FrameTime(i, i) for i in range(1, 6)))
    plan = make_plan(times, Recorded(None, (Task(3, "reach"),), {}), None)
    assert plan.skipped == 2
    assert plan.begins[0].stamp_ns == 3
    with pytest.raises(BagError, match="give one with --instruction"):
        make_plan(times, Recorded(None, (), {}), None)


def test_a_golden_file_gives_back_every_bit(tmp_path):
    values = (0.1 + 0.2, 1 / 3, 5e-324)
    commands = [c for i, v in enumerate(values) for c in in_steps(i, v, 3)]
    made = PolicyRun(tuple(commands), {0: (31744, 7)}, 3, policy="vla")
    save_golden(tmp_path / "golden.json", made, "bag")
    found = load_golden(tmp_path / "golden.json")
    assert [s.action for s in found.commands] == [s.action for s in made.commands]
    assert found.actions[2, 0].action == made.actions[2, 0].action
    assert compare(found, made, range(3)).identical
    (tmp_path / "other.json").write_text('{"format": "something else"}')
    (tmp_path / "cut.json").write_text((tmp_path / "golden.json").read_text()[:-20])
    whole = json.loads((tmp_path / "golden.json").read_text())
    del whole["names"]
    (tmp_path / "nameless.json").write_text(json.dumps(whole))
    for name in ("other.json", "cut.json", "nothing.json", "nameless.json has no 'names'"):
        with pytest.raises(BagError, match=name):
            load_golden(tmp_path / name.split()[0])


JOINTS = joints(ActionKind.JOINT_POSITION, ("a", "b"))


def turned(stamp, value):
    return replace(said(stamp), action=(value, 0.5), names=JOINTS.names, units=JOINTS.units)


def test_actions_of_another_width_are_compared_and_kept_by_name(tmp_path):
    entries = [*film(2), *(action(START + i * T, (0.1 * i, 0.5), space=JOINTS) for i in range(2))]
    with Bag(write_bag(tmp_path / "bag", entries)) as bag:
        recorded = read_recorded(bag, pick(bag.topics, {})).run
    assert recorded.names == ("a", "b")
    save_golden(tmp_path / "golden.json", recorded, "bag")
    frames = [START, START + T]
    assert compare(load_golden(tmp_path / "golden.json"), recorded, frames).identical
    off = PolicyRun((turned(START, 0.0), turned(START + T, 0.3)), frames=2)
    found = compare(recorded, off, frames)
    assert (found.names, found.max_abs_diff) == (("a", "b"), (pytest.approx(0.2), 0.0))
    assert str(found.first).endswith(", a: 0.1 before, 0.3 now")
    both = replace(report(recorded, off), comparison=found)
    assert "a 0.2  b 0" in text(both)
    assert "a: 0 to 0.3 rad" in page(both)
    with pytest.raises(BagError, match=r"were of a b, those of now are of x y z rx ry rz gripper"):
        compare(recorded, run(frames), frames)


def test_a_bag_with_another_definition_of_our_messages_is_refused_in_one_line(tmp_path):
    other = ros_types()
    other.register(get_types_from_msg("uint8 kind\nfloat64[] action", COMMAND))
    content = other.types[COMMAND](kind=0, action=np.full(7, 0.1))
    entry = Entry("/policy/action", START, COMMAND, content)
    path = write_bag(tmp_path / "bag", [*film(1), entry], store=other)
    with pytest.raises(BagError, match=r"bag: recorded .* of vla_ros/msg/Act.*: record it again$"):
        Bag(path)


def report(before, now, strict=True, tolerance=0.0):
    return Report(
        bag="<run & co>",
        mode="lockstep",
        frames=4,
        camera_rate_hz=20.0,
        now=RunFigures.of("replayed", now),
        before=RunFigures.of("recorded", before) if before else None,
        comparison=compare(before, now, range(4)) if before else None,
        tolerance=tolerance,
        strict=strict,
        wall_s=1.0,
        notes=("a note",),
    )


def test_the_verdict_follows_the_tolerance():
    same, off = run(range(4)), PolicyRun(tuple(said(i, 0.25 + 0.01 * i) for i in range(4)))
    assert report(same, same).verdict == "IDENTICAL"
    assert not report(same, off).within
    assert report(same, off, tolerance=0.031).within
    assert not report(same, run(range(3)), tolerance=1.0).within
    assert report(same, run(range(3)), strict=False).within
    assert not report(same, PolicyRun(())).within
    assert report(None, same).within


def test_the_stages_stand_under_the_age_that_they_add_up_to_not_under_inference():
    """Waiting and the gate are no inference; the seven stages are the observation's age."""
    from vla_ros.core.types import STAGES as NAMES

    made = report(run(range(4)), run(range(4)))
    labels = [line[:22].rstrip() for line in text(made).splitlines()]
    first = labels.index("observation age")
    below = [f"  {name}" for name in NAMES]
    assert labels[first + 1 : first + 9] == [*below, "inference"]
    html = page(made)
    places = [html.index(f"<td>{name}</td>") for name in ("observation age", *NAMES, "inference")]
    assert places == sorted(places)


class TagChecker(HTMLParser):
    """Fails on a tag that closes another one than the last that was opened."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_json_and_text_and_page_say_the_same():
    made = report(run(range(4)), PolicyRun(tuple(said(i, 0.25 + 0.01 * i) for i in range(4))))
    content = json.loads(json_line(made))
    assert content["identical"] is False
    assert content["frames"] == 4
    assert content["max_abs_diff"] == pytest.approx(0.03)
    assert content["first_difference"]["dimension"] == "x"
    assert content["inference_ms"]["p50"] == pytest.approx(12.0)
    assert content["observation_age_ms"]["count"] == 4
    assert content["before"]["name"] == "recorded"
    lines = text(made).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert "DIFFERENT by up to 0.03   (4 actions compared)" in lines

    html = page(made)
    checker = TagChecker()
    checker.feed(html)
    assert checker.open == []
    assert "&lt;run &amp; co&gt;" in html
    assert "<run" not in html
    assert html.count("<polyline") == 14
    assert "script" not in html


@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
def test_the_page_fits_a_phone(tmp_path):
    """Nothing of it scrolls sideways but a wide table in its own frame."""
    off = PolicyRun(tuple(said(i, 0.25 + 0.01 * i) for i in range(4)))
    (tmp_path / "report.html").write_text(page(report(run(range(4)), off)), encoding="utf-8")
    with browser() as shown:
        shown.size(390, 844)
        shown.open((tmp_path / "report.html").as_uri())
        wait_until(lambda: shown.run("!!document.querySelector('svg.stages')"), 60, "the page")
        assert shown.run("document.scrollingElement.scrollWidth") <= 390
        shown.picture(tmp_path / "phone.png")
