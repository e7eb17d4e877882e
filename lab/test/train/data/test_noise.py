import numpy as np

from vla_ros_lab.train.collect import Disturbance


def run(seed, steps=200):
    disturb = Disturbance(np.random.default_rng(seed))
    clean = np.array([0.2, 0.0, -0.9, 0.0, 0.1, 0.0, 1.0])
    return clean, np.array([disturb(clean) for _ in range(steps)])


def test_it_disturbs_the_arm_and_never_the_gripper():
    moved = 0
    for seed in range(20):
        clean, done = run(seed)
        assert (done[:, 6] == clean[6]).all()
        assert np.abs(done).max() <= 1.0
        moved += bool(np.abs(done - clean).max() > 0.2)
    assert 10 <= moved < 20  # some episodes are calm


def test_it_leaves_the_label_alone_and_repeats_itself():
    clean, first = run(3)
    _, again = run(3)
    assert np.array_equal(first, again)
    assert clean[2] == -0.9


def test_an_episode_begins_with_a_way_of_its_own():
    """Where the arm is after some steps must not tell where it was going."""
    clean, _ = run(0)
    ways = [done[:3, :3].mean(0) for _, done in map(run, range(40))]
    wandering = [way for way in ways if np.abs(way - clean[:3]).max() > 0.15]
    assert len(wandering) > 20
    assert np.std([way[1] for way in wandering]) > 0.3


def test_most_steps_are_disturbed_little():
    distances = np.concatenate([np.abs(d - c).max(1) for c, d in map(run, range(20))])
    assert np.median(distances) < 0.2
    assert (distances > 0.3).mean() > 0.05  # and now and then much
