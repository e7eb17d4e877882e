"""GR00T N1.5, N1.6 and N1.7: a vision-language model whose last rows an action head crosses to.

Source: NVIDIA/Isaac-GR00T, branches n1.5 to n1.7, and its layout of folders. The versions differ in
their backbone (:mod:`~vla_ros.engine.models.eagle`, :mod:`~vla_ros.engine.models.qwen3_vl`), their
prompt and the files that describe a robot (:mod:`vla_ros.engine.io.groot`).
The head is in :mod:`~vla_ros.engine.models.groot_head`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_ros.core.numbers import round_up
from vla_ros.engine.io.tensors import shapes
from vla_ros.engine.io.weights import Expected
from vla_ros.engine.layers.devices import pinned, upload
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.base import FlowPolicy, Inputs
from vla_ros.engine.models.eagle import (
    EagleConfig,
)
from vla_ros.engine.models.groot_head import (
    BASE,
    ActionHead,
    Context,
    HeadConfig,
    RowWeights,
    head_table,
)
from vla_ros.engine.models.qwen3_vl import (
    Qwen3VLConfig,
)

N15, N16, N17 = "groot-n1.5", "groot-n1.6", "groot-n1.7"
MAX_TEXT = 128  # rows of a prompt beside its images; the authors' code knows no limit


@dataclass(frozen=True, slots=True)
class GrootConfig:
    """A GR00T for one robot of those that it was trained for.

    ``embodiment`` is the robot's tag and ``row`` its index among the head's encoders. ``horizon``
    actions of a chunk are the robot's; the head makes ``head.action_horizon``, and what is behind
    them was padding when it was trained. ``max_text``: the most rows of a prompt beside its
    images.
    """

    kind: str
    backbone: Qwen3VLConfig | EagleConfig
    head: HeadConfig
    embodiment: str
    row: int
    horizon: int
    state_dim: int
    action_dim: int
    cameras: tuple[str, ...]
    max_text: int = MAX_TEXT

    @property
    def steps(self) -> int:
        """Steps of the solver."""
        return self.head.num_inference_timesteps

    @property
    def action_width(self) -> int:
        """Values of an action in model space."""
        return self.head.max_action_dim

    @property
    def continues(self) -> tuple[str, ...]:
        """The ways in which a chunk can continue an earlier one."""
        return ("rtc",)

    @property
    def image_size(self) -> int:
        """The side of an image as the model sees it."""
        return self.backbone.vision.image_size

    @property
    def view_tokens(self) -> int:
        """Rows of one camera."""
        return self.backbone.view_tokens

    @property
    def longest(self) -> int:
        """Rows of the longest prompt."""
        return len(self.cameras) * self.view_tokens + self.max_text

    def expected(self) -> Expected:
        """The tensors of a checkpoint, those of all robots. The stand-in of
        N1.6's state dropout is for training."""
        backbone = self.backbone.expected()
        spare = dict(backbone.spare)
        if self.kind == N16:
            spare["action_head.mask_token"] = (1, 1, self.head.width)
        return Expected(
            {**backbone.must, **shapes(head_table(self.head), BASE)}, spare, backbone.tied
        )

    def discrete(self) -> dict[str, list[int]]:
        """The integers of the gate: times of the solver's steps, positions of the backbone."""
        return {"times": list(self.head.times), **self.backbone.discrete()}


