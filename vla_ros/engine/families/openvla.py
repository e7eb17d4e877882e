"""OpenVLA and its kin (MiniVLA, OpenVLA-OFT, BitVLA): checkpoints read, checked, written, drawn.

No pickle and no remote code, ever: the engine reads tensors and JSON.

``random:small``, ``random:small-oft``, ``random:small-chunk`` and ``random:cpu`` are written to a
cache directory and read back through the real loader, as is ``random:bitvla-small``;
``random:openvla-7b``, ``random:minivla`` and ``random:bitvla`` are too large for that and are made
on the device. So that greedy decoding gives action tokens, the rows of all other tokens are zero in
the head (small in an embedding that is also the head).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vla_ros.core.action_space import action_space_of
from vla_ros.core.names import nearest
from vla_ros.engine.decoding.base import resolve as resolve_decoding
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import Family, LoadedPolicy, LoadOptions, Placement, Sizes
from vla_ros.engine.families.random import (
    PREFIX,
    TEXT_VOCAB,
    VERSION,
    digest_of,
    inputs_of,
    tokenizer_directory,
    write_tokenizer,
)
from vla_ros.engine.formats import STORED, Formats, parse_formats
from vla_ros.engine.io.bitvla import (
    EMBEDDING,
    PROJECTOR,
    CheckpointParts,
    DrawnRows,
    FileRows,
    gather,
    is_ternary,
    vision_table,
    vision_unused,
)
from vla_ros.engine.io.checkpoint import (
    LANGUAGE,
    VQ,
    Checkpoint,
    Tensors,
    norm_stats_of,
    read_config,
)
from vla_ros.engine.io.config import (
    BITNET,
    BITSIGLIP,
    DINOV2_L,
    SIGLIP_SO400M,
    ModelConfig,
    TextConfig,
    TowerConfig,
    bitvla_json,
    config_json,
)
from vla_ros.engine.io.files import cached, memory_returned, write_json
from vla_ros.engine.io.foreign import MODEL_TYPES
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.io.quantize import (
    TERNARY,
    Origin,
    already,
    format_of,
    from_stored,
    quantize_tensors,
    read_origin,
    refuse_unless_fast,
    stored_shapes,
    with_head,
)
from vla_ros.engine.io.streamed import Streamed, stored_bytes
from vla_ros.engine.io.tensors import Plain, Table, shapes
from vla_ros.engine.io.tokens import Normalizer, PromptTokenizer, read_normalizer
from vla_ros.engine.io.weights import (
    HEADS,
    PACKED,
    WEIGHTS,
    Expected,
    Shape,
    Shapes,
    Stored,
    TensorReader,
    check_tensors,
    read_headers,
    read_tensors,
    sha256_of,
    weight_files,
)
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.ternary import stored_bytes as ternary_bytes
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.models.transformer import layer_table
from vla_ros.engine.options import TOKENS, EngineOptions

_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
SMALL_VOCAB = 960  # 704 text tokens, then 256 action tokens
LARGE = 300_000_000  # parameters from which weights are not written to disk
STATE = 8  # LIBERO's: position, rotation vector, two fingers
_NORMS = ("norm.weight", "norm1.weight", "norm2.weight", "layernorm.weight")
_LOUD = 0.05  # of BitVLA's embeddings; norms come before everything that reads them

_SMALL_TOWER = TowerConfig(192, 7, 3, 768, image_size=128, patch=16)
_SMALL_TEXT = TextConfig("llama", SMALL_VOCAB + 64, 256, 704, 4, 4, 4, 64)
_CPU_TEXT = TextConfig("llama", 32064, 768, 2048, 12, 12, 12, 64)
_QWEN = TextConfig("qwen2", 151936, 896, 4864, 24, 14, 2, 64, rope_theta=1e6, tied=True)
_OPENVLA = ModelConfig(
    TextConfig(vocab_size=32064), (DINOV2_L, SIGLIP_SO400M), 32000, empty_token_id=29871
)


def _bitvla(text: TextConfig, tower: TowerConfig) -> ModelConfig:
    return ModelConfig(
        text,
        (tower,),
        text.vocab_size,
        prompt_style="bitvla",
        images=2,
        chunk=8,
        parallel=True,
        proprio_dim=STATE,
        stop_token=1,
    )


PRESETS: dict[str, ModelConfig] = {
    "small": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB),
    # OpenVLA-OFT's architecture: a chunk of 8 actions from one bidirectional pass
    "small-oft": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB, chunk=8, parallel=True),
    # the same chunk as 56 tokens, one after another
    "small-chunk": ModelConfig(_SMALL_TEXT, (_SMALL_TOWER,), SMALL_VOCAB, chunk=8),
    "cpu": ModelConfig(_CPU_TEXT, (_SMALL_TOWER,), 32000),
    "openvla-7b": _OPENVLA,
    # the same with chunks of 8 actions, as 56 tokens
    "openvla-7b-chunk": replace(_OPENVLA, chunk=8),
    "minivla": ModelConfig(_QWEN, (DINOV2_L, SIGLIP_SO400M), 151921, prompt_style="qwen"),
    "bitvla-small": _bitvla(
        TextConfig("bitnet", TEXT_VOCAB, 256, 704, 4, 4, 2, 64, 5e5, 1e-5, tied=True),
        replace(_SMALL_TOWER, activation="gelu_tanh", ternary=True),
    ),
    # the published sizes, under the small tokenizer
    "bitvla": _bitvla(BITNET, BITSIGLIP),
}


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """The content of a directory, known from its JSON files and the headers of its weights."""

    directory: Path
    config: ModelConfig
    norm_stats: Mapping[str, Any]
    files: list[Path]
    stored: Mapping[str, Stored]
    wanted: Shapes
    origin: Origin | None = None

    @property
    def parameters(self) -> int:
        return sum(int(torch.Size(shape).numel()) for shape in self.wanted.values())


def unused_names(config: ModelConfig) -> tuple[str, ...]:
    """Prefixes of tensors that the family's checkpoints carry and that are never read."""
    if config.text.ternary:  # BitVLA's answer is what its action head makes of states
        return (*vision_unused(config), LANGUAGE + "lm_head.weight")
    out: list[str] = []
    for name, tower in zip(("featurizer", "fused_featurizer"), config.towers, strict=False):
        base = f"vision_backbone.{name}."
        out += [base + part for part in ("attn_pool.", "norm.", "head.", "fc_norm.")]
        out.append(f"{base}blocks.{tower.depth - 1}.")
    if config.text.tied:
        out.append(LANGUAGE + "lm_head.weight")  # a second copy of the embedding
    return tuple(out)


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor the engine reads for ``config``."""
    if config.text.ternary:
        found = shapes(vision_table(config))
    else:
        from vla_ros.engine.models.towers import Vision

        with torch.device("meta"):
            vision = Vision(config)
        found = {n: tuple(t.shape) for n, t in vision.state_dict().items()}
    found |= shapes(text_table(config.text), LANGUAGE)
    if config.parallel:
        from vla_ros.engine.models.oft import head_shapes

        found |= head_shapes(config)
    if config.vq is not None:
        from vla_ros.engine.models.minivla import vq_table

        found |= shapes(vq_table(config.vq, config))
    return found


def text_table(text: TextConfig) -> Table:
    """LlamaForCausalLM, Qwen2ForCausalLM, or BitNet's without its head."""
    hidden, vocab = text.hidden_size, text.vocab_size
    layer = layer_table(text)
    layer = {name: layer[name] for name in sorted(layer, key=lambda name: "norm" not in name)}
    inner = {"self_attn.attn_sub_norm": hidden, "mlp.ffn_sub_norm": text.intermediate_size}
    layer |= {f"{name}.weight": Plain((size,)) for name, size in inner.items() if text.ternary}
    head: Table = {"lm_head.weight": Plain((vocab, hidden))}
    return {
        "model.embed_tokens.weight": Plain((vocab, hidden)),
        "model.layers": [layer] * text.layers,
        "model.norm.weight": Plain((hidden,)),
        **({} if text.tied or text.ternary else head),
    }


