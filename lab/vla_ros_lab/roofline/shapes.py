"""The shape of a model: everything that decides its arithmetic and traffic, and nothing else.

Widths and weights come from the configs and tensor tables of the engine's families. So a policy of
a new family has a shape where its tensors are named as the others' are: towers behind a patch
embedding, a language model behind ``embed_tokens``, an expert in the last stack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import isqrt, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from vla_ros.engine.io.config import ModelConfig


@dataclass(frozen=True, slots=True)
class TowerShape:
    """A vision transformer: ``blocks`` that are run, ``prefix`` class and register tokens."""

    width: int
    blocks: int
    mlp: int
    patches: int
    prefix: int = 0
    patch: int = 14


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A Llama-like decoder: grouped key/value heads, a gated MLP or (not ``gated``) a plain one.

    ``queries`` and ``keys`` are the widths of all heads together. ``vocab`` 0: its head is never
    run. ``table`` is the number of embeddings in memory besides the head: only a few rows are read,
    so it takes room but no time; 0 where the head is it.
    """

    hidden: int
    intermediate: int
    layers: int
    queries: int
    keys: int
    vocab: int = 0
    table: int = 0
    gated: bool = True

    @property
    def weights(self) -> int:
        """Weights of the layers' matrices, without embedding and head."""
        qkv = self.hidden * (self.queries + 2 * self.keys)
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate
        return self.layers * (qkv + self.queries * self.hidden + mlp)


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
    steps: int
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
    notes: tuple[str, ...] = ()

    @property
    def prompt(self) -> int:
        """Tokens of the prefill."""
        return self.images * self.vision_tokens + self.text_tokens

    def with_prompt(self, tokens: int) -> ModelShape:
        """The model with so many tokens in its prompt, those of the images included.

        Raises:
            ValueError: fewer than the images alone have.
        """
        text = tokens - self.images * self.vision_tokens
        if text < 1:
            least = self.images * self.vision_tokens + 1
            raise ValueError(f"a prompt of {tokens} tokens: the images alone need {least - 1}")
        return replace(self, text_tokens=text)

    def with_images(self, images: int) -> ModelShape:
        """The model with so many cameras."""
        return replace(self, images=images)

    def with_chunk(self, actions: int) -> ModelShape:
        """The model trained to predict so many actions at once, token by token.

        Raises:
            ValueError: fewer than one, or it makes no tokens one at a time.
        """
        if actions < 1:
            raise ValueError(f"a chunk of {actions} actions: give at least 1")
        if self.kind != "tokens":
            raise ValueError(f"{self.name} makes its chunk at once: its length cannot be chosen")
        dim = self.action_tokens // self.chunk
        return replace(self, chunk=actions, action_tokens=dim * actions)


def as_parallel(model: ModelShape, chunk: int) -> ModelShape:
    """A token model as OpenVLA-OFT would have it: placeholders and an L1 head for the chunk."""
    head = l1_head(model.decoder.hidden, 7, chunk)
    return replace(model, kind="parallel", chunk=chunk, action_tokens=7 * chunk, action_head=head)


def l1_head(hidden: int, action_dim: int, chunk: int) -> tuple[Matrix, ...]:
    """OpenVLA-OFT's action head: fc1, two residual blocks, fc2, on each action of the chunk."""
    wide, square = (hidden * action_dim, hidden), (hidden, hidden)
    return tuple(Matrix(*size, chunk) for size in (wide, square, square, (hidden, action_dim)))


# Token policies: OpenVLA and its kin, by their config.


PROMPT_TEXT = 25  # OpenVLA's prompt around a short instruction: 281 tokens with 256 patches
BITVLA_TEXT = 53  # BitVLA's, its words and marks counted: its tokenizer is not at hand
TERNARY = "its weights are ternary: give --dtype vision=ternary,decoder=ternary"


