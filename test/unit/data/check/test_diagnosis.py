"""A planted fault is named with the parameter that repairs it, and a clean set is left alone.

The policy is a stranger's: three joints and a gripper that go to where the colors of an image say.
"""

import importlib.util
import json
import math
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from support.lerobot import interpreter
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.adaptation import (
    ActionAdaptation,
    Adaptation,
    ImageAdaptation,
    ValueAdaptation,
    adaptation_of,
)
from vla_ros.core.errors import UserError
from vla_ros.core.types import Inference, PolicyInfo
from vla_ros.data.check.asking import Asker, NoAnswer
from vla_ros.data.check.diagnosis import Search, combined
from vla_ros.data.check.hypotheses import all_of
from vla_ros.data.check.recording import LAGS, record, roles_of, state_of
from vla_ros.data.check.sensitivity import sensitivities
from vla_ros.data.check.static import findings, refuse_width
from vla_ros.data.check.texts import trained_texts
from vla_ros.data.lerobot.dataset import ACTION, STATE, DatasetRow
from vla_ros.policies.base import InvalidAction

NAMES = ("pan", "lift", "flex", "gripper")
SPACE = joints(ActionKind.JOINT_POSITION, NAMES, ("gripper",))
SIZE, ROWS, CHUNK = 16, 40, 8


class Reaching:
    """Joint positions on the way from the state to the target that the image shows."""

    info = PolicyInfo("reaching", chunk_length=CHUNK, state_dim=4, action_space=SPACE,
                      action_rate_hz=20.0)  # fmt: skip

    def reset(self, instruction):
        self.open = 1.0 if "open" in instruction.text else 0.0

    def step(self, observation, timeline, clock):
        at = observation.proprio[:3].copy()
        rows = []
        for _ in range(CHUNK):
            at = at + 0.15 * (target(observation.image) - at)
            rows.append([*at, self.open])
        return Inference(observation.stamp_ns, np.array(rows), timeline)


def target(image):
    """Joints in rad of what an image shows: its color, what is brighter above, and left."""
    red, blue = image[..., 0].mean() / 255, image[..., 2].mean() / 255
    half = SIZE // 2
    above = (image[:half].mean() - image[half:].mean()) / 255
    left = (image[:, :half].mean() - image[:, half:].mean()) / 255
    return np.array([3 * (red - blue), 0.5 + 2 * above, 2 * left])


