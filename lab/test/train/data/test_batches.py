from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.train import CPU, OBJECTS, SENTENCES, SIZE, TOKENIZER, recipe, sequences, tokenize
from vla_ros.engine.io.config import IMAGENET_MEAN, IMAGENET_STD
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.sim.tasks import parse_instruction
from vla_ros_lab.train.ahead import futures
from vla_ros_lab.train.batches import Batches, common_prefix, family_weights
from vla_ros_lab.train.demonstrations import BODIES
from vla_ros_lab.train.frames import load_frames, wordings
from vla_ros_lab.train.trainer import ARCHITECTURES

CONFIG = ARCHITECTURES["tiny"]


def draws(frames, config=CONFIG, **more):
    wanted = recipe("", **{"batch": 32, "branches": 3, "shift": 0, **more})
    return Batches(frames, config, tokenize, wanted, CPU)


def batches(data, **more):
    frames = load_frames([data], SIZE, 1)
    return frames, draws(frames, **{"batch": 16, "shift": 3, **more})


def same(one, other):
    parts = ("pixels", "ids", "rows", "tokens", "patches", "places", "words")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in parts)


def test_a_batch_is_a_function_of_seed_and_step(data):
    _, first = batches(data)
    _, again = batches(data)
    _, other = batches(data, seed=1)
    assert same(first.batch(7), again.batch(7))
    assert not same(first.batch(7), first.batch(8))
    assert not same(first.batch(7), other.batch(7))


def test_sequences_are_prompt_then_action_tokens(data):
    frames, drawn = batches(data)
    goal_of = {tuple(tokenize(t)): g for g in frames.goals for t in wordings(g)}
    batch = drawn.batch(0)
    for found, tokens in zip(sequences(batch, CONFIG), batch.tokens.tolist(), strict=True):
        assert [answer for _, answer in found] == [own[:-1] for own in tokens]
        assert len({goal_of[tuple(prompt)] for prompt, _ in found}) == 3  # no instruction twice


def test_the_first_sentence_is_the_one_pursued_and_each_has_its_own_action(data):
    _, drawn = batches(data)
    batch = drawn.batch(3)
    zero = ActionTokens(CONFIG.action_vocab).encode(torch.zeros(1).double().numpy())[0]
    along_x = batch.tokens[:, :, 0] - zero
    # In this set every other instruction asks for the opposite.
    assert ((along_x[:, :1] + along_x[:, 1:]).abs() <= 2).all()
    assert along_x.abs().max() > 50


def test_one_sentence_an_image_is_the_one_pursued(data):
    frames, drawn = batches(data, branches=1, batch=8)
    batch = drawn.batch(0)
    pursued = [tokenize(text) for n in frames.goal.unique() for text in wordings(frames.goals[n])]
    assert all(prompt in pursued for ((prompt, _),) in sequences(batch, CONFIG))


