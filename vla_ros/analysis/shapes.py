"""The shape of a model: everything that decides its arithmetic and traffic, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class TowerShape:
    """A vision transformer. ``blocks`` that are run; ``prefix`` class and register tokens."""

    width: int
    blocks: int
    heads: int
    mlp: int
    patches: int
    prefix: int = 0
    patch: int = 14


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A Llama-like decoder: grouped key/value heads, a gated MLP or (not ``gated``) a plain one.

    ``vocab`` 0: its head is never asked. ``table`` is the number of embeddings in memory besides
    the head: only a few rows are read, so it takes room but no time; 0 where the head is it.
    """

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 0
    table: int = 0
    gated: bool = True

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices."""
        qkv = self.hidden * (self.heads + 2 * self.kv_heads) * self.head_dim
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate
        return qkv + self.heads * self.head_dim * self.hidden + mlp

    @property
    def weights(self) -> int:
        """Weights of the layers' matrices, without embedding and head."""
        return self.layers * self.layer_weights


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A flow-matching action expert that attends to the decoder's cache.

    ``rows`` actions are denoised together in ``steps`` steps; ``still_rows`` stand before them
    and are the same in all steps (pi0's state). In ``cross_layers`` of its layers keys and values
    are made from the decoder's cache, ``cross_width`` wide. ``ends`` are the matrices (inputs,
    outputs) around it, run once a step on every row. ``timed_weights`` depend on the time alone:
    tables when the model is loaded (pi0.5's adaRMS). ``flat`` are matrices that are run once a step
    on one row (Evo-1 flattens its chunk). ``reads_hidden``: it reads the decoder's last hidden
    states, so that the last layer is run whole, and the prefix is causal (Evo-1). Then layers that
    do not cross see nothing but the chunk, those that cross read ``cross_share`` of the prompt
    (GR00T: the text or the images alone), and ``refine`` are matrices that it goes through once.

    What is the same in all steps is done once a chunk; in a *naive* step all of it again.
    """

    decoder: DecoderShape
    rows: int
    steps: int = 10
    still_rows: int = 0
    cross_layers: int = 0
    cross_width: int = 0
    ends: tuple[tuple[int, int], ...] = ()
    timed_weights: int = 0
    flat: tuple[tuple[int, int], ...] = ()
    reads_hidden: bool = False
    cross_share: float = 1.0
    refine: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Matrix:
    """One matrix of the projector or of an action head, applied to ``rows`` rows a frame."""

    inputs: int
    outputs: int
    rows: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A VLA. ``kind`` is how it makes actions: ``tokens`` (one at a time), ``parallel`` (all
    placeholders in one pass), ``flow`` (an expert denoises a chunk).

    ``vision_tokens`` of one image enter the decoder; ``text_tokens`` are all the others of the
    prompt. ``action_tokens`` are those of one inference, which returns ``chunk`` actions.
    """

    name: str
    kind: str
    towers: tuple[TowerShape, ...]
    projector: tuple[Matrix, ...]
    decoder: DecoderShape
    vision_tokens: int
    text_tokens: int
    source: str
    action_tokens: int = 7
    chunk: int = 1
    images: int = 1
    action_head: tuple[Matrix, ...] = ()
    expert: ExpertShape | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def prompt(self) -> int:
        """Tokens of the prefill."""
        return self.images * self.vision_tokens + self.text_tokens

    def with_prompt(self, tokens: int) -> ModelShape:
        """The same model with so many tokens in its prompt, those of the images included.

        Raises:
            ValueError: fewer than the images alone have.
        """
        text = tokens - self.images * self.vision_tokens
        if text < 1:
            least = self.images * self.vision_tokens + 1
            raise ValueError(f"a prompt of {tokens} tokens: the images alone need {least - 1}")
        return replace(self, text_tokens=text)

    def with_images(self, images: int) -> ModelShape:
        """The same model with so many cameras."""
        return replace(self, images=images)

    def with_chunk(self, actions: int) -> ModelShape:
        """The same model trained to say so many actions at once, token by token.

        Raises:
            ValueError: fewer than one, or it makes no tokens one at a time.
        """
        if actions < 1:
            raise ValueError(f"a chunk of {actions} actions: give at least 1")
        if self.kind != "tokens":
            raise ValueError(f"{self.name} says its chunk at once: its length is not to choose")
        dim = self.action_tokens // self.chunk
        return replace(self, chunk=actions, action_tokens=dim * actions)
