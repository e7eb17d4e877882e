"""HeteroSpec over a recursive head: the bin's tree and no other, and no token changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.calibrations import write_calibration
from support.engine import TEXTS, engine_of, play, stream, tiny, tiny_config
from support.heads import recursive_head, rollouts
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.decoding.draft_tree import Budget, Cost, DraftTree, likeliest
from vla_ros.engine.decoding.tree_growth import TreeFrame, TreeGrower, entropy, merged, shape_of
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros_lab.decodings.calibration import FILE, from_json, path_entropy, plan_bins
from vla_ros_lab.decodings.heterospec import bin_trees
from vla_ros_lab.heterospec import Unrolled, hindsight, rounds, to_json
from vla_ros_lab.roofline.calibration import fit
from vla_ros_lab.roofline.rivals import best_chain, by_bins, counted, rivals

CHUNK, COUNT = 2, 14
CONFIG = replace(tiny_config(), chunk=CHUNK)
ACTIONS = ActionTokens(960)


def embed(tokens: torch.Tensor) -> torch.Tensor:
    draw = torch.Generator().manual_seed(7)
    return torch.randn(960, 64, generator=draw)[tokens]


def offered(frames: int = 60) -> list[Unrolled]:
    """What a head offers of episodes that nobody played."""
    from vla_ros_lab.train.head.replayed import replayed

    head = recursive_head(CONFIG, COUNT, seed=3)
    episodes = [rollouts(CONFIG, COUNT, frames, seed) for seed in range(2)]
    return replayed(head, episodes, embed, ACTIONS, CHUNK)  # type: ignore[return-value]


def test_trees_are_put_together_and_cut_out_again() -> None:
    wide, deep = likeliest([[0.5, 0.4]] * 2, 6), DraftTree((-1, 0, 1, 2), (0, 0, 0, 0))
    whole = merged([wide, deep])
    assert len(whole) == 8
    assert whole.levels == (1, 1, 2, 2, 2, 2, 3, 4)
    part, all_ = shape_of(deep, whole), shape_of(whole)
    assert part.levels == all_.levels
    assert len(part.nodes) == 4
    bunch = bin_trees((wide, deep), 9, 2)
    assert bunch.common == 1
    assert [len(s.levels) for s in bunch.shapes] == [1, 3]  # the deep one goes on


def test_entropy_is_that_of_the_calibration() -> None:
    levels = [[0.5, 0.3, 0.1], [0.9, 0.05, 0.0]]
    assert float(entropy(torch.tensor(levels))) == pytest.approx(path_entropy(levels), abs=1e-5)


def test_replayed_rounds_offer_what_is_left_of_the_answer() -> None:
    frames = offered(12)
    assert frames[0].offer is None
    frame = frames[5]
    for known in range(COUNT - 1):
        offer = frame.open(known)
        assert offer is not None
        open_ = COUNT - 1 - known
        assert len(offer.chances) == (COUNT if not known else min(12, open_) + 1)
        assert known == 0 or len(frame.right(known)) == min(12, open_)
    assert frame.open(COUNT - 1) is None
    played = list(rounds(frames, lambda offer, known: DraftTree((-1,), (0,))))
    assert sum(one.stood for one in played) + len(played) == COUNT * len(frames)
    assert len(list(hindsight(frames))) < len(played)


def test_replayed_is_what_a_drafter_grows() -> None:
    """Chances of the likeliest path, and the rank of what was said, at one place of one frame."""
    from vla_ros_lab.train.head.recursive import answers_of

    head, episode = recursive_head(CONFIG, COUNT, seed=3), rollouts(CONFIG, COUNT, 6, 0)
    frames = offered(6)
    answers = answers_of([episode], ACTIONS, CHUNK)
    frame, known = 4, 5
    path = shape_of(DraftTree((-1, 0, 1), (0, 0, 0)))
    grower = TreeGrower(head, embed, ACTIONS.first, lambda place: 0, TreeFrame.around([path]))
    grower.add_taps(answers.taps[frame, :known].float())
    told = [t[frame, :known, 0].tolist() for t in (answers.last, answers.before)]
    ahead = [t[frame, known - 1, :3].tolist() for t in (answers.last, answers.before)]
    said = answers.tokens[frame].tolist()
    with torch.inference_mode():
        grower.begin(said[:known], tuple(told), tuple(ahead))
        grower.through(path, 2)
    for level, best in enumerate(grower.best):
        wanted = torch.tensor(frames[frame].chances[known - 1][level])
        torch.testing.assert_close(best, wanted, rtol=1e-4, atol=1e-6)


def test_a_fit_gives_every_number_of_known_tokens_trees_of_its_own() -> None:
    frames = offered()
    fitted = fit(frames, Budget(8, 12), about={"drafter": "head"})
    back = from_json(json.loads(json.dumps(to_json(fitted.calibration))))
    assert back.tokens == COUNT
    plan = plan_bins(back)
    for known, trees in enumerate(plan.trees):
        assert all(max(tree.levels, default=0) <= COUNT - 1 - known for tree in trees)
    paid = plan_bins(back, Cost(0.1, 0.01), Cost(0.1, 0.01, 0.3))
    assert sum(len(t) for ts in paid.trees for t in ts) < sum(
        len(t) for ts in plan.trees for t in ts
    )
    rows = {row.name: row for row in rivals(fitted, frames, frames)}
    assert rows["best tree in hindsight"].passes <= rows["heterospec"].passes
    mine = counted("", rounds(frames, by_bins(fitted, plan)))
    assert mine.passes == pytest.approx(rows["heterospec"].passes)
    best_chain(frames)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("head")
    save_head(path, recursive_head(CONFIG, COUNT, seed=3))
    fitted = fit(offered(), Budget(8, 12), about={"drafter": "head"})
    (path / FILE).write_text(json.dumps(to_json(fitted.calibration)))
    return path


@pytest.mark.parametrize("options", [{"adaptive_draft": False}, {}, {"gamma": 3}])
def test_it_says_the_same(folder: Path, options: dict[str, object]) -> None:
    checkpoint = tiny(CONFIG, seed=2)
    events = stream(16, {0: TEXTS[0], 6: TEXTS[1], 11: TEXTS[1]}, seed=3)
    head = {"drafter": "head", "draft_checkpoint": str(folder), **options}
    answers = play(engine_of(checkpoint, "heterospec", **head), events)
    plain = play(engine_of(checkpoint, "generate"), events)
    assert {s: a.tokens for s, a in answers.items()} == {s: a.tokens for s, a in plain.items()}
    if options.get("adaptive_draft") is False:
        assert sum(a.draft_passes for a in answers.values()) > 30
        assert sum(sum(a.accepted) for a in answers.values()) > 10


def test_a_calibration_of_another_drafter_says_so(folder: Path, tmp_path: Path) -> None:
    other = write_calibration(tmp_path, COUNT)
    head = {"drafter": "head", "draft_checkpoint": str(folder), "extra": other}
    with pytest.raises(ValueError, match="calibrate --drafter head"):
        engine_of(tiny(CONFIG), "heterospec", **head)
    with pytest.raises(ValueError, match="of drafter head, not temporal_tree"):
        engine_of(tiny(CONFIG), "heterospec", extra=(f"calibration={folder / FILE}",))
