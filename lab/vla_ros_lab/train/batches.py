"""Batches for token policies, single actions or chunks: a pure function of (frames, seed, step), so
training can stop and go on anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from vla_ros.core.errors import UserError
from vla_ros.core.types import ACTION_DIM, GRIPPER
from vla_ros.engine.io.config import ModelConfig, TowerConfig
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.sim.tasks import COLORS, Family, Goal, cube
from vla_ros_lab.train.ahead import futures
from vla_ros_lab.train.demonstrations import BODIES
from vla_ros_lab.train.frames import (
    NOWHERE,
    DrawnBatch,
    ForeignInstruction,
    FrameImages,
    FrameTable,
    LearnedGoal,
    mixed,
    patches_of,
    wordings,
)
from vla_ros_lab.train.options import TrainOptions

#: frames int64 [B], goals of each [B, K], draws -> tokens of their answers int64 [B, K, n], on the
#: CPU
Answers = Callable[[torch.Tensor, torch.Tensor, torch.Generator], torch.Tensor]


def answers_of(frames: FrameTable, actions: ActionTokens, chunk: int) -> Answers:
    """Answers of a policy of ``chunk`` actions: all tokens of a step before those of the next, as
    the engine decodes and OpenVLA-OFT orders a chunk.

    Of a single action they are in the data. A chunk is worked out when it is drawn
    (:mod:`vla_ros_lab.train.ahead`), so it is known for every instruction, whoever acted in the
    frame. UserError: there are no poses.
    """
    if chunk == 1:
        tokens = encode(actions, frames.values).to(torch.int32)
        return lambda index, goals, draw: tokens[index[:, None], goals].long()
    refuse_unposed(frames)

    def chunks(index: torch.Tensor, goals: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        return encode(actions, chunks_ahead(frames, index, goals, chunk, draw)).flatten(2)

    return chunks


def refuse_unposed(frames: FrameTable) -> None:
    """Refuse frames of which it is not known what lies ahead: UserError."""
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

    ``draw``: where the expert has two ways and nothing shows which, chance decides.
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


@dataclass(frozen=True, slots=True)
class TreePrefixLayout:
    """Attention of a training sequence, a tree of two levels: ``common`` tokens (patches included),
    then ``branches`` of ``length`` tokens that see the common part and themselves: many
    instructions on one image for the price of one prefill."""

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
        row = torch.arange(self.total, device=device)
        branch = torch.where(row < self.common, -1, (row - self.common) // max(self.length, 1))
        shared = (branch[None] == -1) | (branch[:, None] == branch[None])
        return shared & (row[:, None] >= row[None])


_UNKNOWN = 1e-12  # chance of an instruction for which the image does not show what is to be done
_IN_HAND = 0.028  # m from a cube's center to the grip
_GRIPPED = 0.062  # m between fingers that hold one
HAND = BODIES.index("gripper")
_FRESH = 2  # delays more, all of them 0: a policy that knows its delay must be no worse at 0


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of B images: ``pixels`` [B, images, 3, s, s]; ``ids`` int64 [B, L] of ``layout``: a
    branch is the rest of a prompt and the answer's n tokens but the last; ``rows`` int64 [B, K, n]
    where they are predicted; ``tokens`` int64 [B, K, n]; ``carried`` bool [B, K]: the teacher holds
    the instruction's cube (of single actions; else False). Labels of the auxiliary
    losses: ``patches`` int64 [B, patches]; ``places`` int64 [B, K, 2], the patches in the first
    image of the thing to move and of where it goes, and ``words`` int64 [B, K, 2], the rows of the
    words for them. None, of patches and places: unknown in these data. The first branch is the
    instruction that was pursued."""

    layout: TreePrefixLayout
    pixels: torch.Tensor
    ids: torch.Tensor
    rows: torch.Tensor
    tokens: torch.Tensor
    carried: torch.Tensor
    patches: torch.Tensor | None
    places: torch.Tensor | None
    words: torch.Tensor


