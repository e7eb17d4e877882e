"""Batches: a pure function of (frames, seed, step), so training can stop and go on anywhere.

An answer is an action of 7 tokens, or of a policy that gives chunks C of them, step after step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from vla_ros.core.errors import UserError
from vla_ros.core.types import ACTION_DIM
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.sim.tasks import COLORS, Family, Goal, cube
from vla_ros_lab.train.ahead import futures
from vla_ros_lab.train.frames import (
    NOWHERE,
    Asked,
    ForeignInstruction,
    FrameImages,
    FrameTable,
    mixed,
    places_of,
    wordings,
)

# What an instruction is answered with: the tokens of an action, or of all actions of a chunk.
#
# Of an action they are in the data. A chunk is worked out when it is drawn
# (:mod:`vla_ros_lab.train.ahead`), so it is known for every instruction, whoever acted in the
# frame.


class AnswerBatch(ABC):
    """``count``: tokens of an answer."""

    count: int

    @abstractmethod
    def __call__(
        self, index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        """Tokens int64 [B, K, count] for frames [B] and K goals of each [B, K]; on the CPU."""


class Actions(AnswerBatch):
    """What the expert would do now."""

    count = ACTION_DIM

    def __init__(self, frames: FrameTable, actions: ActionTokens) -> None:
        self._tokens = encode(actions, frames.values).to(torch.int32)

    def __call__(
        self, index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        return self._tokens[index[:, None], goals].long()


class Chunks(AnswerBatch):
    """What it would do now and in the steps that follow: all of a step before the next step, as
    the engine decodes and OpenVLA-OFT orders a chunk. UserError: there are no poses."""

    def __init__(self, frames: FrameTable, actions: ActionTokens, chunk: int) -> None:
        refuse_unposed(frames)
        self._frames, self._actions, self._chunk = frames, actions, chunk
        self.count = chunk * ACTION_DIM

    def __call__(
        self, index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        values = chunks_ahead(self._frames, index, goals, self._chunk, draw)
        return encode(self._actions, values).flatten(2)


def answers_of(frames: FrameTable, actions: ActionTokens, chunk: int) -> AnswerBatch:
    """Those that a policy of ``chunk`` actions learns."""
    return Actions(frames, actions) if chunk == 1 else Chunks(frames, actions, chunk)


def refuse_unposed(frames: FrameTable) -> None:
    """UserError where nobody can say what lies ahead of a frame."""
    if frames.info.own_sentence:
        raise UserError(
            "these chunks are worked out from where everything is, and a set from elsewhere does"
            " not say it: take --arch small or small-oft"
        )
    if not frames.posed:
        raise UserError(
            "chunks are trained on what lies ahead of a frame, and this data set has no poses:"
            " collect it anew with vla-ros collect"
        )


def chunks_ahead(
    frames: FrameTable,
    index: torch.Tensor,
    goals: torch.Tensor,
    horizon: int,
    draw: torch.Generator,
) -> torch.Tensor:
    """Values (see units) float32 [B, K, horizon, 7] of the expert, for K goals of each frame.

    ``draw``: where the expert has two ways and nothing tells which, chance does.
    """
    flat = index[:, None].expand_as(goals).flatten()
    swing = None
    if frames.info.two_ways:
        swing = torch.randint(2, flat.shape, generator=draw).double().numpy() * 2 - 1
    values = futures(
        frames.poses[flat].numpy(),
        frames.before[flat].numpy(),
        [frames.goals[number] for number in goals.flatten().tolist()],
        np.array(frames.info.scale),
        horizon,
        swing,
    )
    return torch.from_numpy(values).view(*goals.shape, horizon, ACTION_DIM)


def encode(actions: ActionTokens, values: torch.Tensor) -> torch.Tensor:
    """Values [...] in [-1, 1] -> the engine's tokens, int64 [...]."""
    flat = actions.encode(values.cpu().double().flatten().numpy())
    return torch.tensor(flat, dtype=torch.long).view(values.shape)


# How the tokens of a training sequence see each other: many instructions on one image.