def test_a_sentence_points_at_the_things_it_names(data):
    frames, _ = batches(data)
    frames.images[:] = torch.arange(len(frames)).view(-1, 1, 1, 1, 1)  # to be told apart
    drawn = draws(frames)
    batch, side = drawn.batch(5), 4
    words = {n: w for w, n in TOKENIZER.get_vocab().items()}
    common = batch.layout.common - CONFIG.patches
    found = 0
    for n, (ids, rows) in enumerate(zip(batch.ids, batch.words, strict=True)):
        row = (frames.images == drawn_image(batch, n, frames)).flatten(1).all(1).nonzero()[0, 0]
        for k in range(3):
            named = [words[int(ids[at - CONFIG.patches])] for at in rows[k]]
            for slot, word in enumerate(named):
                thing = f"{word.removeprefix('Ġ')}_cube"
                assert thing in OBJECTS, word
                x, y = (frames.pixels[row, 0, OBJECTS.index(thing)] // 8).int().tolist()
                if slot == 0 or named[0] != named[1]:  # a plate has no word of its own
                    assert batch.places[n, k, slot] == y * side + x
                    found += 1
    assert found > 96 and common > 0


def test_without_poses_an_older_image_comes_with_its_age_and_with_what_is_right_now(data):
    config = replace(CONFIG, max_delay=4)
    frames = replace(load_frames([data], SIZE, 1, delays=4), posed=False)
    frames.images[:] = torch.arange(len(frames.images)).view(-1, 1, 1, 1, 1)  # to be told apart
    drawn = draws(frames, config)
    assert same(drawn.batch(5), drawn.batch(5))
    words = {n: w for w, n in TOKENIZER.get_vocab().items()}
    actions = ActionTokens(config.action_vocab)
    ages = []
    for step in range(4):
        batch = drawn.batch(step)
        for n, found in enumerate(sequences(batch, config)):
            image = int(drawn_image(batch, n, frames).flatten()[0])
            texts = ["".join(words[i] for i in prompt).replace("Ġ", " ") for prompt, _ in found]
            (age,) = {int(text.rpartition("?")[0].rpartition(" in ")[2]) for text in texts}
            ages.append(age)
            row = int((frames.image_index[:, 0] == image).nonzero()) + age  # all are worth training
            assert frames.image_index[row, age] == image and frames.longest_delay[row, 0] >= age
            own = frames.values[row, frames.goal[row]].double().numpy()
            assert batch.tokens[n, 0].tolist() == actions.encode(own)
    assert set(ages) == set(range(5))
    assert ages.count(0) > 1.5 * ages.count(4), "fresh ones more often"


def test_what_is_right_later_is_what_the_expert_does_once_its_own_actions_followed(data):
    config = replace(CONFIG, max_delay=4)
    frames = load_frames([data], SIZE, 1, delays=4)
    frames.images[:] = torch.arange(len(frames.images)).view(-1, 1, 1, 1, 1)  # to be told apart
    frames.longest_delay[:] = 0  # it does not matter
    drawn = draws(frames, config)
    assert same(drawn.batch(5), drawn.batch(5))
    words = {n: w for w, n in TOKENIZER.get_vocab().items()}
    actions = ActionTokens(config.action_vocab)
    goal_of = {text.lower(): g for g in frames.goals for text in wordings(g)}
    ages = []
    for step in range(4):
        batch = drawn.batch(step)
        for n, found in enumerate(sequences(batch, config)):
            row = int(
                (frames.image_index[:, 0] == int(drawn_image(batch, n, frames).max())).nonzero()
            )
            for k, (prompt, _) in enumerate(found):
                text = "".join(words[i] for i in prompt).replace("Ġ", " ").rpartition("?")[0]
                asked, _, age = text.rpartition(" in ")
                goal = goal_of[asked.rpartition("robot take to ")[2]]
                ages.append(int(age))
                if ages[-1]:
                    (ahead,) = futures(
                        frames.poses[row : row + 1].numpy(), frames.before[row : row + 1].numpy(),
                        [goal], np.array(frames.info.scale), 5,
                    )  # fmt: skip
                    wanted = ahead[ages[-1]].astype(np.float64)
                else:
                    wanted = frames.values[row, frames.goals.index(goal)].double().numpy()
                assert batch.tokens[n, k].tolist() == actions.encode(wanted)
    assert set(ages) == set(range(5))
    assert ages.count(0) > 1.5 * ages.count(4), "fresh ones more often"


def drawn_image(batch, n, frames):
    tower = CONFIG.towers[0]
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (tower.mean, tower.std))
    image = (batch.pixels[n] * std + mean) * 255
    return image.round().to(torch.uint8).permute(0, 2, 3, 1)[None]


@given(st.lists(st.lists(st.integers(0, 2), min_size=2), min_size=1, max_size=4))
def test_the_common_prefix_leaves_something_of_every_prompt(prompts):
    prefix = common_prefix(prompts)
    assert all(p[: len(prefix)] == prefix and len(p) > len(prefix) for p in prompts)
    longer = len(prefix) + 1
    shortest = min(map(len, prompts))
    assert shortest == longer or len({tuple(p[:longer]) for p in prompts}) > 1


