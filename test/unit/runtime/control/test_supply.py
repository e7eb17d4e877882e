"""What keeps frames from completing: said while it lasts, with the remedy, and then no more."""

from unit.runtime.control.bench import Bench
from vla_ros.core.clock import SECOND
from vla_ros.core.types import PolicyState
from vla_ros.runtime.control.observation import LostImage
from vla_ros.runtime.control.supply import FrameSupply

PLAIN = "waits for a fresh frame and a valid action"
APART = LostImage("joint_states", "no joint_states: joint_states is 60.0 ms older", "apart")


class Waiting(Bench):
    """A loop with a task, whose main camera shows and whose frames do not complete."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.control.activate()
        self.control.set_instruction("reach")

    def pass_s(self, seconds, lost=None, pictures=True, refused=""):
        for _ in range(round(seconds / 0.05)):
            if pictures:
                self.control.supply.received("image", self.clock.steady)
            if lost is not None:
                self.control.supply.lost(lost, self.clock.steady)
            if refused:
                self.control.drop(refused, stream="image")
            self.tick()
        return self.control.loop.safety.said


def test_a_second_is_waited_for_before_anything_is_said():
    bench = Waiting()
    assert bench.pass_s(0.9, APART) == PLAIN
    assert bench.pass_s(0.5, APART) == (
        f"{PLAIN}; {APART.reason}; synchronize the clocks, or raise pairing_slop_s"
    )


def test_it_goes_away_with_the_first_frame_that_completes():
    bench = Waiting()
    bench.pass_s(3.0, APART)
    bench.frame()
    bench.tick()
    assert bench.loop.safety.lacks == ""
    bench.answer(bench.loop.latest)
    bench.tick()
    assert bench.loop.safety.said == "running"


def test_frames_that_complete_and_a_slow_worker_are_no_lack():
    bench = Waiting()
    for _ in range(18):
        bench.control.supply.received("image", bench.clock.steady)
        bench.frame()
        bench.control.supply.lost(APART, bench.clock.steady - 1)
        bench.tick()
    assert bench.loop.safety.lacks == ""


def test_without_a_task_nothing_is_missed():
    bench = Bench()
    bench.control.activate()
    for _ in range(60):
        bench.tick()
    assert bench.loop.safety.said.startswith("waits for an instruction")
    assert bench.loop.counters.missed_deadlines == 0


def test_between_two_episodes_nothing_is_missed():
    bench = Waiting()
    bench.control.episode_runs(1, 0)
    bench.control.episode_over(1, "done")
    assert bench.pass_s(3.0, pictures=False) == "the episode is over: done"


def test_no_picture_at_all_names_the_topic_and_who_publishes_it():
    bench = Waiting()
    bench.control.supply.topic, bench.control.supply.writers = "/front", 0
    assert bench.pass_s(2.0, pictures=False) == (
        f"{PLAIN}; no image on /front yet, nobody publishes it: start the driver, or set"
        " cameras.main.topic"
    )
    told = [text for kind, text in bench.out.warnings if kind == "lacks"]
    assert len(told) == 1 and "no image on /front yet, nobody publishes it" in told[0]
    bench.control.supply.writers = 1
    assert bench.pass_s(2.0, pictures=False).endswith(
        "/front yet, though its publisher is found: look at the camera's driver, and whether it"
        " runs as another user or in a container (docs/how-to/docker.md)"
    )
    bench.pass_s(1.0)
    assert "no image on /front for 3 s" in bench.pass_s(3.2, pictures=False)


def test_a_picture_that_is_refused_is_said_with_its_reason():
    bench = Waiting()
    said = bench.pass_s(2.0, refused="image of 9x9 exceeds max_image_pixels 10")
    assert said == f"{PLAIN}; the image is refused: image of 9x9 exceeds max_image_pixels 10"
    # Also where it comes without a stamp that could be read: something is heard.
    bench = Waiting()
    said = bench.pass_s(2.0, pictures=False, refused="text is cut short")
    assert said.endswith("the image is refused: text is cut short")


def test_the_last_of_two_troubles_is_the_one_that_is_said():
    bench = Waiting()
    assert "60.0 ms" in bench.pass_s(2.0, APART)
    assert "stamp repeated" in bench.pass_s(2.0, refused="stamp repeated")


def test_a_part_that_is_refused_or_has_fallen_silent_is_not_called_apart():
    supply = FrameSupply()
    supply.received("image", 10 * SECOND)
    supply.received("joint_states", 5 * SECOND)
    supply.lost(APART, 10 * SECOND)
    said = supply.lacks(1, 10 * SECOND)
    assert said == "joint_states has been silent for 5 s: look at its publisher"
    supply.refused("joint_states", "joint state has positions that are not finite", 10 * SECOND)
    said = supply.lacks(1, 10 * SECOND)
    assert said == "joint_states is refused: joint state has positions that are not finite"


def test_every_kind_of_loss_has_its_remedy():
    def says(kind):
        supply = FrameSupply()
        for stream in ("image", "joint_states"):
            supply.received(stream, 10 * SECOND)
        supply.lost(LostImage("joint_states", "no joint_states", kind), 10 * SECOND)
        return supply.lacks(1, 10 * SECOND)

    assert "start what publishes it" in says("silent")
    assert "pairing_slop_s" in says("apart")
    assert "correct joint_names" in says("names")
    assert "in joint_names" in says("size")
    assert says("order") == "no joint_states"


def test_a_hold_says_it_beside_its_cause():
    bench = Bench().running()
    bench.control.supply.topic = "/front"
    for _ in range(60):
        bench.tick()
    assert bench.loop.safety.state is PolicyState.HOLD
    assert "exceeds max_age" in bench.loop.safety.said
    assert "; no image on /front" in bench.loop.safety.said


def test_figures_that_change_with_every_frame_change_the_status_once_a_second():
    bench = Waiting()
    bench.pass_s(2.0, APART)
    before = len(bench.out.states)
    for i in range(60):  # 3 s
        bench.pass_s(0.05, LostImage("joint_states", f"no joint_states: {i} ms older", "apart"))
    assert 2 <= len(bench.out.states) - before <= 4


def test_a_world_in_lock_step_waits_too():
    bench = Waiting(lockstep=True)
    assert "60.0 ms" in bench.pass_s(2.0, APART)