@dataclass(frozen=True, slots=True)
class TreePrefixLayout:
    """A tree of two levels: ``common`` tokens (patches included), then ``branches`` of ``length``
    tokens that see the common part and themselves: many instructions on one image for the price of
    one prefill."""

    common: int
    branches: int = 0
    length: int = 0

    @property
    def total(self) -> int:
        return self.common + self.branches * self.length

    def positions(self, device: torch.device) -> torch.Tensor:
        """int64 [total]; every branch goes on from the end of the common part."""
        first = torch.arange(self.common, device=device)
        branch = torch.arange(self.common, self.common + self.length, device=device)
        return torch.cat((first, branch.repeat(self.branches)))

    def mask(self, device: torch.device) -> torch.Tensor:
        """bool [total, total]: row sees column."""
        place = torch.arange(self.total, device=device)
        branch = torch.where(place < self.common, -1, (place - self.common) // max(self.length, 1))
        shared = (branch[None] == -1) | (branch[:, None] == branch[None])
        return shared & (place[:, None] >= place[None])


_UNKNOWN = 1e-12  # chance of an instruction for which the image does not show what is to be done
_FRESH = 2  # delays more, all of them 0: a policy that is told is not to be worse where it is quick


@dataclass(frozen=True, slots=True)
class Batch:
    """``pixels`` [B, images, 3, s, s]; ``ids`` int64 [B, L] of ``layout``: a branch is the rest
    of a prompt and the answer's n tokens but the last; ``rows`` int64 [B, K, n] where they are
    predicted; ``tokens`` int64 [B, K, n]. Labels of the auxiliary losses: ``patches`` int64
    [B, patches]; ``places`` int64 [B, K, 2], the patches in the first image of the thing to
    move and of where it goes, and ``words`` int64 [B, K, 2], the rows of the words for them. The
    first branch is the instruction that was pursued."""

    layout: TreePrefixLayout
    pixels: torch.Tensor
    ids: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor
    patches: torch.Tensor
    places: torch.Tensor
    words: torch.Tensor


class Batches:
    """Draws batches of ``size`` from ``frames``; ``shift``: largest shift of an image, in pixels.

    Frames are drawn so that a family counts as the square root of its frames: reaching takes
    few steps and would otherwise hardly be seen. An image comes with ``branches`` instructions: the
    one that was pursued, and others, every family with the same chance.

    A model that knows its age is shown an older image and told how old it is: any delay that it
    takes, with the same chance each, as far as the episode goes back.

    UserError: chunks are wanted, and the data were collected without poses; or several
    instructions, and of other instructions than its own nothing is known.
    """

    def __init__(
        self,
        frames: FrameTable,
        config: ModelConfig,
        tokenize: Callable[..., list[int]],
        size: int,
        branches: int,
        seed: int,
        shift: int,
        device: torch.device,
    ) -> None:
        refuse_branches(frames, branches)
        self._frames, self._config, self._device = frames.to(device), config, device
        self._size, self._seed, self._branches = size, seed, branches
        self._pictures = FrameImages(self._frames, config.towers[0], seed, shift, device)
        actions = ActionTokens(config.action_vocab, config.bins)
        self._answers = answers_of(frames, actions, config.chunk)
        self._chances = family_weights(frames)
        delays = config.max_delay
        told: list[int | None] = list(range(delays + 1)) if delays else [None]
        self._told = len(told)
        said = [
            [tokenize(text, delay) for text in wordings(goal) for delay in told]
            for goal in frames.goals
        ]
        self._choices = torch.tensor([len(wordings(goal)) for goal in frames.goals])
        rows = self._choices * self._told
        self._first = rows.cumsum(0) - rows  # row of a goal's first prompt
        prompts = [prompt for of_goal in said for prompt in of_goal]
        self._common = common_prefix(prompts)
        rests = [torch.tensor(prompt[len(self._common) :]) for prompt in prompts]
        self._lengths = torch.tensor([len(rest) for rest in rests])
        self._rests = torch.nn.utils.rnn.pad_sequence(rests, batch_first=True)
        words = [
            one
            for goal in frames.goals
            for one in word_places(goal, lambda text: tokenize(text, told[0]))
            for _ in told
        ]
        self._words = torch.tensor(words) - len(self._common)
        length = self._rests.shape[1] + self._answers.count - 1
        self._layout = TreePrefixLayout(config.patches + len(self._common), branches, length)
        self._goal, self._shown = frames.goal.cpu(), frames.shown
        self._shows = frames.shows.cpu()
        self._others = goal_weights(frames)
        self._things = torch.tensor([things_of(goal, frames.info.objects) for goal in frames.goals])
        self.has_objects = bool(frames.info.objects)  # what is in an image, and where
        # Instructions name things that are known.
        self.pointing = bool((self._things != NOWHERE).any())

    def batch(self, step: int) -> Batch:
        """The batch of ``step``; the same one on every call."""
        draw = torch.Generator().manual_seed(mixed(self._seed, step))
        index = torch.multinomial(self._chances, self._size, replacement=True, generator=draw)
        delay = self._delays(index, draw)
        goals = self._goals(index, delay, draw)
        wording = torch.randint(1 << 30, goals.shape, generator=draw)
        drawn = self._pictures(self._shows[index, delay], draw, step)
        tokens = self._answers(index, goals, draw)
        worded = wording % self._choices[goals]
        which = self._first[goals] + worded * self._told + delay[:, None]
        ids, rows = self._sequences(which, tokens)
        words = self._starts() + self._words[which]
        things = self._things[goals].to(self._device)
        places = places_of(drawn.centers[:, 0], things, self._pictures.side, self._pictures.patch)
        tokens, words = tokens.to(self._device), words.to(self._device)
        return Batch(self._layout, drawn.pixels, ids, rows, tokens, drawn.patches, places, words)

    def _delays(self, index: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        """How old the images are, in frames, int64 [B]: any age alike, fresh ones more often."""
        if self._told == 1:
            return torch.zeros_like(index)
        drawn = torch.randint(-_FRESH, self._told, index.shape, generator=draw).clamp(min=0)
        return torch.minimum(drawn, self._shown[index, self._goal[index]])

    def _goals(
        self, index: torch.Tensor, delay: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        """Goals int64 [B, K]: the one pursued, then others without repetition, of those for which
        the image shows what is to be done as long as there are enough."""
        own = self._goal[index][:, None]
        if self._branches == 1:
            return own
        known = self._shown[index] >= delay[:, None]
        chances = (self._others * known).clamp(min=_UNKNOWN).scatter(1, own, 0.0)
        others = torch.multinomial(chances, self._branches - 1, generator=draw)
        return torch.cat((own, others), 1)

    def _starts(self) -> torch.Tensor:
        """Rows [K, 1] at which the branches begin."""
        layout = self._layout
        return layout.common + layout.length * torch.arange(layout.branches)[:, None]

    def _sequences(
        self, which: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = self._lengths[which][..., None]
        behind = torch.arange(self._answers.count)
        layout = self._layout
        branch = torch.zeros(*which.shape, layout.length, dtype=torch.long)
        branch[..., : self._rests.shape[1]] = self._rests[which]
        branch.scatter_(2, lengths + behind[:-1], tokens[..., :-1])
        common = torch.tensor(self._common).expand(len(which), -1)
        ids = torch.cat((common, branch.flatten(1)), 1)
        rows = self._starts() + lengths - 1 + behind
        return ids.to(self._device), rows.to(self._device)


def common_prefix(prompts: Sequence[Sequence[int]]) -> list[int]:
    """The tokens that all prompts begin with; of a single prompt all but the last."""
    count = 0
    while all(len(p) > count + 1 and p[count] == prompts[0][count] for p in prompts):
        count += 1
    return list(prompts[0][:count])


def things_of(goal: Asked, objects: Sequence[str]) -> list[int]:
    """Numbers of the thing to move and of where it goes; NOWHERE for a side."""
    names = (goal.object, goal.target)
    return [objects.index(name) if name in objects else NOWHERE for name in names]


def word_places(goal: Asked, tokenize: Callable[[str], list[int]]) -> list[tuple[int, int]]:
    """For every wording, which token names the thing to move and which the cube it goes onto.

    Where no cube does, the first again. They are where the same wording with another color
    differs. Of an instruction of somebody's own it is not known: its last token stands there.
    """
    if isinstance(goal, ForeignInstruction):
        return [(len(tokenize(goal.text)) - 1,) * 2]
    free = [cube(c) for c in COLORS if cube(c) not in (goal.object, goal.target)]
    first = _differing(goal, replace(goal, object=free[0]), tokenize)
    if goal.family is not Family.STACK:
        return [(place, place) for place in first]
    return list(zip(first, _differing(goal, replace(goal, target=free[0]), tokenize), strict=True))


def _differing(goal: Goal, other: Goal, tokenize: Callable[[str], list[int]]) -> list[int]:
    pairs = zip(wordings(goal), wordings(other), strict=True)
    both = [zip(tokenize(a), tokenize(b), strict=False) for a, b in pairs]
    return [next(n for n, (x, y) in enumerate(tokens) if x != y) for tokens in both]


def refuse_branches(frames: FrameTable, branches: int) -> None:
    """UserError where several instructions are wanted of an image, and one is known."""
    if frames.info.own_sentence and branches > 1:
        raise UserError(
            "these demonstrations say what was done for their own instruction, not for others:"
            " give --branches 1"
        )


def _families(frames: FrameTable) -> torch.Tensor:
    """Number of each goal's family, int64 [G]; an instruction of somebody's own is of one
    beside."""
    known: list[str] = list(Family)
    of = [known.index(g.family) if g.family in known else len(known) for g in frames.goals]
    return torch.tensor(of)


def goal_weights(frames: FrameTable) -> torch.Tensor:
    """Chance of each goal to be a further instruction, float64 [G]: families count alike."""
    families = _families(frames)
    return 1.0 / torch.bincount(families).double()[families]


def family_weights(frames: FrameTable) -> torch.Tensor:
    """Chance of each frame to be drawn, float64 [N]."""
    family = _families(frames)[frames.goal.cpu()]
    counts = torch.bincount(family, minlength=len(Family) + 1).double()
    return counts.clamp(min=1).rsqrt()[family] * frames.weight


_BEFORE_S = 1.5  # of what a policy did before a person took over: it is not to be learned


def weighted(frames: FrameTable, corrections: float, held: torch.Tensor) -> FrameTable:
    """The same, drawn for training: nothing of the episodes ``held`` (int64), nothing of what made
    a person take over, and what he did past the policy at least that share of the time, as in
    Sirius (arXiv 2211.08416)."""
    weight = frames.weight * ~torch.isin(frames.episode, held)
    weight = weight * ~_led_to_takeover(frames)
    chances = family_weights(replace(frames, weight=weight))
    person, rest = chances[frames.person].sum(), chances[~frames.person].sum()
    if person > 0 and rest > 0:
        more = corrections / (1.0 - corrections) * rest / person
        weight = torch.where(frames.person, weight * more.clamp(min=1.0), weight)
    return replace(frames, weight=weight)


def _led_to_takeover(frames: FrameTable) -> torch.Tensor:
    """bool [N]: a policy's own rows of the last moments before a person took over."""
    found = torch.zeros_like(frames.person)
    for _ in range(round(_BEFORE_S * frames.info.control_rate_hz)):
        next_one = (found | frames.person)[1:] & (frames.episode[1:] == frames.episode[:-1])
        found[:-1] |= next_one & ~frames.person[:-1]
    return found


def only(frames: FrameTable, held: torch.Tensor) -> FrameTable:
    """The same, drawn for validation: the episodes ``held`` alone."""
    return replace(frames, weight=frames.weight * torch.isin(frames.episode, held))


def held_out(episodes: int, share: float, seed: int) -> torch.Tensor:
    """Which episodes of so many are for validation, int64, sorted: at least one, not all."""
    count = min(max(1, round(share * episodes)), episodes - 1) if share else 0
    draw = torch.Generator().manual_seed(mixed(seed, episodes))
    return torch.randperm(episodes, generator=draw)[:count].sort().values


# Batches for OpenVLA-OFT's architecture: an image, an instruction, the next actions of the expert.
#
# A whole chunk is known only where the expert itself acted and for the instruction that it pursued.
# For every other instruction, and where a policy acted, what the expert would do now is known and
# what it would do next is not: of those only the first action is learned, which is how the
# instruction is read and how mistakes are mended. The same draws at every call, as in
# :mod:`.batches`.


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """``ids`` int64 [B, L]: a prompt, a blank for every value of the chunk, the stop token,
    padding. ``blank`` bool [B, L]; ``seen`` bool [B, L]: no padding. ``rows`` int64 [B, C 7] in
    the sequence with the patches; ``values`` [B, C, 7] in [-1, 1], of which those ``known``, bool
    [B, C], are to be learned; ``patches`` as in Batch."""

    pixels: torch.Tensor
    ids: torch.Tensor
    blank: torch.Tensor
    seen: torch.Tensor
    rows: torch.Tensor
    values: torch.Tensor
    known: torch.Tensor
    patches: torch.Tensor


_OTHERS = 0.5  # share of images that come with another instruction than the one that was pursued


class ChunkBatches:
    """Draws batches of ``size``. UserError: there is no frame where the expert acted."""

    def __init__(
        self,
        frames: FrameTable,
        config: ModelConfig,
        tokenize: Callable[[str], list[int]],
        size: int,
        seed: int,
        shift: int,
        device: torch.device,
    ) -> None:
        self._frames, self._config, self._device = frames.to(device), config, device
        self._size, self._seed = size, seed
        self._pictures = FrameImages(self._frames, config.towers[0], seed, shift, device)
        self._chances, self._others = family_weights(frames), goal_weights(frames)
        if not frames.expert.any():
            raise UserError("chunks are learned from demonstrations, and there are none")
        self._prompts = [[tokenize(text) for text in wordings(goal)] for goal in frames.goals]
        self._others_share = 0.0 if frames.info.own_sentence else _OTHERS
        self._goal, self._shows = frames.goal.cpu(), frames.shows[:, 0].cpu()

    def batch(self, step: int) -> ChunkBatch:
        """The batch of ``step``."""
        draw = torch.Generator().manual_seed(mixed(self._seed, step))
        index = torch.multinomial(self._chances, self._size, replacement=True, generator=draw)
        wording = torch.randint(1 << 30, (self._size,), generator=draw)
        others = torch.multinomial(self._others, self._size, replacement=True, generator=draw)
        own = torch.rand(self._size, generator=draw) >= self._others_share
        goal = torch.where(own, self._goal[index], others)
        drawn = self._pictures(self._shows[index], draw, step)
        said = [self._prompts[g] for g in goal.tolist()]
        prompts = [of[n % len(of)] for of, n in zip(said, wording.tolist(), strict=True)]
        lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
        count = self._config.chunk * self._config.action_dim
        place = torch.arange(int(lengths.max()) + count + 1)
        ids = torch.full((self._size, len(place)), self._config.stop_token)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        blank = (place >= lengths) & (place < lengths + count)
        rows = lengths + self._config.patches - 1 + torch.arange(count)
        seen = place <= lengths + count
        ids, blank, seen, rows, index, goal = (
            part.to(self._device) for part in (ids, blank, seen, rows, index, goal)
        )
        values = self._frames.chunks[index].float()
        values[:, 0] = self._frames.values[index, goal].float()
        known = (self._frames.expert[index] & (goal == self._frames.goal[index]))[:, None]
        known = known.repeat(1, self._config.chunk)
        known[:, 0] = True
        return ChunkBatch(drawn.pixels, ids, blank, seen, rows, values, known, drawn.patches)