def read_layout(directory: Path) -> CheckpointLayout:
    """Everything about a directory but its tensors. CheckpointError: it cannot be loaded."""
    config, raw = read_config(directory)
    stats = norm_stats_of(directory, raw)
    files = weight_files(directory)
    stored, wanted = read_headers(files), expected_shapes(config)
    origin = read_origin(directory)
    if origin is not None:
        wanted = stored_shapes(wanted, config, origin.formats)
    unused = tuple(name for name in unused_names(config) if f"{name}.scale" not in wanted)
    check_tensors(directory, stored, Expected(wanted), unused)
    return CheckpointLayout(directory, config, stats, files, stored, wanted, origin)


def load_checkpoint(
    name: str, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Checkpoint:
    """The checkpoint of a directory, a hub id or ``random:<preset>``; tensors land on ``device`` as
    ``dtype``, each read and checked when it is asked for. ``seed`` of random weights.

    CheckpointError names the file, what is wrong with it and what to do.
    """
    if name.startswith(PREFIX):
        preset, config = name.removeprefix(PREFIX), FAMILY.config(name, LoadOptions())
        if FAMILY.parameters(config) > LARGE:
            return in_memory(config, seed, device, dtype)
        name = str(FAMILY.cached(preset, seed))
    layout = read_layout(resolve(name))
    stats, directory = layout.norm_stats, layout.directory
    if layout.config.text.ternary:
        like = torch.empty(0, device=device, dtype=dtype)
        words = FileRows(layout.stored[EMBEDDING].path, EMBEDDING, like)
        # reading also looks at every number
        parts = gather(layout.config, read_tensors(layout.stored, layout.wanted), like)
        digest = sha256_of(directory, layout.files)
        return Checkpoint(
            layout.config, parts.tensors, stats, directory, digest, parts.ternary, words
        )
    shapes = layout.wanted
    own: tuple[str, ...] = PACKED  # of a type of their own
    if layout.origin is not None:
        formats = layout.origin.formats
        refuse_unless_fast(device, dtype, f"{layout.directory} has {formats}")
        shapes = with_head(expected_shapes(layout.config), layout.config, formats)
        own = (*PACKED, ".scale")

    def place(name: str, tensor: torch.Tensor) -> tuple[torch.device, torch.dtype]:
        if name.startswith(VQ):
            return torch.device("cpu"), torch.float32
        return device, tensor.dtype if name.endswith(own) else dtype

    read = Streamed(layout.wanted, TensorReader(layout.stored), place)
    digest = sha256_of(directory, layout.files)
    tensors, quantized = from_stored(read, shapes)
    return Checkpoint(layout.config, tensors, stats, directory, digest, quantized)


def quantized(checkpoint: Checkpoint, formats: Formats) -> Checkpoint:
    """``checkpoint`` with weights in other formats; ValueError where they cannot be.

    To the bit what a directory that was quantized ahead of time is read back as.
    """
    if checkpoint.config.text.ternary:
        raise CheckpointError(TERNARY)
    if checkpoint.quantized:
        raise CheckpointError(already(checkpoint.directory))
    like = checkpoint.tensors[LANGUAGE + "model.norm.weight"]
    refuse_unless_fast(like.device, like.dtype, f"weights {formats}")
    kept, made = quantize_tensors(checkpoint.tensors, checkpoint.config, formats)
    return replace(checkpoint, tensors=kept, quantized=made)


def save_checkpoint(
    directory: Path,
    config: ModelConfig,
    tensors: Tensors,
    norm_stats: Mapping[str, Any],
    write_tokenizer: Callable[[Path], None],
) -> None:
    """Write a checkpoint directory that :func:`load_checkpoint` reads back."""
    from safetensors.torch import save_file

    refuse_unlike(directory, tensors, config)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config_json(config, norm_stats))
    write_tokenizer(directory / "tokenizer.json")
    contiguous = {n: t.detach().contiguous() for n, t in tensors.items()}
    save_file(contiguous, str(directory / WEIGHTS))