def shape_of(config: ModelConfig, name: str, dim: int = 7) -> ModelShape:
    """The shape of a token policy whose actions have ``dim`` numbers, with a short instruction."""
    text, patches, hidden = config.text, config.towers[0].patches, config.text.hidden_size
    # Features are taken after block depth - 2, so the last block of each tower is never run.
    towers = tuple(
        TowerShape(t.width, t.depth - 1, t.mlp, t.patches, t.registers + t.class_token, t.patch)
        for t in config.towers
    )
    features, words = config.feature_width, BITVLA_TEXT if text.ternary else PROMPT_TEXT
    inside = (4 * features, hidden) if len(towers) == 2 else (hidden,)
    widths = (features, *inside, hidden)
    return ModelShape(
        name,
        "parallel" if config.parallel else "tokens",
        towers,
        tuple(Matrix(*size, patches) for size in pairwise(widths)),
        DecoderShape(
            hidden,
            text.intermediate_size,
            text.layers,
            text.heads * text.head_dim,
            text.kv_heads * text.head_dim,
            0 if text.ternary else text.vocab_size,  # whose words stay on the disk
            0 if text.tied else text.vocab_size,
        ),
        vision_tokens=patches,
        text_tokens=words + int(config.proprio_dim > 0),
        action_tokens=config.chunk * dim,
        chunk=config.chunk,
        images=config.images,
        action_head=l1_head(hidden, config.action_dim, config.chunk) if config.parallel else (),
        source=f"config.json of {name}",
        notes=(TERNARY,) if text.ternary else (),
    )


# All other policies: by the names and shapes of their tensors.


Tensors = Mapping[str, tuple[int, ...]]

_QUERY, _KEY = r"\b(q_proj|to_q|query)\b", r"\b(k_proj|to_k|key)\b"
_FUSED = r"\b(qkv|in_proj_weight)\b"
_PROJECTOR = r"multi_modal_projector\.linear|modality_projection|merger.*linear_fc|mlp1\.\d"
#: the maps around an expert, in the order in which they are run
_ENDS = (
    "action_in_proj", "action_time_mlp_in", "action_time_mlp_out", "action_out_proj",
    r"action_encoder\.W", "proj_out_2", r"action_decoder\.layer",
)  # fmt: skip
#: those that depend on the time alone, and those that read a whole chunk at once
_TIMED = r"\.dense\.|^time_mlp|norm1\.linear|proj_out_1|timestep_embedder"
_FLAT = r"seq_pool_proj|mlp_head\.fc"


def flow_shape_of(config: Any, name: str) -> ModelShape:
    """The shape of a policy of any other family (``config``: a ``PolicyConfig``), with the longest
    prompt that it takes, and of pi0-FAST the longest answer.

    Raises:
        ValueError: its tensors are not named as those of the known families are.
    """
    from vla_ros.engine.families.registry import family_of_kind

    must = family_of_kind(config.kind).expected(config).must
    if config.kind == "act":
        return _convolved(config, name, must)
    stacks = _stacks(must)
    patches = next((n for n in must if "patch_embed" in n and n.endswith("weight")), "")
    words_of = next((n for n in must if n.endswith("embed_tokens.weight")), "")
    answer = int(getattr(config, "max_tokens", 0))
    if not (stacks and patches and (words_of or not config.steps)):
        raise ValueError(f"{name}: its tensors are not named as other families' are: no roofline")
    seen = _behind(stacks, patches)
    tower = _tower(config, must, seen, must[patches][1:])
    if not (config.steps or answer):
        return _single_pass(config, name, must, tower)
    text = _behind(stacks, words_of)
    experts = [s for s in stacks if s not in (seen, text)]
    last = experts[-1] if experts else None
    decoder = replace(text.shape, table=must[words_of][0])
    state = must.get("state_proj.weight", (0,))[0]
    words = config.max_text - getattr(config, "slots", 0) * config.view_tokens
    # The state is a row of SmolVLA's prefix; a BOS stands behind pi0-FAST's.
    words += int(last is None or state == decoder.hidden != last.shape.hidden)
    return ModelShape(
        name,
        "tokens" if answer else "flow",
        (tower,),
        tuple(Matrix(*size, config.view_tokens) for size in _maps(must, _PROJECTOR)),
        decoder,
        vision_tokens=config.view_tokens,
        text_tokens=words,
        action_tokens=answer or config.horizon,
        chunk=config.horizon,
        images=len(config.cameras),
        expert=None if last is None else _expert(config, must, decoder, experts[:-1], last),
        source=f"config.json of {name}",
    )


@dataclass(frozen=True, slots=True)
class _Stack:
    """Layers of attention and an MLP; ``sources``: of each layer, how wide its keys' source is."""

    prefix: str
    shape: DecoderShape
    sources: tuple[int, ...]


def _stacks(must: Tensors) -> list[_Stack]:
    """The stacks among the tensors, in their order."""
    layers: dict[str, dict[str, Tensors]] = {}
    for name, shape in must.items():
        found = re.fullmatch(r"(.*?)\.(\d+)\.(.*)", name)
        if found and len(shape) == 2:
            layer: Any = layers.setdefault(found[1], {}).setdefault(found[2], {})
            layer[found[3]] = shape
    made = (_stack(prefix, list(of.values())) for prefix, of in layers.items())
    return [one for one in made if one is not None]


