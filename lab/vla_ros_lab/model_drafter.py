"""A small VLA as the drafter: its greedy (or sampled) tokens, in the target's vocabulary.

The two vocabularies meet in the action bins, so a draft is always an action token. Where the
draft's vision towers are the target's, weights and all, it takes the target's features. Of a
target's two cameras a draft made for one sees the main one. The engine finds it by the entry point
``model`` of `vla_ros.decodings`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import torch

from vla_ros.engine.decoding.drafters import Draft, Drafter
from vla_ros.engine.decoding.factory import DecodingParts
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.tokens import MAX_TEXT, PromptTokenizer
from vla_ros.engine.layers.devices import downloaded, upload
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.layers.request import Request
from vla_ros.engine.layers.runner import prompt_lengths, resized
from vla_ros.engine.models.openvla import Prompt, VLAModel, camera_pixels

#: what a runner takes: a layout, the prompt's embeddings or none, tokens or none
Pass = tuple[PackLayout, torch.Tensor | None, torch.Tensor | None]


def towers_equal(target: VLAModel, draft: VLAModel) -> bool:
    """Same pixels through the same towers, weights and all: the features are the same."""
    if not target.config.sees_like(draft.config):
        return False
    pairs = zip_longest(target.towers(), draft.towers(), fillvalue=("", torch.empty(0)))
    return all(name == same and torch.equal(a, b) for (name, a), (same, b) in pairs)


class ModelDrafter(Drafter):
    """Keeps its own KV in a runner of one slot and follows what the target made of its drafts.

    ``temperature`` None drafts greedily; otherwise it draws and reports its distribution, as
    rejection sampling needs. ``share`` False runs its own vision even where it need not.

    Where the draft's logits are not finite it guesses all the same (blindly, evenly when it
    draws), and forgets what it computed once the action is done: the target judges every guess.
    """

    full = True

    def __init__(
        self,
        target: VLAModel,
        draft: VLAModel,
        tokenizer: PromptTokenizer,
        positions: int,
        max_text: int,
        *,
        temperature: float | None = None,
        seed: int = 0,
        share: bool = True,
    ) -> None:
        _check(target, draft)
        self._target, self._draft, self._tokenizer = target, draft, tokenizer
        self._same_pixels = target.config.sees_like(draft.config)
        self.shares_vision = share and towers_equal(target, draft)
        self._preprocess = Preprocessor(
            draft.config,
            draft.device,
            draft.dtype,
            draft.options.center_crop == "always",
            draft.options.preprocessing,
            draft.options.image_steps,
        )
        self._max_text = max_text
        longest = draft.config.patches + max_text
        self.runner = draft.runner(1, longest + positions, draft.actions.window)
        self._shift = target.actions.first - draft.actions.first  # token + shift: the same bin
        self._temperature = temperature
        self._generator = torch.Generator(draft.device).manual_seed(seed)
        self._prompt: Prompt | None = None
        self._request: Request | None = None
        self._positions = positions
        self._length = 0  # prompt tokens in the KV
        self._fed = 0  # action tokens whose KV is valid
        self._start = 0
        self._maxima: list[torch.Tensor] = []  # largest logits of this action's draft passes

    def instruct(self, text: str) -> None:
        ids = self._tokenizer(text)
        if len(ids) > self._max_text:
            raise ValueError(
                f"the instruction has {len(ids)} tokens for the draft model,"
                f" the most is {self._max_text}"
            )
        self._prompt = self._draft.prompt(ids)

    def prepare(self, request: Request, every: bool = False) -> None:
        drawn = self._generator.get_state()  # which this is not to move on
        self.begin(request)
        own = self._see()
        patches = self._draft.config.patches
        lengths = prompt_lengths(patches, patches + self._max_text) if every else ()
        for length in (*lengths, len(own)):
            self._warm_up(resized(own, length))
        self._maxima.clear()
        self._generator.set_state(drawn)

    def _warm_up(self, prompt: torch.Tensor) -> None:
        """Every pass behind a prompt: of one token, or of two after a wholly accepted draft."""
        length = len(prompt)
        self.runner.fit(length + self._positions)
        self._choose(prefill_layout(length, (length - 1,)), prompt, None)
        for count in (1, 2):
            tokens = torch.zeros(count, dtype=torch.long, device=self._draft.device)
            layout = PackLayout(rows=(count - 1,), tail=chain(0, length, count))
            self._choose(layout, None, tokens)

    def begin(self, request: Request) -> None:
        self._request, self._fed, self._length, self.passes = request, 0, 0, 0
        self._maxima.clear()

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        self._start = len(prefix)
        layout, prompt, fed = self._catch_up(prefix)
        tokens: list[torch.Tensor] = []
        chances: list[torch.Tensor] = []
        while True:
            choice, chance = self._choose(layout, prompt, fed)
            tokens.append(choice + self._shift)
            if chance is not None:
                chances.append(chance)
            if len(tokens) == limit:
                break
            layout, prompt, fed = self._behind(1), None, choice
        return Draft(torch.cat(tokens), torch.cat(chances) if chances else None)

    def verified(self, draft: Sequence[int], accepted: int) -> None:
        # The last draft token was never fed, so it has no KV even when it was accepted.
        self._fed = self._start + min(accepted, max(len(draft) - 1, 0))

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        # The device is idle here: the target's last verdict has just been read.
        if self._maxima:
            finite = torch.cat(self._maxima).isfinite().all()
            if not downloaded(finite).item():
                self.forget(damaged=True)

    def forget(self, damaged: bool = False) -> None:
        self._request = None
        self.runner.kv_cache.flush(damaged)

    def _catch_up(self, prefix: Sequence[int]) -> Pass:
        """The pass that puts prompt and the target's own tokens into the KV."""
        missing = [self._own_token(t) for t in prefix[self._fed :]]
        tokens = upload(missing, self._draft.device, torch.long)
        if self._length:
            return self._behind(len(missing)), None, tokens
        prompt = self._see()
        self._length, self._fed = len(prompt), len(missing)
        self.runner.fit(len(prompt) + self._positions)
        total = len(prompt) + len(missing)
        return prefill_layout(total, (total - 1,)), prompt, tokens if missing else None

    def _behind(self, count: int) -> PackLayout:
        """``count`` tokens more, of which the last is asked what comes next."""
        layout = PackLayout(rows=(count - 1,), tail=chain(0, self._length + self._fed, count))
        self._fed += count
        return layout

    def _own_token(self, token: int) -> int:
        """The draft's token of a target token; what is no action maps to bin 0."""
        actions = self._target.actions
        index = actions.to_bin(token) if actions.is_action(token) else 0
        return self._draft.actions.from_bin(index)

    def _see(self) -> torch.Tensor:
        """The prompt of this frame [n, C]."""
        assert self._request is not None
        if self._prompt is None:
            raise RuntimeError("the draft model has no instruction yet")
        patches = self._draft.project(self._features(self._request))
        return self._draft.sequence(self._prompt, patches)

    def _features(self, request: Request) -> torch.Tensor:
        """Image features of the draft's cameras, the first ones of the target's."""
        config = self._draft.config
        if self.shares_vision and request.features is not None:
            return request.features[: config.patches]
        if self._same_pixels and request.pixels:
            return self._draft.features(tuple(p[: config.images] for p in request.pixels))
        if request.observation is None:
            raise RuntimeError("the draft model needs the image, the request has none")
        pixels = camera_pixels(self._preprocess, request.observation, config.images)
        return self._draft.features(pixels)

    def _choose(
        self, layout: PackLayout, prompt: torch.Tensor | None, tokens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Run a pass -> the next action token [1], and the distribution [1, bins] behind it."""
        self.passes += 1
        if self._temperature is None:
            choice, maximum = self.runner.run(layout, prompt, tokens)
            self._maxima.append(maximum)
            return choice, None
        logits = self.runner.logits(layout, prompt, tokens).float()
        self._maxima.append(logits.amax(-1))
        even = torch.zeros_like(logits)
        logits = torch.where(logits.isfinite().all(), logits / self._temperature, even)
        chances = torch.softmax(logits, dim=-1)
        drawn = torch.multinomial(chances, 1, generator=self._generator)[:, 0]
        return self._draft.actions.first + drawn, chances


def _check(target: VLAModel, draft: VLAModel) -> None:
    """Raises ValueError when this model cannot draft for that one."""
    if draft.actions.bins != target.actions.bins:
        raise ValueError("draft and target have different numbers of action bins")
    if draft.config.images > target.config.images:
        raise ValueError(
            f"the draft model needs {draft.config.images} cameras, the target has"
            f" {target.config.images}: give a draft_checkpoint made for as many or fewer"
        )
    if draft.config.parallel:
        raise ValueError(
            "the draft model is an OFT checkpoint, which says no tokens: give another"
            " draft_checkpoint"
        )


def model_drafter(parts: DecodingParts, *, share: bool = True) -> ModelDrafter:
    """The entry point ``model``: the draft model that the options name. ValueError: they do not."""
    options, target = parts.options, parts.model
    if not options.draft_checkpoint:
        raise ValueError("a draft model is asked for: give draft_checkpoint")
    key = options.draft_checkpoint, target.capture
    if key not in parts.shared:
        checkpoint = parts.load_draft(options.draft_checkpoint)
        # The target's graphs and the draft's share one pool and one count.
        parts.shared[key] = VLAModel(
            checkpoint, target.device, target.dtype, target.options, target.capture
        )
    draft: VLAModel = parts.shared[key]
    draft.prepare_one_row()
    sampling = options.decoding == "speculative" and options.acceptance == "sampling"
    return ModelDrafter(
        target,
        draft,
        PromptTokenizer(draft.directory, draft.config),
        parts.tokens,
        MAX_TEXT,
        temperature=options.temperature if sampling else None,
        seed=options.seed + 1,
        share=share,
    )