def refuse_unlike(
    where: Path, tensors: Tensors, config: ModelConfig, unused: tuple[str, ...] = ()
) -> None:
    """Raise CheckpointError where they are not those of ``config``; ``where`` they come from."""
    described = {
        name: Stored(where, tuple(tensor.shape), _DTYPES.get(tensor.dtype, str(tensor.dtype)))
        for name, tensor in tensors.items()
    }
    check_tensors(where, described, Expected(expected_shapes(config)), unused)


def norm_stats(dim: int = 7, state: int = 0) -> dict[str, Any]:
    """Bounds of LIBERO's controller units [-1, 1], the last dimension a gripper in [0, 1]; and of a
    state around its own."""
    action = {"q01": [-1.0] * (dim - 1) + [0.0], "q99": [1.0] * dim, "mask": [True] * dim}
    proprio = {"proprio": {"q01": [-2.0] * state, "q99": [2.0] * state}} if state else {}
    return {"random": {"action": action, **proprio}}


def in_memory(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype, dim: int = 7
) -> Checkpoint:
    """Random weights made on the device; only the tokenizer goes to disk."""
    digest = digest_of(config, seed, dtype)
    if not config.text.ternary:
        tensors = random_tensors(config, seed, device, dtype)
        return Checkpoint(config, tensors, norm_stats(dim), tokenizer_directory(), digest)
    directory = cached(
        f"tokenizer-bitvla-{VERSION}",
        lambda to: write_tokenizer(to / "tokenizer.json", style="bitvla"),
    )
    like = torch.empty(0, device=device, dtype=dtype)
    parts = draw_bitvla(config, seed, like)
    rows = DrawnRows(config.text.hidden_size, seed, _LOUD, like)
    stats = norm_stats(config.action_dim, config.proprio_dim)
    return Checkpoint(config, parts.tensors, stats, directory, digest, parts.ternary, rows)