class FrameDraws:
    """Draws of frames, their images and instructions, for batches of ``options``.

    Frames are drawn so that a family counts as the square root of its frames: reaching takes
    few steps and would otherwise hardly be seen. An image comes with ``branches`` instructions: the
    one that was pursued, and others, every family with the same chance. ``delays``: arguments of
    ``tokenize`` behind the text, for each of which there is a prompt.
    """

    def __init__(
        self,
        frames: FrameTable,
        tower: TowerConfig,
        tokenize: Callable[..., list[int]],
        options: TrainOptions,
        device: torch.device,
        delays: Sequence[tuple[int, ...]] = ((),),
    ) -> None:
        self._frames, self._options, self._device = frames.to(device), options, device
        self._images = FrameImages(self._frames, tower, options.seed, options.shift, device)
        self._chances, self._others = family_weights(frames), goal_weights(frames)
        self._goal, self._longest_delay = frames.goal.cpu(), frames.longest_delay
        self._image_index = frames.image_index.cpu()
        goals = frames.goals
        self._led_on = False
        self._things = torch.tensor([things_of(goal, frames.info.objects) for goal in goals])
        named = [BODIES.index(g.object) if g.object in BODIES else HAND for g in goals]
        self._bodies = torch.tensor(named)
        self._delays, self._wordings = len(delays), torch.tensor([len(wordings(g)) for g in goals])
        rows = self._wordings * self._delays
        self._first = rows.cumsum(0) - rows  # row of a goal's first prompt
        self._prompts = [
            tokenize(text, *delay) for goal in goals for text in wordings(goal) for delay in delays
        ]
        words = [
            found
            for goal in goals
            for found in word_positions(goal, lambda text: tokenize(text, *delays[0]))
            for _ in delays
        ]
        self._words = torch.tensor(words)

    def _draw(self, step: int) -> tuple[torch.Generator, torch.Tensor]:
        """Random numbers of ``step``, the same at every call, and its frames int64 [B]."""
        draw = torch.Generator().manual_seed(mixed(self._options.seed, step))
        size = self._options.batch
        return draw, torch.multinomial(self._chances, size, replacement=True, generator=draw)

    def _goals(
        self, index: torch.Tensor, delay: torch.Tensor, draw: torch.Generator
    ) -> torch.Tensor:
        """Goals int64 [B, K]: the one pursued, then others without repetition, of those for which
        the image shows what is to be done as long as there are enough."""
        own, more = self._goal[index][:, None], self._options.branches - 1
        if not more:
            return own
        known = (self._longest_delay[index] >= delay[:, None]) | self._led_on
        chances = (self._others * known).clamp(min=_UNKNOWN).scatter(1, own, 0.0)
        return torch.cat((own, torch.multinomial(chances, more, generator=draw)), 1)

    def _rows(
        self, goals: torch.Tensor, wording: torch.Tensor, delay: torch.Tensor | int = 0
    ) -> torch.Tensor:
        """Rows of the prompts."""
        return self._first[goals] + wording % self._wordings[goals] * self._delays + delay

    def _pointed(self, drawn: DrawnBatch, goals: torch.Tensor) -> torch.Tensor:
        """Patches int64 [B, K, 2] of the things that instructions name."""
        things = self._things[goals].to(self._device)
        return patches_of(drawn.centers[:, 0], things, self._images.side, self._images.patch)