class GrootModel(FlowPolicy[Context]):
    """Backbone and head of one embodiment.

    What depends on the observation is written once a chunk into buffers that never move: the
    prompt's rows, the context that the head makes of them, keys and values of every crossing block.
    Of the ``config.head.action_horizon`` actions that start from noise the robot's come out.
    """

    config: GrootConfig

    def __init__(
        self,
        config: GrootConfig,
        weights: RowWeights,
        like: torch.Tensor,
        capture: Capture | None = None,
    ) -> None:
        head, device = config.head, like.device
        super().__init__(
            config,
            like,
            capture,
            longest=config.longest,
            state_width=head.max_state_dim,
            rising=True,
            rows=head.action_horizon,
        )
        self.backbone = config.backbone.build(weights, like, self.longest)
        self.head = ActionHead(head, weights, config.row, like, self.longest, self.padded)
        self._x = like.new_zeros(self.longest, self.backbone.width)
        self._processed = like.new_zeros(self.longest, head.backbone_embedding_dim)
        self._order = torch.arange(self.longest, device=device)  # rows with the images' first
        self._features: dict[int, torch.Tensor] = {}  # by number of rows, as their positions
        self._positions: dict[int, torch.Tensor] = {}
        self._ids: list[int] = []
        self._images: list[int] = []  # positions in the prompt
        self._words: list[int] = []

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels of the cameras [V, 3, s, s] in [-1, 1] -> features [n, W]."""
        return self.backbone.encode_images(pixels)

    def embed_prefix(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[Context, int]:
        """Features of the images, and the whole prompt's ids int64 [n] on the CPU with a
        position for each of their rows."""
        self._set_prompt(ids.tolist())
        count, images = len(self._ids), len(self._images)
        if images != len(features):
            raise ValueError(
                f"the prompt has positions for {images} rows of images, there are {len(features)}"
            )
        context = self._laid_out(images, round_up(count, self.bucket), count)
        self._features[images].copy_(features)
        self._positions[images].copy_(pinned(self._images, self.device), non_blocking=True)
        self._x[:count].copy_(self.backbone.embed(upload(ids, self.device)))
        self._x[count : context.length].zero_()
        order = [*self._images, *self._words, *range(count, context.length)]
        self._order[: context.length].copy_(pinned(order, self.device), non_blocking=True)
        return context, count

    def _set_prompt(self, ids: list[int]) -> None:
        """Take on a prompt, where it is another one: all that depends on its positions alone."""
        if ids == self._ids:
            return
        if not 0 < len(ids) <= self.longest:
            raise ValueError(f"a prompt has at most {self.longest} rows, wanted {len(ids)}")
        token = self.config.backbone.image_token
        self._images = [position for position, one in enumerate(ids) if one == token]
        self._words = [position for position, one in enumerate(ids) if one != token]
        self.backbone.set_prompt(ids)
        self._ids = ids

    def _laid_out(self, images: int, length: int, count: int) -> Context:
        """The views for so many rows of images, padded from ``count`` to ``length``."""
        if images not in self._features:
            self._features[images] = self._x.new_zeros(images, self.backbone.features_width)
            self._positions[images] = torch.zeros(images, dtype=torch.int64, device=self.device)
        context = self.head.context(images, length)
        self.head.hide(context, count)
        return context

    def blank_span(self, image_rows: int, length: int) -> Context:
        """A context of this length, without padding."""
        self._order[:length].copy_(torch.arange(length))
        return self._laid_out(image_rows, length, length)

    def fill_kv_cache(self, context: Context) -> torch.Tensor:
        """The language model and all that the head makes of its rows."""
        features, positions = self._features[context.images], self._positions[context.images]
        width = self.backbone.width
        x = self._x[: context.length].index_copy(0, positions, features[:, :width])
        rows = self.backbone.forward(x, features, positions)
        rows = rows.index_select(0, self._order[: context.length])
        processed = self._processed[: context.length]
        processed.copy_(self.head.process_backbone_output(context, rows))
        self.head.cross(context, processed)
        return processed

    def begin_chunk(self, context: Context) -> None:
        """The state's row."""
        self.head.begin(self.state)

    def redo_chunk(self, context: Context) -> None:
        """The state's row, and keys and values of the context."""
        self.head.begin(self.state)
        self.head.cross(context, self._processed[: context.length])

    def replace_state(self, context: Context, state: torch.Tensor) -> None:
        """The head reads the state, the backbone does not."""
        self.state.copy_(pinned(state, self.device), non_blocking=True)

    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        """Noisy actions -> rows: state, future tokens, actions."""
        return self.head.embed_suffix(x, step)

    def velocity(self, context: Context, rows: torch.Tensor, step: int) -> torch.Tensor:
        """Rows -> the velocity of every action that the head makes."""
        return self.head.velocity(context, rows, step)

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        """Random pixels of all cameras, a prompt of so many words at most, a state of zeros."""
        config, side = self.config, self.config.image_size
        views, token = len(config.cameras), config.backbone.image_token
        pixels = torch.rand(views, 3, side, side, generator=generator) * 2 - 1
        images = torch.full((views * config.view_tokens,), token)
        known = min(words, config.max_text)
        text = [i for i in range(known + 1) if i != token][:known]
        ids = torch.cat((images, torch.tensor(text, dtype=torch.int64)))
        return Inputs(pixels, ids, torch.zeros(config.head.max_state_dim))