def picture(rng):
    quarters = rng.uniform(20, 235, (2, 2, 3)).astype(np.uint8)
    return quarters.repeat(SIZE // 2, 0).repeat(SIZE // 2, 1)


def rows(episodes=8):
    rng = np.random.default_rng(0)
    for episode in range(episodes):
        image, at = picture(rng), rng.uniform(-1.5, 1.5, 3)
        text = ("open the hand", "close the hand")[episode % 2]
        for number in range(ROWS):
            if number and number % 10 == 0:
                image = picture(rng)  # what is to be reached moves
            state = np.array([*at, 0.5])
            at = at + 0.15 * (target(image) - at)
            action = np.array([*at, 1.0 if episode % 2 == 0 else 0.0])
            yield DatasetRow(episode, text, {"main": image}, {ACTION: action, STATE: state})


def recorded(episodes=8):
    count, roles = episodes * ROWS, {"main": "main"}
    return record("rows", 20.0, rows(episodes), count, 24, NAMES, NAMES, roles, 8)


@pytest.fixture(scope="module")
def clean():
    return recorded()


def check(recording, **options):
    policy = Reaching()
    hypotheses = all_of(recording, SPACE, CHUNK, ())
    return Search(Asker(policy, recording), hypotheses, 60.0, **options).run()


def imaged(recording, change):
    images = {
        row: {role: np.ascontiguousarray(change(one)) for role, one in roles.items()}
        for row, roles in recording.images.items()
    }
    return replace(recording, images=images)


def stated(recording, change):
    state = recording.state.copy()
    change(state)
    return replace(recording, state=state)


def acted(recording, change):
    actions = recording.actions.copy()
    change(actions)
    return replace(recording, actions=actions)


def negate(i):
    def change(values):
        values[:, i] *= -1.0

    return change


def scale(factor, of=slice(None)):
    def change(values):
        values[:, of] *= factor

    return change


def test_a_clean_set_fits(clean):
    found = check(clean)
    assert (found.status, found.named) == (0, None)
    assert found.before.error < 0.05
    assert found.parameters == {}


def swap(values):
    values[:, [0, 1]] = values[:, [1, 0]]


def reversed_gripper(values):
    values[:, 3] = 1.0 - values[:, 3]


def wide_gripper(values):
    values[:, 3] = 1.0 - 2.0 * values[:, 3]


FAULTS = {
    "bgr": (lambda r: imaged(r, lambda i: i[..., ::-1]), "main: bgr",
            {"cameras.main.colors": "bgr"}),
    "mirror": (lambda r: imaged(r, lambda i: i[:, ::-1]), "main: mirror",
               {"cameras.main.mirror": True}),
    "state sign": (lambda r: stated(r, negate(0)), "state pan: sign",
                   {"state_factor": [-1.0, 1.0, 1.0, 1.0]}),
    "state degrees": (lambda r: stated(r, scale(180 / math.pi)), "state: degrees", None),
    "state order": (lambda r: stated(r, swap), "state pan<->lift", {"state_order": [1, 0, 2, 3]}),
    "action sign": (lambda r: acted(r, negate(1)), "action lift: sign",
                    {"action_factor": [1.0, -1.0, 1.0, 1.0]}),
    "action degrees": (lambda r: acted(r, scale(180 / math.pi, slice(0, 3))), "action: x57.3",
                       None),
    "action order": (lambda r: acted(r, swap), "action pan<->lift", {"action_order": [1, 0, 2, 3]}),
    "gripper reversed": (lambda r: acted(r, reversed_gripper), "action gripper: 1..0",
                         {"action_factor": [1.0, 1.0, 1.0, -1.0],
                          "action_offset": [0.0, 0.0, 0.0, 1.0]}),
    "gripper 1..-1": (lambda r: acted(r, wide_gripper), "action gripper: 1..-1", None),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_parameter(clean, name):
    plant, key, parameters = FAULTS[name]
    found = check(plant(clean))
    assert found.named is not None, [(t.name, t.error) for t in found.rivals[:3]]
    assert found.named.name == key
    assert found.status == 1
    assert found.named.error < 0.1 < found.before.error
    assert found.margin > 1.5
    if parameters is not None:
        assert found.parameters == parameters


@pytest.mark.parametrize("offset", [0.3, -0.45, 2 * math.pi])
def test_an_offset_of_a_joint_is_found_and_measured(clean, offset):
    def change(state):
        state[:, 1] += offset

    found = check(stated(clean, change))
    assert found.named is not None and found.named.name == "state lift: offset"
    measured = found.parameters["state_offset"]
    assert measured[1] == pytest.approx(-offset, rel=0.35)
    assert [measured[i] for i in (0, 2, 3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("offset", [math.radians(17), -0.45])
def test_a_joint_that_is_assembled_off_is_found_and_measured(clean, offset):
    """In the state and in the commands alike, as of an arm that was calibrated anew."""

    def change(values):
        values[:, 1] += offset

    found = check(acted(stated(clean, change), change))
    assert found.named is not None and found.named.name == "joint lift: offset"
    assert "of the robot is off by" in found.named.chain[0].text
    measured = found.parameters["state_offset"]
    assert measured[1] == pytest.approx(-offset, rel=0.1)
    assert found.parameters["action_offset"] == [-one for one in measured]


@pytest.mark.parametrize(
    ("change", "name", "parameters"),
    [
        (negate(1), "joint lift: sign",
         {"state_factor": [1.0, -1.0, 1.0, 1.0], "action_factor": [1.0, -1.0, 1.0, 1.0]}),
        (swap, "joints pan<->lift",
         {"state_order": [1, 0, 2, 3], "action_order": [1, 0, 2, 3]}),
    ],
)  # fmt: skip
def test_what_a_robot_counts_otherwise_in_state_and_commands_is_one_fault(
    clean, change, name, parameters
):
    found = check(acted(stated(clean, change), change))
    assert found.named is not None
    assert (found.named.name, found.parameters) == (name, parameters)


def test_late_images_are_found(clean):
    source = {r: r - 3 for r in clean.images}
    ends = {e: np.flatnonzero(clean.episodes == e) for e in set(clean.episodes)}
    whole = record("all", 20.0, rows(), 8 * ROWS, 8 * ROWS, NAMES, NAMES, {"main": "main"}, 8)
    images = {
        r: whole.images[max(s, ends[clean.episodes[r]][0])] for r, s in source.items()
    }  # fmt: skip
    found = check(replace(clean, images=images))
    assert found.named is not None
    assert found.named.name in ("image +3", "image +4", "image +2")
    assert "ms" in found.named.chain[0].text


def test_displacements_for_targets_are_named(clean):
    def change(actions):
        actions[:, :3] -= clean.state[:, :3]

    found = check(acted(clean, change))
    assert found.named is not None and found.named.name == "action: joint_delta"
    assert found.parameters == {"action_space": "joint_delta"}


def test_two_faults_at_once(clean):
    both = acted(imaged(clean, lambda i: i[..., ::-1]), reversed_gripper)
    found = check(both)
    assert found.named is not None
    assert {one.key for one in found.named.chain} == {"main: bgr", "action gripper: 1..0"}
    assert found.parameters["cameras.main.colors"] == "bgr"
    assert found.parameters["action_offset"] == [0.0, 0.0, 0.0, 1.0]


class Cornered(Reaching):
    """Goes where the red of one corner of the image is, and sees nothing else."""

    def step(self, observation, timeline, clock):
        corner = observation.image[: SIZE // 2, : SIZE // 2, 0].mean() / 255
        actions = np.tile([*(4 * [corner - 0.5])[:3], self.open], (CHUNK, 1))
        return Inference(observation.stamp_ns, actions, timeline)


def test_two_faults_of_a_camera_of_which_neither_alone_shows_are_found_together(clean):
    asker, red = Asker(Cornered(), clean), clean.actions.copy()
    for row, actions in zip(clean.chosen, asker.ask((), clean.chosen), strict=True):
        red[row : row + CHUNK] = actions
    planted = imaged(replace(clean, actions=red), lambda i: i[::-1, ::-1, ::-1])
    hypotheses = all_of(planted, SPACE, CHUNK, ())
    found = Search(Asker(Cornered(), planted), hypotheses, 60.0).run()
    singles = [one.error for one in found.rivals if len(one.chain) == 1]
    assert min(singles) > 0.9 * found.before.error
    assert found.named is not None
    assert found.parameters == {"cameras.main.colors": "bgr", "cameras.main.rotate": 180}


def unsteady(recording, sway=0.5):
    """As of a hand that sways by ``sway`` rad about what it should do."""
    noise = np.random.default_rng(3).normal(0.0, sway, (len(recording.actions), 3))

    def change(actions):
        actions[:, :3] += noise

    return acted(recording, change)


@pytest.mark.parametrize("name", ["action sign", "action order"])
def test_a_fault_is_named_where_most_of_the_error_is_an_unsteady_hand_s(clean, name):
    plant, key, parameters = FAULTS[name]
    found = check(plant(unsteady(clean)))
    assert found.named is not None, [(t.name, t.error, t.floor) for t in found.rivals[:3]]
    assert (found.named.name, found.parameters) == (key, parameters)
    assert found.named.error > 0.6 * found.before.error  # no convention explains that


def test_an_unsteady_hand_is_no_fault(clean):
    found = check(unsteady(clean))
    assert (found.status, found.named) == (0, None)
    assert found.before.error > 0.3


def test_where_nothing_fits_nothing_is_named(clean):
    noise = np.random.default_rng(0).normal(0, 1, (len(clean.actions), 3))

    def change(actions):
        actions[:, :3] = noise

    found = check(acted(clean, change))
    assert (found.named, found.status) == (None, 2)


def test_a_repair_that_the_policy_does_not_answer_is_none_and_the_others_are_tried(clean):
    """Such as a turn by 90 degrees, of a policy that takes one size of image."""
    known = {one.tobytes() for roles in clean.images.values() for one in roles.values()}

    class Picky(Reaching):
        def step(self, observation, timeline, clock):
            if observation.image.tobytes() not in known:
                raise InvalidAction("an image of another size")
            return super().step(observation, timeline, clock)

    def run(recording):
        hypotheses = all_of(recording, SPACE, CHUNK, ())
        return Search(Asker(Picky(), recording), hypotheses, 60.0).run()

    assert run(clean).status == 0
    found = run(acted(clean, negate(1)))
    assert found.parameters == {"action_factor": [1.0, -1.0, 1.0, 1.0]}
    with pytest.raises(NoAnswer, match="another size"):
        run(imaged(clean, lambda image: image[::-1]))


def test_a_short_budget_says_what_was_not_tried(clean):
    hypotheses = all_of(clean, SPACE, CHUNK, ())
    swapped = imaged(clean, lambda i: i[..., ::-1])
    found = Search(Asker(Reaching(), swapped), hypotheses, 1e-9).run()
    assert found.untried


def test_repairs_of_the_same_value_are_put_together():
    image = ImageAdaptation
    one, two = (h for h in all_of_images() if h.key in ("main: 180", "main: 90"))
    assert combined((one, two)) == {"cameras.main.rotate": 270}
    assert image(rotate=270).apply(picture(np.random.default_rng(1))).shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("seed", range(40))
def test_the_parameters_of_two_repairs_do_what_was_tried(clean, seed):
    """Whatever the robot's file says already."""
    rng = np.random.default_rng(seed)
    known = [h for h in all_of(clean, SPACE, CHUNK, ()) if h.parameters and h.about != "time"]
    first, second = (known[i] for i in rng.choice(len(known), 2, replace=False))
    robot = Adaptation(
        {"main": ImageAdaptation("bgr", 1.0, int(rng.choice([0, 90])), bool(rng.integers(2)))},
        ValueAdaptation((), (-1.0, 1.0, 2.0, 1.0), (0.0, 0.5, 0.0, 0.0)),
        ActionAdaptation(ValueAdaptation((1, 0, 2, 3), (1.0, -1.0, 1.0, 1.0))),
    )
    values = robot.parameters() | combined((first, second), robot)
    if "action_space" in values:
        return  # of another kind of action
    all_ = adaptation_of(values, ("main",))
    raw_image, raw_state = image, state = picture(rng), rng.normal(size=4)
    actions = rng.normal(size=(1, CHUNK, 4))
    taken = robot.action.apply(actions, SPACE)
    for one in (first, second):
        if one.inputs is not None:
            image = one.inputs.adaptation.image("main", image)
            state = one.inputs.adaptation.state.apply(state)
        if one.answer is not None:
            taken = one.answer.change(taken, None)
    near = np.abs(all_.image("main", raw_image).astype(int) - robot.image("main", image)).max()
    assert near <= 2  # two gammas round twice
    assert np.allclose(all_.state.apply(raw_state), robot.state.apply(state))
    assert np.allclose(all_.action.apply(actions, SPACE), taken)


def all_of_images():
    recording = record("rows", 20.0, rows(1), ROWS, 4, NAMES, NAMES, {"main": "main"}, 8)
    return all_of(recording, SPACE, CHUNK, ())


def test_what_the_policy_ignores_is_seen(clean):
    found = {one.what: one for one in sensitivities(Asker(Reaching(), clean), ["main"])}
    assert not found["camera main dark"].ignored
    assert not found["another instruction"].ignored
    assert not found["a state of zeros"].ignored

    class Deaf(Reaching):
        def reset(self, instruction):
            self.open = 1.0

    found = {one.what: one for one in sensitivities(Asker(Deaf(), clean), ["main"])}
    assert found["another instruction"].ignored


def test_a_policy_of_several_observations_is_given_those_before(clean):
    class Moving(Reaching):
        info = replace(Reaching.info, observations=3)

        def reset(self, instruction):
            self.seen = []

        def step(self, observation, timeline, clock):
            self.seen.append(observation.proprio[0])
            return Inference(observation.stamp_ns, np.tile(self.seen[-3:], (CHUNK, 1)), timeline)

    row = clean.chosen[3]
    given = Asker(Moving(), clean).ask((), [row])[0, 0]
    assert np.array_equal(given, clean.state[row - 2 : row + 1, 0])


# What is seen without asking


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda r: acted(r, wide_gripper), "gripper goes from -1 to 1"),
        (lambda r: stated(r, scale(0.0)), "the robot's state is zero"),
        (lambda r: imaged(r, lambda i: np.repeat(i[..., :1], 3, 2)), "camera main is grey"),
        (lambda r: imaged(r, np.ones_like), "shows one image in all rows"),
        (lambda r: replace(r, fps=10.0), "10 Hz, the checkpoint's data 20"),
        (lambda r: replace(r, tasks=("",) * len(r.tasks)), "rows have no instruction"),
    ],
)
def test_a_finding_says_what_is_wrong(clean, change, line):
    found = [one for one in findings(change(clean), Reaching.info) if one.level == "wrong"]
    assert any(line in one.line for one in found), found


def test_a_clean_set_has_no_finding(clean):
    assert [one for one in findings(clean, Reaching.info) if one.level == "wrong"] == []


def test_degrees_beside_radians_and_exchanged_ends_are_found(clean):
    ends = [np.array([-4.0, -4.0, -4.0, 0.0]), np.array([4.0, 4.0, 4.0, 1.0])]
    degrees = acted(clean, scale(180 / math.pi, slice(0, 3)))
    lines = [one.line for one in findings(degrees, Reaching.info, ends)]
    assert any("degrees beside radians" in line for line in lines)
    small = acted(clean, scale(math.pi / 180, slice(0, 3)))
    lines = [one.line for one in findings(small, Reaching.info, ends)]
    assert any("no value in rad reaches 1/" in line for line in lines)
    lines = [one.line for one in findings(clean, Reaching.info, ends[::-1])]
    assert any("its ends are exchanged" in line for line in lines)
    assert not [f for f in findings(clean, Reaching.info, ends) if f.level == "wrong"]


def test_a_joint_a_whole_turn_away_is_found(clean):
    middle = tuple(float(x) for x in np.median(clean.state, axis=0))
    turned = stated(clean, lambda s: s.__setitem__((slice(None), 2), s[:, 2] + 2 * math.pi))
    info = replace(Reaching.info, state_middle=middle)
    lines = [one.line for one in findings(turned, info)]
    assert any("flex of the state is 1 whole turns" in line for line in lines)


def test_an_end_of_the_statistics_that_no_value_comes_near_is_looked_at():
    many = recorded(40)
    assert len(many.actions) >= 1000
    reach = np.abs(many.actions).max(0)
    fits = [-reach, reach]
    assert not [f for f in findings(many, Reaching.info, fits) if "comes near" in f.line]
    lopsided = [-reach, reach * [1.0, 4.0, 1.0, 1.0]]
    (found,) = [f for f in findings(many, Reaching.info, lopsided) if "comes near" in f.line]
    assert found.level == "look" and found.line.startswith(many.names[1])
    few = recorded(4)
    assert not [f for f in findings(few, Reaching.info, lopsided) if "comes near" in f.line]


def test_instructions_are_held_against_those_of_the_training_data(clean, tmp_path):
    meta = tmp_path / "policy" / "meta"
    meta.mkdir(parents=True)
    (meta / "tasks.jsonl").write_text(
        "".join(json.dumps({"task": text}) + "\n" for text in ("Reach it.", "stack"))
    )
    trained, unread = trained_texts(str(meta.parent))
    assert (trained, unread) == ({"Reach it.", "stack"}, "")

    def lines(text):
        told = replace(clean, tasks=(text,) * len(clean.tasks))
        return [f.line for f in findings(told, Reaching.info, (), trained)]

    assert not [line for line in lines("stack") if "instruction" in line]
    assert any("the training data write it 'Reach it.'" in line for line in lines("reach it"))
    assert any("none of the 2 of the training data" in line for line in lines("open the box"))
    assert trained_texts("shipped:nothing") == (frozenset(), "")
    (meta / "tasks.jsonl").write_text("{no json")
    trained, unread = trained_texts(str(meta.parent))
    assert not trained and "are not read" in unread and "tasks.jsonl" in unread
    (tmp_path / "policy" / "train_config.json").write_text(
        json.dumps({"dataset": {"root": str(tmp_path / "set")}})
    )
    (tmp_path / "set" / "meta").mkdir(parents=True)
    (tmp_path / "set" / "meta" / "tasks.jsonl").write_text('{"task": "pour"}')
    assert trained_texts(str(meta.parent)) == ({"pour"}, "")


def test_instructions_of_v3_are_read_by_a_python_that_has_pyarrow(tmp_path, monkeypatch):
    python, meta = interpreter(), tmp_path / "meta"
    meta.mkdir()
    write = (
        "import pandas, sys;"
        "pandas.DataFrame({'task_index': [0, 1]}, index=pandas.Index(['Reach it.', 'stack'],"
        " name=sys.argv[2] or None)).to_parquet(sys.argv[1])"
    )
    for name in ("task", ""):  # newer LeRobots name the index
        subprocess.run([python, "-c", write, str(meta / "tasks.parquet"), name], check=True)
        assert trained_texts(str(tmp_path)) == ({"Reach it.", "stack"}, "")
    (meta / "tasks.parquet").write_bytes(b"PAR1, and no more")
    found, unread = trained_texts(str(tmp_path))
    assert not found and "tasks.parquet" in unread and "\n" not in unread
    if importlib.util.find_spec("pyarrow") is None:
        monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", str(tmp_path / "none"))
        assert "needs pyarrow: `pip install pyarrow`, or" in trained_texts(str(tmp_path))[1]


# Recordings


def test_images_are_kept_around_the_chosen_rows_alone(clean):
    assert len(clean.chosen) == 24
    near = {row + lag for row in clean.chosen for lag in LAGS}
    assert set(clean.images) <= near
    assert clean.row(clean.chosen[0], 3) == clean.chosen[0] + 3
    last = int(np.flatnonzero(clean.episodes == 0)[-1])
    assert np.isnan(clean.labels(last, 1, 2)).all()


def test_other_widths_cameras_and_states_are_refused_in_a_line(clean):
    three = replace(clean, actions=clean.actions[:, :3], names=NAMES[:3])
    with pytest.raises(UserError, match="has actions of 3 numbers"):
        refuse_width(three, SPACE)
    with pytest.raises(UserError, match="the checkpoint looks through main, wrist"):
        findings(clean, replace(Reaching.info, cameras=2))
    with pytest.raises(UserError, match="needs 6 values of robot state"):
        state_of(clean, "joints", (), 6)
    with pytest.raises(UserError, match="has no state of elbow"):
        state_of(clean, "joints", ("elbow",), 1)
    with pytest.raises(UserError, match="there is no camera 'top'"):
        roles_of(("front",), {"main": "top"})
    with pytest.raises(UserError, match="none of its 2 rows"):
        record("two", 20.0, rows(), 2, 4, NAMES, NAMES, {"main": "main"}, 8)


def test_the_state_is_in_the_order_of_joint_names(clean):
    found = state_of(clean, "joints", ("lift", "pan"), 2)
    assert np.array_equal(found.state, clean.state[:, [1, 0]])


def test_cameras_have_their_roles():
    assert roles_of(("front", "hand_cam"), {}) == {"front": "main", "hand_cam": "wrist"}
    assert roles_of(("a", "b"), {"main": "b"}) == {"b": "main", "a": "a"}
    assert roles_of(("wrist",), {}) == {"wrist": "main"}