class Batches(FrameDraws):
    """Batches for token policies.

    A model that knows its delay gets a prompt that states it, any that it takes with the same
    chance each, and learns what the expert would do so much later: of poses that is worked out
    (:mod:`vla_ros_lab.train.ahead`), as if its own actions followed, which makes it one answer an
    image. Without poses the image is an older one, as far as the episode goes back, and what was
    done is the answer.

    UserError: chunks are wanted, and the data were collected without poses; or several
    instructions, and of other instructions than its own nothing is known.
    """

    def __init__(
        self,
        frames: FrameTable,
        config: ModelConfig,
        tokenize: Callable[..., list[int]],
        options: TrainOptions,
        device: torch.device,
    ) -> None:
        refuse_branches(frames, options.branches)
        most = config.max_delay
        delays = [(delay,) for delay in range(most + 1)] if most else [()]
        super().__init__(frames, config.towers[0], tokenize, options, device, delays)
        actions = ActionTokens(config.action_vocab, config.bins)
        self._answers, self._tokens = answers_of(frames, actions, config.chunk), actions
        self._led_on = most > 0 and frames.posed and not frames.info.own_sentence
        self._count = config.chunk * ACTION_DIM  # tokens of an answer
        self._common = common_prefix(self._prompts)
        rests = [torch.tensor(prompt[len(self._common) :]) for prompt in self._prompts]
        self._lengths = torch.tensor([len(rest) for rest in rests])
        self._rests = torch.nn.utils.rnn.pad_sequence(rests, batch_first=True)
        length, common = self._rests.shape[1] + self._count - 1, len(self._common)
        self._layout = TreePrefixLayout(config.patches + common, options.branches, length)

    def batch(self, step: int) -> Batch:
        """The batch of ``step``; the same one on every call."""
        draw, index = self._draw(step)
        delay = self._drawn_delays(index, draw)
        goals = self._goals(index, delay, draw)
        wording = torch.randint(1 << 30, goals.shape, generator=draw)
        shown = 0 if self._led_on else delay
        drawn = self._images(self._image_index[index, shown], draw, step)
        tokens = self._answers(index, goals, draw)
        if self._led_on and (late := delay.nonzero()[:, 0]).numel():
            tokens[late] = self._later(index[late], goals[late], delay[late], draw)
        which = self._rows(goals, wording, delay[:, None])
        ids, rows = self._sequences(which, tokens)
        words = self._starts() + self._words[which] - len(self._common)
        tokens, words = tokens.to(self._device), words.to(self._device)
        patches, places = drawn.patches if self._frames.info.objects else None, None
        if (self._things != NOWHERE).any():
            places = self._pointed(drawn, goals)
        carried = self._carried(index, goals).to(self._device)
        return Batch(self._layout, drawn.pixels, ids, rows, tokens, carried, patches, places, words)

    def _carried(self, index: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
        """Whether the cube that an instruction moves is between fingers that hold it, and the
        teacher keeps it there: bool [B, K]."""
        frames = self._frames
        if self._count > ACTION_DIM or not frames.posed or not frames.info.objects:
            return torch.zeros(goals.shape, dtype=torch.bool)
        poses = frames.poses[index][..., :3]
        cubes = poses.gather(1, self._bodies[goals][..., None].expand(-1, -1, 3))
        near = (cubes - poses[:, HAND, None]).norm(dim=-1) < _IN_HAND
        kept = frames.values[index[:, None], goals, GRIPPER].cpu() < 0
        gap = frames.fingers[index].abs().sum(1)[:, None]
        return near & kept & (gap < _GRIPPED)

    def _later(
        self,
        index: torch.Tensor,
        goals: torch.Tensor,
        delay: torch.Tensor,
        draw: torch.Generator,
    ) -> torch.Tensor:
        """Tokens int64 [B, K, 7] of the expert's actions ``delay`` [B] steps after the frames."""
        ahead = chunks_ahead(self._frames, index, goals, int(delay.max()) + 1, draw)
        at = delay[:, None, None, None].expand(*goals.shape, 1, ACTION_DIM)
        return encode(self._tokens, ahead.gather(2, at)[:, :, 0])

    def _drawn_delays(self, index: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        """Delays of the images in frames, int64 [B]: any alike, fresh images more often."""
        if self._delays == 1:
            return torch.zeros_like(index)
        drawn = torch.randint(-_FRESH, self._delays, index.shape, generator=draw).clamp(min=0)
        if self._led_on:
            return drawn
        return torch.minimum(drawn, self._longest_delay[index, self._goal[index]])

    def _starts(self) -> torch.Tensor:
        """Rows [K, 1] at which the branches begin."""
        layout = self._layout
        return layout.common + layout.length * torch.arange(layout.branches)[:, None]

    def _sequences(
        self, which: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = self._lengths[which][..., None]
        behind = torch.arange(self._count)
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


def things_of(goal: LearnedGoal, objects: Sequence[str]) -> list[int]:
    """Numbers of the thing to move and of where it goes; NOWHERE for a side."""
    names = (goal.object, goal.target)
    return [objects.index(name) if name in objects else NOWHERE for name in names]


def word_positions(
    goal: LearnedGoal, tokenize: Callable[[str], list[int]]
) -> list[tuple[int, int]]:
    """Positions, for every wording, of the token for the thing to move and of that for the cube it
    goes onto.

    Where no cube does, the first again. They are where the same wording with another color
    differs. Of a foreign instruction it is not known: its last token's position.
    """
    if isinstance(goal, ForeignInstruction):
        return [(len(tokenize(goal.text)) - 1,) * 2]
    free = [cube(c) for c in COLORS if cube(c) not in (goal.object, goal.target)]
    first = _differing(goal, replace(goal, object=free[0]), tokenize)
    if goal.family is not Family.STACK:
        return [(position, position) for position in first]
    return list(zip(first, _differing(goal, replace(goal, target=free[0]), tokenize), strict=True))


def _differing(goal: Goal, other: Goal, tokenize: Callable[[str], list[int]]) -> list[int]:
    pairs = zip(wordings(goal), wordings(other), strict=True)
    both = [zip(tokenize(a), tokenize(b), strict=False) for a, b in pairs]
    return [next(n for n, (x, y) in enumerate(tokens) if x != y) for tokens in both]


def refuse_branches(frames: FrameTable, branches: int) -> None:
    """Refuse several instructions an image where one is known: UserError."""
    if frames.info.own_sentence and branches > 1:
        raise UserError(
            "these demonstrations say what was done for their own instruction, not for others:"
            " give --branches 1"
        )


def _families(frames: FrameTable) -> torch.Tensor:
    """Number of each goal's family, int64 [G]; a foreign instruction is of one
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
    """Frames weighted for training: nothing of the episodes ``held`` (int64), nothing of what made
    a person take over, and what they did past the policy at least that share of the time, as in
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
    for _ in range(round(_BEFORE_S * frames.info.action_rate_hz)):
        next_one = (found | frames.person)[1:] & (frames.episode[1:] == frames.episode[:-1])
        found[:-1] |= next_one & ~frames.person[:-1]
    return found


def only(frames: FrameTable, held: torch.Tensor) -> FrameTable:
    """Frames weighted for validation: the episodes ``held`` alone."""
    return replace(frames, weight=frames.weight * torch.isin(frames.episode, held))


def held_out(episodes: int, share: float, seed: int) -> torch.Tensor:
    """Episodes of so many that are for validation, int64, sorted: at least one, not all."""
    count = min(max(1, round(share * episodes)), episodes - 1) if share else 0
    draw = torch.Generator().manual_seed(mixed(seed, episodes))
    return torch.randperm(episodes, generator=draw)[:count].sort().values


@dataclass(frozen=True, slots=True)
class ChunkBatch:
    """A batch of B chunks: ``ids`` int64 [B, L]: a prompt, a blank for every value of the chunk,
    the stop token, padding. ``blank`` bool [B, L]; ``seen`` bool [B, L]: no padding. ``rows`` int64
    [B, C 7] in the sequence with the patches; ``values`` [B, C, 7] in [-1, 1], of which those
    ``known``, bool [B, C], are to be learned; ``patches`` as in Batch."""

    pixels: torch.Tensor
    ids: torch.Tensor
    blank: torch.Tensor
    seen: torch.Tensor
    rows: torch.Tensor
    values: torch.Tensor
    known: torch.Tensor
    patches: torch.Tensor


_OTHERS = 0.5  # share of images that come with another instruction than the one that was pursued


class ChunkBatches(FrameDraws):
    """Batches for OpenVLA-OFT's architecture: an image, an instruction, the expert's next actions.

    A whole chunk is known only where the expert itself acted and for the instruction that it
    pursued. For every other instruction, and where a policy acted, the expert's present action is
    known and the next are not: of those only the first is learned, which is how the instruction is
    read and how mistakes are mended. UserError: there is no frame where the expert acted.
    """

    def __init__(
        self,
        frames: FrameTable,
        config: ModelConfig,
        tokenize: Callable[..., list[int]],
        options: TrainOptions,
        device: torch.device,
    ) -> None:
        if not frames.expert.any():
            raise UserError("chunks are learned from demonstrations, and there are none")
        super().__init__(frames, config.towers[0], tokenize, options, device)
        self._config = config
        self._others_share = 0.0 if frames.info.own_sentence else _OTHERS

    def batch(self, step: int) -> ChunkBatch:
        """The batch of ``step``."""
        config, size, device = self._config, self._options.batch, self._device
        draw, index = self._draw(step)
        wording = torch.randint(1 << 30, (size,), generator=draw)
        others = torch.multinomial(self._others, size, replacement=True, generator=draw)
        own = torch.rand(size, generator=draw) >= self._others_share
        goal = torch.where(own, self._goal[index], others)
        drawn = self._images(self._image_index[index, 0], draw, step)
        prompts = [self._prompts[row] for row in self._rows(goal, wording).tolist()]
        lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
        count = config.chunk * config.action_dim
        position = torch.arange(int(lengths.max()) + count + 1)
        ids = torch.full((size, len(position)), config.stop_token)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        blank = (position >= lengths) & (position < lengths + count)
        rows = lengths + config.patches - 1 + torch.arange(count)
        seen = position <= lengths + count
        ids, blank, seen, rows, index, goal = (
            part.to(device) for part in (ids, blank, seen, rows, index, goal)
        )
        values = self._frames.chunks[index].float()
        values[:, 0] = self._frames.values[index, goal].float()
        known = (self._frames.expert[index] & (goal == self._frames.goal[index]))[:, None]
        known = known.repeat(1, config.chunk)
        known[:, 0] = True
        return ChunkBatch(drawn.pixels, ids, blank, seen, rows, values, known, drawn.patches)
