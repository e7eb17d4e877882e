"""Rounds that a recursive head would have drafted, of rollouts that are there: no target runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vla_ros.engine.decoding.draft_heads import LEVELS, RANKED, RecursiveHead
from vla_ros.engine.decoding.head_drafters import Embed
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros_lab.heterospec import DraftedFrame, Unrolled, shown
from vla_ros_lab.train.head.features import HeadEpisode
from vla_ros_lab.train.head.recursive import BATCH, HeadAnswers, answers_of, ranks_of, unrolled


def replayed(
    head: RecursiveHead,
    episodes: Sequence[HeadEpisode],
    embed: Embed,
    actions: ActionTokens,
    steps: int,
) -> list[DraftedFrame]:
    """Every frame with what is offered behind the prompt, and what the head offers with any number
    of tokens known; each episode learns anew. ``steps`` actions make an answer."""
    plain = shown([e.tokens.tolist() for e in episodes], actions.window, anew=True, steps=steps)
    answers = answers_of(episodes, actions, steps)
    ranks = ranks_of(head, answers, embed, actions.first)
    found = torch.where(ranks == RANKED, -1, ranks).to(torch.int8).numpy()
    chances = likeliest_path(head, answers, embed, actions.first)
    return [
        Unrolled(frame.offer, frame.own, frame.ranks, chances[n], found[n])
        for n, frame in enumerate(plain)
    ]


def likeliest_path(
    head: RecursiveHead, answers: HeadAnswers, embed: Embed, first: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """[F, places, LEVELS, RANKED]: with s + 1 tokens known, the chances of the alternatives on
    every level if each level's likeliest is drafted; 0 where there is no such level."""
    count = head.config.places
    width = min(RANKED, head.config.bins)
    found = torch.zeros(len(answers), count, LEVELS, RANKED)
    with torch.no_grad():
        for part in torch.arange(len(answers)).split(BATCH):
            batch = answers.take(part)
            steps = unrolled(head, batch, embed, min(LEVELS, count), torch.device("cpu"), first)
            for level, logits in enumerate(steps):
                best = logits.softmax(-1).topk(width).values
                found[part, : count - level, level, :width] = best[:, level:]
    return found.numpy()
