"""The sizes of GR00T's action head, N1.5 to N1.7, and the tensors that it is made of.

Source: NVIDIA/Isaac-GR00T ``gr00t_n1d7.py``, ``gr00t_n1d6.py``, ``flow_matching_action_head.py``
(N1.5) and ``modules/dit.py``; LeRobot 0.6.1 ``groot_n1_7.py`` has N1.7's under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.engine.flow.suffix import linear_shapes
from vla_ros.engine.flow.weights import Shape

FREQUENCIES = 256  # diffusers' Timesteps in front of the time MLP
MLP = 4  # an MLP's middle is so many times as wide


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """A head that turns noise [horizon, action_width] into actions.

    The transformer has ``layers`` blocks of ``heads`` x ``head_dim``; even ones attend to the
    context of ``context_width``, odd ones to state and actions. With ``text_every`` n every n-th
    of the even ones reads the text alone and the others the images alone (0: all read all; N1.5).
    ``hidden`` is the width between it and the encoders, of which there is one an embodiment.
    ``future`` rows of learned tokens stand between state and actions (N1.5). The context goes
    through a norm (``context_norm``) and ``context_layers`` blocks of self attention.
    ``positions`` is the length of the table of positions that is added to actions (0: none),
    ``buckets`` what a time from 0 to 1 is multiplied by before it is cut to an integer.
    """

    horizon: int
    action_width: int
    state_width: int
    layers: int = 32
    heads: int = 32
    head_dim: int = 48
    context_width: int = 2048
    hidden: int = 1024
    text_every: int = 2
    future: int = 0
    context_norm: bool = True
    context_layers: int = 4
    context_heads: int = 32
    positions: int = 1024
    steps: int = 4
    buckets: int = 1000
    embodiments: int = 32

    @property
    def width(self) -> int:
        """The width of the transformer's rows."""
        return self.heads * self.head_dim

    @property
    def rows(self) -> int:
        """Rows of the transformer: state, future tokens, actions."""
        return 1 + self.future + self.horizon

    @property
    def crossing(self) -> tuple[int, ...]:
        """The blocks that attend to the context."""
        return tuple(range(0, self.layers, 2))

    def reads_text(self, layer: int) -> bool | None:
        """Whether a crossing block reads the text alone, the images alone (False), or all."""
        return None if not self.text_every else layer % (2 * self.text_every) == 0

    @property
    def times(self) -> tuple[int, ...]:
        """The integer time of every step, as the authors cut it."""
        return tuple(int(step / float(self.steps) * self.buckets) for step in range(self.steps))


def head_shapes(config: HeadConfig, base: str = "action_head.") -> dict[str, Shape]:
    """Every tensor of the head, those of all embodiments."""
    width, hidden = config.width, config.hidden
    shapes: dict[str, Shape] = {}
    maps = {
        "state_encoder.layer1": (config.state_width, hidden),
        "state_encoder.layer2": (hidden, width),
        "action_encoder.W1": (config.action_width, width),
        "action_encoder.W2": (2 * width, width),
        "action_encoder.W3": (width, width),
        "action_decoder.layer1": (hidden, hidden),
        "action_decoder.layer2": (hidden, config.action_width),
    }
    for name, (inputs, outputs) in maps.items():
        shapes[f"{name}.W"] = (config.embodiments, inputs, outputs)
        shapes[f"{name}.b"] = (config.embodiments, outputs)
    if config.positions:
        shapes["position_embedding.weight"] = (config.positions, width)
    if config.future:
        shapes["future_tokens.weight"] = (config.future, width)
    if config.context_norm:
        shapes |= _norm_shapes("vlln", config.context_width)
    for number in range(config.context_layers):
        name = f"vl_self_attention.transformer_blocks.{number}."
        shapes |= _block_shapes(name, config.context_width, config.context_width)
        shapes |= _norm_shapes(f"{name}norm1", config.context_width)
        shapes |= _norm_shapes(f"{name}norm3", config.context_width)
    for number in range(config.layers):
        name = f"model.transformer_blocks.{number}."
        source = width if number % 2 else config.context_width
        shapes |= _block_shapes(name, width, source)
        shapes |= linear_shapes(f"{name}norm1.linear", width, 2 * width)
    embedder = "model.timestep_encoder.timestep_embedder."
    shapes |= linear_shapes(f"{embedder}linear_1", FREQUENCIES, width)
    shapes |= linear_shapes(f"{embedder}linear_2", width, width)
    shapes |= linear_shapes("model.proj_out_1", width, 2 * width)
    shapes |= linear_shapes("model.proj_out_2", width, hidden)
    return {base + name: shape for name, shape in shapes.items()}


def _block_shapes(base: str, width: int, source: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name, inputs in (("to_q", width), ("to_k", source), ("to_v", source), ("to_out.0", width)):
        shapes |= linear_shapes(f"{base}attn1.{name}", inputs, width)
    shapes |= linear_shapes(f"{base}ff.net.0.proj", width, MLP * width)
    return shapes | linear_shapes(f"{base}ff.net.2", MLP * width, width)


def _norm_shapes(name: str, width: int) -> dict[str, Shape]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