def _stack(prefix: str, layers: list[Tensors]) -> _Stack | None:
    """None: layers without attention."""
    first = layers[0]

    def named(layer: Tensors, pattern: str) -> tuple[int, ...]:
        return next((shape for n, shape in layer.items() if re.search(pattern, n)), ())

    if fused := named(first, _FUSED):
        queries = keys = (fused[0] // 3, *fused[1:])
    else:
        queries, keys = named(first, _QUERY), named(first, _KEY)
    if not queries:
        return None
    width = queries[1]
    inner = (s[1] for n, s in first.items() if s[0] == width and "att" not in n)
    shape = DecoderShape(
        width, max(inner, default=0), len(layers), queries[0], keys[0],
        gated=any("gate" in name for name in first),
    )  # fmt: skip
    sources = tuple((named(layer, _KEY) or named(layer, _FUSED) or keys)[1] for layer in layers)
    return _Stack(prefix, shape, sources)


def _behind(stacks: list[_Stack], embedding: str) -> _Stack:
    """The stack that shares most of its name with an embedding."""
    parts = embedding.split(".")

    def shared(stack: _Stack) -> int:
        pairs = zip(stack.prefix.split("."), parts, strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    return max(stacks, key=shared)


def _tower(config: Any, must: Tensors, tower: _Stack, pixels: tuple[int, ...]) -> TowerShape:
    """``pixels``: inputs of the patch embedding, a convolution's or a matrix's."""
    patch = pixels[-1] if len(pixels) > 1 else isqrt(pixels[0] // 3)
    side = getattr(config, "image_size", None) or config.vision.image_size
    own = re.compile(r"(cls_token|register_tokens)$")
    prefix = sum(shape[1] for name, shape in must.items() if own.search(name))
    shape = tower.shape
    return TowerShape(
        shape.hidden, shape.layers, shape.intermediate, (side // patch) ** 2, prefix, patch
    )


def _expert(
    config: Any, must: Tensors, decoder: DecoderShape, refined: list[_Stack], last: _Stack
) -> ExpertShape:
    """An expert that attends to the decoder's cache has keys as wide as it; another reads the
    decoder's hidden states."""
    shape, head = last.shape, getattr(config, "head", None)
    hidden = shape.keys != decoder.keys
    crossing = [w for w in last.sources if (w == decoder.hidden if hidden else w != shape.hidden)]
    still = must.get("state_proj.weight", (0,))[0] == shape.hidden
    # With every second one GR00T's crossing blocks read the text or the images alone.
    halves = head is not None and head.attend_text_every_n_blocks == 2
    return ExpertShape(
        shape,
        rows=config.horizon if head is None else head.rows,
        steps=config.steps,
        still_rows=int(still),
        cross_layers=len(crossing),
        cross_width=crossing[0] if crossing else 0,
        ends=_maps(must, *_ENDS),
        timed_weights=sum(inputs * outputs for inputs, outputs in _maps(must, _TIMED)),
        flat=_maps(must, _FLAT),
        reads_hidden=hidden,
        cross_share=0.5 if halves else 1.0,
        refine=tuple(size for stack in refined for size in _refining(stack.shape)),
    )


def _refining(shape: DecoderShape) -> tuple[tuple[int, int], ...]:
    attention = (shape.hidden, shape.queries + 2 * shape.keys + shape.hidden)
    mlp = (shape.hidden, shape.intermediate), (shape.intermediate, shape.hidden)
    return (attention, *mlp) * shape.layers


def _maps(must: Tensors, *patterns: str) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of the matrices whose names hold a pattern; of a stack, one robot's."""
    found = [
        shape if len(shape) == 2 else shape[:0:-1]
        for pattern in patterns
        for name, shape in must.items()
        if re.search(pattern, name) and name.endswith(("weight", ".W")) and len(shape) > 1
    ]
    return tuple((inputs, outputs) for outputs, inputs in found)


def _single_pass(config: Any, name: str, must: Tensors, tower: TowerShape) -> ModelShape:
    """TurboVLA, without a language model: BERT reads an instruction once, so the decoder has no
    layers, and the scores of its small attention are left out."""
    width, patches, images = config.width, tower.patches, len(config.cameras)
    words = config.text_length or config.max_text
    seen, chunk = images * patches, config.horizon
    memory = seen + words + config.state_rows
    rows = {
        r"fusion_layers\..*v_proj": seen, r"fusion_layers\..*l_proj|text_layers\.": words,
        r"state_projection\.": 1, r"decoder\.layers\..*(self_attn|out_proj|linear\d)": chunk,
        r"action_projection\.": chunk,
    }  # fmt: skip
    head = [
        Matrix(shape[1], shape[0], count)
        for pattern, count in rows.items()
        for tensor, shape in must.items()
        if re.search(pattern, tensor) and len(shape) == 2 and not tensor.endswith("bias")
    ]
    crossing = sum(tensor.endswith("multihead_attn.in_proj_weight") for tensor in must)
    head += [Matrix(width, 2 * width, memory), Matrix(width, width, chunk)] * crossing
    return ModelShape(
        name,
        "parallel",
        (tower,),
        tuple(Matrix(*size, patches) for size in _maps(must, r"^vision_projection\.")),
        DecoderShape(width, config.inner, 0, width, width, gated=False),
        vision_tokens=patches,
        text_tokens=words,
        action_tokens=chunk,
        chunk=chunk,
        images=images,
        action_head=tuple(head),
        source=f"config.json of {name}",
    )


def _convolved(config: Any, name: str, must: Tensors) -> ModelShape:
    """ACT: a convolution is a matrix that is applied to every pixel of its result. The encoder runs
    on all rows and the decoder on the chunk's; the scores of their attention are left out."""
    view, chunk, width = config.views[0], config.horizon, config.width

    def pixels(tensor: str) -> int:
        stage = re.search(r"layer(\d)", tensor)
        halved = 2 ** (1 + int(stage[1])) if stage else 2
        return -(-view.height // halved) * -(-view.width // halved)

    convolutions = [
        Matrix(prod(shape[1:]), shape[0], pixels(tensor))
        for tensor, shape in must.items()
        if tensor.startswith("backbone.") and len(shape) == 4
    ]
    tokens, kept = prod(view.grid), "decoder.layers.0.self_attn."  # made at load
    head = [
        Matrix(shape[1], shape[0], config.longest if tensor.startswith("encoder.") else chunk)
        for tensor, shape in must.items()
        if re.match("(en|de)coder.layers|action_head", tensor) and len(shape) == 2
        and "multihead_attn.in_proj" not in tensor and not tensor.startswith(kept)
    ]  # fmt: skip
    across = Matrix(width, 2 * width, config.longest), Matrix(width, width, chunk)
    return ModelShape(
        name,
        "parallel",
        (),
        (*convolutions, Matrix(must["encoder_img_feat_input_proj.weight"][1], width, tokens)),
        DecoderShape(width, config.mlp, 0, width, width, gated=False),
        vision_tokens=tokens,
        text_tokens=config.front,
        action_tokens=chunk,
        chunk=chunk,
        images=len(config.cameras),
        action_head=(*head, *across * config.decoder_layers),
        source=f"config.json of {name}",
    )


# The shape of a model by any name: a known one, or a checkpoint's from its config.json.


@dataclass(frozen=True, slots=True)
class _Known:
    """A preset of the engine's in its usual setting: the ``text`` tokens and ``images`` of a
    prompt, where they are not those of the preset."""

    source: str
    text: int = 0
    images: int = 0
    notes: tuple[str, ...] = ()


_OFT: Final = "openvla-oft"  # the one known shape that is no preset: OpenVLA with an L1 head
_CHAT = "its own chat prompt is some 20 tokens longer: give --prompt-tokens"
_ABSENT = "the prompt keeps three images' positions; those of absent cameras have no rows here"
_HUB, _OWN = "config.json of openvla/openvla-7b; timm's two towers", "this project's small policy"
_LIBERO = "LIBERO setting: 2 images, proprio, chunk 8 of 7 dimensions"
_GROOT = "NVIDIA Isaac-GR00T gr00t"
KNOWN: Final[Mapping[str, _Known]] = {
    "openvla-7b": _Known(_HUB),
    "minivla": _Known(
        "openvla-mini; config.json of Qwen/Qwen2.5-0.5B, 151936 embeddings", notes=(_CHAT,)
    ),
    _OFT: _Known(f"openvla-oft, {_LIBERO}", text=PROMPT_TEXT + 1, images=2),
    "bitvla": _Known(f"BitVLA, {_LIBERO}", notes=(TERNARY,)),
    "smolvla": _Known(
        "lerobot policies/smolvla on SmolVLM2-500M: 16 of 32 layers, expert 0.75 as wide"
    ),
    "pi0": _Known("lerobot policies/pi0 (PaliGemma, 300M expert)"),
    "pi05": _Known(
        "lerobot policies/pi05: the state is words of the prompt, time enters every norm", images=3
    ),
    "evo1": _Known(
        "lerobot policies/evo1 on InternVL3-1B: 14 of 24 layers, the head crosses to them",
        text=40, notes=(_ABSENT,),
    ),
    "groot-n1.7": _Known(
        f"{_GROOT}_n1d7 on Cosmos-Reason2-2B (Qwen3-VL): 16 of 28 layers, three taps of the tower,"
        " 16 of the head's 40 actions", text=28,
    ),
    "groot-n1.6": _Known(
        f"{_GROOT}_n1d6 on Eagle-Block2A-2B: SigLIP2 at 252 pixels, 16 of 28 layers of Qwen3, 16"
        " of the head's 50 actions", text=35,
    ),
    "groot-n1.5": _Known(
        f"{_GROOT}_n1_5 on Eagle 2.5: 12 of 28 layers of Qwen3, 32 future tokens", text=38
    ),
    "small": _Known(_OWN),
    "small-oft": _Known(_OWN),
    "small-chunk": _Known(_OWN),
    "bitvla-small": _Known(
        "BitVLA's layout at the size of this project's small policy", notes=(TERNARY,)
    ),
    "openvla-7b-chunk": _Known(_HUB),
    "cpu": _Known("vla-ros bench --preset cpu"),
}  # fmt: skip


def load_model(name: str) -> ModelShape:
    """A model by any name that the policy and `vla-ros bench` know it by.

    A known shape or a preset (``random:`` before it or not), a checkpoint directory, its
    config.json, ``shipped:NAME``, a hub id of which there is a copy here. Nothing is downloaded.

    Raises:
        ValueError: with what there is.
    """
    from vla_ros.engine.families.registry import all_presets, family_of
    from vla_ros.engine.io.hub import RANDOM

    preset = name.removeprefix(RANDOM)
    if preset not in KNOWN and not name.startswith(RANDOM):
        return _of_folder(name)
    known = KNOWN.get(preset, _Known(f"config.json of {preset}"))
    source = "openvla-7b" if preset == _OFT else preset
    presets = family_of(f"{RANDOM}{source}").presets
    if source not in presets:
        there = ", ".join(dict.fromkeys((*KNOWN, *all_presets())))
        raise ValueError(f"no model {name!r}: the known shapes are {there}")
    config = presets[source]
    model = (shape_of if config.kind == "tokens" else flow_shape_of)(config, preset)
    if preset == _OFT:
        model = as_parallel(model, 8)
    return replace(
        model, text_tokens=known.text or model.text_tokens, images=known.images or model.images,
        source=known.source, notes=known.notes,
    )  # fmt: skip


def _of_folder(name: str) -> ModelShape:
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.families.registry import config_of, family_of
    from vla_ros.engine.io.checkpoint import read_config
    from vla_ros.engine.options import TOKENS

    folder = _folder(name)
    shown = name if ":" in name else folder.name
    try:
        if family_of(folder).group != TOKENS:
            return flow_shape_of(config_of(folder), shown)
        config, raw = read_config(folder)
        return shape_of(config, shown, action_dim(raw))
    except CheckpointError as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ValueError(f"{folder / 'config.json'} cannot be read: {error}") from None


def _folder(name: str) -> Path:
    """The folder of a checkpoint on this machine. ValueError: there is none."""
    from vla_ros.core.names import nearest
    from vla_ros.engine.io.hub import SHIPPED, hub_id, shipped

    if name.startswith(SHIPPED):
        return shipped(name)  # its CheckpointError is a ValueError
    path = Path(name).expanduser()
    folder = path.parent if path.name == "config.json" else path
    if folder.is_dir():
        return folder
    if (what := hub_id(name)) is None:
        known = f": give a checkpoint directory or {', '.join(KNOWN)}"
        raise ValueError(f"no model {name!r}{nearest(name, KNOWN, known)}")
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(
        what.repository,
        "config.json",
        cache_dir=constants.HF_HUB_CACHE,
        revision=what.revision or None,
    )
    if isinstance(found, str):
        return Path(found).parent
    raise ValueError(
        f"no model {name!r}: there is no copy of it on this machine; give a directory or a"
        f" shape like its own: {', '.join(KNOWN)}"
    )


def action_dim(raw: dict) -> int:
    """Dimensions of an action: those of the checkpoint's statistics, else 7."""
    for stats in (raw.get("norm_stats") or {}).values():
        return len(stats["action"]["q01"])
    return 7
