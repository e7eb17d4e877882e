"""GR00T's action head against NVIDIA's own, and what it does not read or makes only once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from golden.flow.seeded import draw
from golden.groot.cases import (
    CONTEXT,
    CONTEXT_HEADS,
    EMBODIMENT,
    HEAD_DIM,
    HEAD_HEADS,
    HEADS,
    HEADS_ALL,
)
from golden.groot.drawn import weight
from vla_ros.engine.flow.groot.head import ActionHead
from vla_ros.engine.flow.groot.shapes import HeadConfig, head_shapes

GOLDEN = Path(__file__).resolve().parents[4] / "golden" / "groot" / "head.npz"
IMAGES = [i for i, kind in enumerate(CONTEXT) if kind == "i"]
ORDER = IMAGES + [i for i, kind in enumerate(CONTEXT) if kind == "t"]
BOUND = 1e-5


def config_of(name: str) -> HeadConfig:
    case = HEADS[name]
    return HeadConfig(
        horizon=HEADS_ALL["action_horizon"],
        action_width=HEADS_ALL["max_action_dim"],
        state_width=HEADS_ALL["max_state_dim"],
        layers=case["layers"],
        heads=HEAD_HEADS,
        head_dim=HEAD_DIM,
        context_width=HEADS_ALL["backbone_embedding_dim"],
        hidden=HEADS_ALL["hidden_size"],
        text_every=HEADS_ALL["attend_text_every_n_blocks"] * case["use_alternate_vl_dit"],
        context_layers=case["vl_layers"],
        context_heads=CONTEXT_HEADS,
        positions=HEADS_ALL["max_seq_len"],
        embodiments=HEADS_ALL["max_num_embodiments"],
    )


class Drawn:
    """Weights of a case, and which of them were taken whole."""

    def __init__(self, name: str, config: HeadConfig) -> None:
        self.name, self.shapes, self.rows = name, head_shapes(config, ""), set[int]()
        self.left = set(self.shapes)

    def take(self, name: str) -> torch.Tensor:
        self.left.remove(name)
        return torch.from_numpy(weight(f"{self.name}/{name}", self.shapes[name]))

    def take_row(self, name: str, row: int) -> torch.Tensor:
        self.rows.add(row)
        return self.take(name)[row]


class Case:
    def __init__(self, name: str, padding: int = 0) -> None:
        with np.load(GOLDEN) as arrays:
            own = [n for n in arrays.files if n.startswith(f"{name}/")]
            self.golden = {n.split("/")[1]: arrays[n] for n in own}
        self.config = config_of(name)
        self.drawn = Drawn(name, self.config)
        count = len(CONTEXT)
        self.head = ActionHead(
            self.config, self.drawn, EMBODIMENT, torch.empty(0), count + padding + 3,
            padded=padding > 0, base="",
        )  # fmt: skip
        self.context = self.head.context(len(IMAGES), count + padding)
        rows = torch.from_numpy(draw(f"{name}/rows", 1, count, 40))[0][ORDER]
        rows = torch.cat((rows, torch.full((padding, 40), 7.0)))
        self.head.hide(self.context, count)
        self.refined = self.head.refine(self.context, rows)
        self.head.cross(self.context, self.refined)
        self.head.begin(torch.from_numpy(draw(f"{name}/state", 1, 1, 9))[0, 0])
        self.noise = torch.from_numpy(draw(f"{name}/noise", 1, 7, 11))[0]

    def chunk(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The velocities on the way [N, H, D], and where it ends."""
        x, speeds = self.noise.clone(), []
        for step in range(self.config.steps):
            speeds.append(self.head.velocity(self.context, x, step))
            x = x + speeds[-1] / self.config.steps
        return torch.stack(speeds), x


@pytest.fixture(params=list(HEADS))
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def off(ours: torch.Tensor, theirs: np.ndarray) -> float:
    assert tuple(ours.shape) == theirs.shape
    return float(np.abs(ours.numpy() - theirs).max())


def test_a_chunk_is_nvidias_at_every_stage(case: Case) -> None:
    back = torch.tensor(ORDER).argsort()
    speeds, chunk = case.chunk()
    found = {
        "context": off(case.refined[back], case.golden["context"]),
        "velocities": off(speeds, case.golden["velocities"]),
        "chunk": off(chunk, case.golden["chunk"]),
    }
    assert np.abs(case.golden["velocities"]).max() > 0.5
    assert max(found.values()) < BOUND, found


def test_times_are_the_integers_that_nvidias_code_cuts(case: Case) -> None:
    assert list(case.config.times) == case.golden["times"].tolist()


@pytest.mark.parametrize("steps", [3, 7, 10, 32])
def test_times_are_cut_in_float64(steps: int) -> None:
    times = replace(config_of("plain"), steps=steps).times
    assert list(times) == [int(t / float(steps) * 1000) for t in range(steps)]


def test_the_tensors_are_those_of_nvidias_module(case: Case) -> None:
    assert sorted(head_shapes(case.config, "")) == case.golden["tensors"].tolist()


def test_every_tensor_is_read_and_of_the_embodiments_one_row(case: Case) -> None:
    assert not case.drawn.left
    assert case.drawn.rows == {EMBODIMENT}


@pytest.mark.parametrize("name", list(HEADS))
def test_padding_behind_a_context_changes_nothing(name: str) -> None:
    plain, padded = Case(name), Case(name, padding=5)
    assert (plain.chunk()[1] - padded.chunk()[1]).abs().max() < BOUND


def test_a_block_reads_the_text_or_the_images_alone() -> None:
    case = Case("alternate")
    reads = [case.config.reads_text(layer) for layer in case.config.crossing]
    assert reads == [True, False, True]
    assert [k.shape[1] for k in case.context.keys] == [4, 6, 4]
    before = case.head.velocity(case.context, case.noise, 0)
    for keys, text in zip(case.context.keys, reads, strict=True):
        if text:
            keys.zero_()
    assert not torch.equal(before, case.head.velocity(case.context, case.noise, 0))


def test_a_context_that_does_not_fit_is_refused() -> None:
    head = Case("plain").head
    for images, length in ((3, 3), (2, 40), (-1, 4)):
        with pytest.raises(ValueError, match="rows"):
            head.context(images, length)


def test_an_embodiment_that_is_none_is_refused() -> None:
    config = config_of("plain")
    with pytest.raises(ValueError, match="embodiment 5 of 5"):
        ActionHead(config, Drawn("plain", config), 5, torch.empty(0), 8, base="")