def write_random(
    directory: Path, config: ModelConfig, seed: int, stats: Mapping[str, Any] | None = None
) -> None:
    """Write a checkpoint directory with random float32 weights."""
    directory.mkdir(parents=True, exist_ok=True)
    if config.text.ternary:
        _write_bitvla(directory, config, seed)
        return
    tensors = random_tensors(config, seed, torch.device("cpu"), torch.float32)
    save_checkpoint(directory, config, tensors, stats or norm_stats(), write_tokenizer)


def random_tensors(
    config: ModelConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Tensors:
    """Tensors drawn so that features, prompt and image all move the choice of tokens."""
    out = dict(_drawn(config, expected_shapes(config), seed, torch.empty(0).to(device, dtype)))
    tied = config.text.tied
    head = out[LANGUAGE + ("model.embed_tokens.weight" if tied else "lm_head.weight")]
    head[: config.action_vocab - config.bins] *= 0.1 if tied else 0.0
    head[config.action_vocab :] *= 0.1 if tied else 0.0
    return out


def _drawn(
    config: ModelConfig, shapes: Shapes, seed: int, like: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors by name, one after another from one generator, each when it is asked for."""
    generator = torch.Generator(like.device).manual_seed(seed)
    ternary = config.text.ternary
    for name, shape in shapes.items():
        tensor = like.new_empty(shape)
        flat = len(shape) == 1
        if name.endswith("weight") if flat and ternary else name.endswith(_NORMS):
            tensor.fill_(1.0)
        elif name.endswith("scale_factor"):
            tensor.fill_(0.1)
        elif flat:
            tensor.normal_(0.0, 0.02, generator=generator)
        else:
            sharp = 2.0 if not ternary and (".q_proj." in name or ".k_proj." in name) else 1.0
            tensor.normal_(0.0, sharp * _spread(name, shape), generator=generator)
            if "embed_tokens" in name:
                # A tied embedding is the head too: a loud token would only repeat itself.
                tensor *= inputs_of(shape) ** 0.5 * (_LOUD if config.text.tied else 1.0)
        yield name, tensor


def _spread(name: str, shape: Shape) -> float:
    """Loud image features: frames that differ must give different actions. Values of the action
    head within [-1, 1] almost always, as a trained one's are."""
    gain = 4.0 if name.startswith(("projector.", PROJECTOR)) else 1.0
    gain = 0.2 if name == "action_head.model.fc2.weight" else gain
    return gain * inputs_of(shape) ** -0.5


def draw_bitvla(config: ModelConfig, seed: int, like: torch.Tensor) -> CheckpointParts:
    """A whole model but for its embedding, drawn and packed tensor by tensor."""
    inside = {n: s for n, s in expected_shapes(config).items() if n != EMBEDDING}
    return gather(config, _drawn(config, inside, seed, torch.empty(0)), like)


def _write_bitvla(directory: Path, config: ModelConfig, seed: int) -> None:
    """Write what `vla-ros convert` makes of a release of BitVLA's authors, with drawn weights."""
    from safetensors.torch import save_file

    (tower,) = config.towers
    side = tower.image_size
    stats = norm_stats(config.action_dim, config.proprio_dim)
    write_json(directory / "config.json", bitvla_json(config))
    write_json(directory / "dataset_statistics.json", stats)
    siglip = {
        "image_processor_type": "SiglipImageProcessor",
        "image_mean": list(tower.mean),
        "image_std": list(tower.std),
        "resample": 3,
        "size": {"height": side, "width": side},
    }
    write_json(directory / "preprocessor_config.json", siglip)
    write_tokenizer(directory / "tokenizer.json", style="bitvla")
    files: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in _drawn(config, expected_shapes(config), seed, torch.empty(0)):
        whose = next((head for head in HEADS if name.startswith(head + ".")), "model")
        files.setdefault(whose, {})[name] = tensor
    for whose, tensors in files.items():
        save_file(tensors, str(directory / f"{whose}.safetensors"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """The scaling of a data set's actions, and of the robot's state where the network takes one."""

    action: Normalizer
    state: Normalizer | None


def policy_of(
    checkpoint: Checkpoint,
    options: EngineOptions,
    capture: Capture | None = None,
    make_model: Callable[..., VLAModel] = VLAModel,
) -> LoadedPolicy:
    """The policy of a checkpoint in memory, in the weights' formats of the options.

    ``capture`` is how graphs are captured, where not as CUDA graphs on CUDA (tests).
    ``make_model`` builds the network, of the same arguments as :class:`VLAModel`.
    """
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    options = resolve_decoding(options, checkpoint.config)
    if formats := parse_formats(options.weights):
        checkpoint = quantized(checkpoint, formats)
    with memory_returned():
        model = make_model(checkpoint, device, dtype, options, capture)
    found = _statistics(checkpoint, options)
    space = action_space_of(found.action.dim)
    tokenizer = PromptTokenizer(checkpoint.directory, model.config)
    return LoadedPolicy(
        model.config, model, found, tokenizer, space, checkpoint.sha256, group=TOKENS
    )


def _statistics(checkpoint: Checkpoint, options: EngineOptions) -> Statistics:
    """CheckpointError where they are not those of the network's, or the robot's, numbers."""
    config, where = checkpoint.config, str(checkpoint.directory)
    read = partial(
        read_normalizer, checkpoint.norm_stats, options.unnorm_key or None, minmax=config.minmax,
        source=where,
    )  # fmt: skip
    action = read(slack=1e-8 if config.parallel else 0.0)
    if options.action_dim and action.dim != options.action_dim:
        raise CheckpointError(
            f"the checkpoint's actions have {action.dim} dimensions, wanted {options.action_dim}"
        )
    if config.parallel and action.dim != config.action_dim:
        raise CheckpointError(
            f"{where}: the head gives {config.action_dim} values an action, the statistics have"
            f" {action.dim}"
        )
    state = read(part="proprio") if config.proprio_dim else None
    if state is not None and state.dim != config.proprio_dim:
        raise CheckpointError(
            f"{where}: the model takes {config.proprio_dim} values of robot state, its statistics"
            f" have {state.dim}"
        )
    return Statistics(action, state)


class OpenVLAFamily(Family[ModelConfig]):
    """OpenVLA and its kin. What is in the weights' files is read at once, not one by one."""

    group = TOKENS
    kinds = ("tokens",)
    name_key, names = "model_type", MODEL_TYPES
    presets = PRESETS
    presets_version = VERSION
    takes = frozenset({"unnorm_key"})

    def config(self, source: Path | str, options: LoadOptions) -> ModelConfig:
        if isinstance(source, Path):
            return read_config(source)[0]
        if (found := PRESETS.get(source.removeprefix(PREFIX))) is None:
            known = f"; there are {PREFIX}{f', {PREFIX}'.join(PRESETS)}"
            near = nearest(source.removeprefix(PREFIX), PRESETS, known)
            raise CheckpointError(f"{source!r} is unknown{near}")
        return found

    def expected(self, config: ModelConfig) -> Expected:
        return Expected(expected_shapes(config))

    def write(self, directory: Path, config: ModelConfig, seed: int) -> None:
        write_random(directory, config, seed)

    def load(
        self, source: Path | str, options: LoadOptions, placement: Placement, seed: int = 0
    ) -> LoadedPolicy:
        device, dtype = placement.device, placement.dtype
        chosen = placement.options or EngineOptions(
            device=str(device),
            dtype=str(dtype).removeprefix("torch."),
            weights=str(placement.formats) if placement.formats else "",
            unnorm_key=options.unnorm_key or "",
        )
        return policy_of(
            load_checkpoint(str(source), device, dtype, seed), chosen, placement.capture
        )

    def inspect(self, directory: Path, options: LoadOptions) -> tuple[ModelConfig, int]:
        """The tokenizer is tried too, and every data set's statistics."""
        layout = read_layout(directory)
        for key in layout.norm_stats:
            read_normalizer(
                layout.norm_stats, key, minmax=layout.config.minmax, source=str(directory)
            )
        PromptTokenizer(directory, layout.config)("pick up the red cube")
        for _ in read_tensors(layout.stored, layout.wanted):
            pass
        return layout.config, layout.parameters

    def data_sets(self, directory: Path) -> Mapping[str, bool]:
        stats = norm_stats_of(directory, read_config(directory)[1])
        return {name: "proprio" in of for name, of in stats.items()}

    def choices(self, directory: Path, options: LoadOptions) -> list[LoadOptions]:
        return [options]  # whichever it will be, the same is looked at

    def sha256(self, directory: Path) -> str:
        return sha256_of(directory, weight_files(directory))

    def sizes(self, source: Path | str, options: LoadOptions, place: Placement) -> Sizes:
        config = self.config(source, options)
        origin = read_origin(source) if isinstance(source, Path) else None
        formats = place.formats if origin is None else origin.formats
        each: dict[str, int] = {}
        for name, shape in with_head(expected_shapes(config), config, formats).items():
            if config.text.ternary and (name == EMBEDDING or is_ternary(name, config)):
                # the embedding is read by rows
                each[name] = 0 if name == EMBEDDING else ternary_bytes(shape[0], shape[1])
                continue
            kind = format_of(name, formats, config)
            size = int(torch.Size(shape).numel()) * place.dtype.itemsize
            each[name] = size if kind == STORED else stored_bytes(shape[0], shape[1], kind)
        text, layer = config.text, f"{LANGUAGE}model.layers.0.mlp."
        fused = sum(each.get(f"{layer}{name}_proj.weight", 0) for name in ("gate", "up"))
        head = each[EMBEDDING] if text.tied and not text.ternary and not config.parallel else 0
        if formats.head != STORED:
            head = 0
        return Sizes(sum(each.values()), max(fused, *each.values()), head)

    def refuse_formats(self, source: Path | str, place: Placement, rtc: str = "") -> None:
        if not place.formats:
            return
        if isinstance(source, Path):
            config = read_layout(source).config
        else:
            config = self.config(source, LoadOptions())
        if config.text.ternary:
            raise CheckpointError(TERNARY)
        super().refuse_formats(source, place)


FAMILY = OpenVLAFamily()