def test_without_augmentation_pixels_are_the_engine_s(data):
    tower = replace(CONFIG.towers[0], mean=IMAGENET_MEAN, std=IMAGENET_STD)
    config, frames = replace(CONFIG, towers=(tower,)), load_frames([data], SIZE, 1)
    seen = Preprocessor(config, CPU, torch.float32, crop=False)
    possible = torch.stack([seen(image[0].numpy())[0][0] for image in frames.images])
    for pixels in draws(frames, config).batch(0).pixels[:, 0]:
        assert (possible - pixels).abs().flatten(1).amax(1).min() < 1e-5


def test_a_shift_moves_image_and_labels_together(data):
    """A white patch lies where the red cube is labelled; after the shift it still does."""
    frames, _ = batches(data)
    red = OBJECTS.index("red_cube")
    for image, pixels in zip(frames.images[:, 0], frames.pixels[:, 0], strict=True):
        pixels[:] = -100.0
        pixels[red] = torch.tensor([12.0, 20.0])
        image[:] = 0
        image[16:24, 8:16] = 255  # the patch of pixel 12, 20
    drawn = draws(frames, branches=1, shift=3)
    batch = drawn.batch(0)
    bright = batch.pixels[:, 0].mean(1)
    rows, columns = bright.amax(2).argmax(1), bright.amax(1).argmax(1)
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) > 5  # it did move
    for image, labels in zip(bright, batch.patches, strict=True):
        middle = (image > (image.max() + image.min()) / 2).float()
        weight = middle / middle.sum()
        along = torch.arange(SIZE) + 0.5
        y, x = (weight.sum(1) * along).sum(), (weight.sum(0) * along).sum()
        cell = int(y // 8) * 4 + int(x // 8)
        assert labels[cell] == red + 1
        assert labels.count_nonzero() == 1


def test_a_rare_family_is_drawn_more_often_than_its_share(data):
    frames, _ = batches(data)
    first, second = (frames.goals.index(parse_instruction(text)) for text in SENTENCES)
    frames.goal[:] = second
    frames.goal[:4] = first  # 4 reaches among 40 frames
    chances = family_weights(frames)
    share = (chances[:4].sum() / chances.sum()).item()
    total = (len(frames) - 4) ** 0.5 + 2
    assert share == pytest.approx(2 / total)


def test_no_instruction_is_drawn_for_which_an_older_image_does_not_show_what_is_to_be_done(data):
    config = replace(CONFIG, max_delay=4)
    frames = replace(load_frames([data], SIZE, 1, delays=4), posed=False)
    hidden = torch.arange(len(frames.goals)) % 2 == 0
    own = frames.longest_delay[torch.arange(len(frames)), frames.goal].clone()
    frames.longest_delay[:, hidden] = 0
    frames.longest_delay[torch.arange(len(frames)), frames.goal] = own
    drawn = draws(frames, config)
    index = torch.arange(len(frames))
    draw = torch.Generator().manual_seed(0)
    older = drawn._goals(index, own.clamp(max=4), draw)[own > 0]
    fresh = drawn._goals(index, torch.zeros_like(index), draw)
    assert not hidden[older[:, 1:]].any() and hidden[fresh[:, 1:]].any()


def test_a_cube_is_carried_where_fingers_hold_it_and_the_teacher_keeps_it(data):
    frames, _ = batches(data)
    names = [goal.object for goal in frames.goals]
    hand = BODIES.index("gripper")
    poses = torch.arange(len(BODIES)).float()[:, None].repeat(len(frames), 1, 7)
    poses[:, hand] = poses[:, BODIES.index(names[0])]
    fingers = torch.full((len(frames), 2), 0.02)
    values = frames.values.clone()
    values[:, :, 6] = -1  # closed
    holding = {"poses": poses, "values": values, "posed": True, "fingers": fingers}
    held = draws(replace(frames, **holding))
    own = torch.tensor([name == names[0] for name in names])
    index = torch.arange(4)
    goals = torch.arange(len(names)).expand(4, -1)
    assert (held._carried(index, goals) == own).all() and own.any() and not own.all()
    away = poses.clone()
    away[:, hand, 0] += 0.05
    wide = {"fingers": 2 * fingers}
    for what in (wide, {"poses": away}, {"values": -values}, {"posed": False}):
        changed = draws(replace(frames, **(holding | what)))
        assert not changed._carried(index, goals).any()
