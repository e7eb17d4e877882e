"""A run of prismatic, as OpenVLA and MiniVLA are trained and MiniVLA is released.

    RUN/config.json                 {"vla": {"base_vlm", "action_tokenizer", ...}}
    RUN/dataset_statistics.json
    RUN/checkpoints/step-*.pt       {"model": {vision_backbone, projector, llm_backbone}}

Source: openvla-mini ``prismatic/models/load.py`` (what is read), ``prismatic/conf/models.py``
(what a base VLM is made of), ``vla/action_tokenizer.py`` (where the action tokens end), and
openvla ``vla-scripts/extern/convert_openvla_weights_to_hf.py`` (names of tensors).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from vla_ros.engine.checkpoints.config import BACKBONES, ModelConfig, TextConfig
from vla_ros.engine.checkpoints.convert.unpickle import SEPARATOR, to_safetensors
from vla_ros.engine.checkpoints.convert.vq import read_vq
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import open_tensors, read_json
from vla_ros.engine.checkpoints.openvla import STATISTICS, save_checkpoint
from vla_ros.engine.checkpoints.parse import LLAMA_EMPTY_TOKEN
from vla_ros.engine.checkpoints.shapes import LANGUAGE, Tensors, check_tensors, unused_names
from vla_ros.engine.errors import CheckpointError

_PROJECTOR = {"projector.0": "fc1", "projector.2": "fc2", "projector.4": "fc3"}
_TOWERS = {
    "dino_featurizer.": "featurizer.",
    "siglip_featurizer.": "fused_featurizer.",
    "featurizer.": "featurizer.",
}
_LLAMA_7B = TextConfig()
_QWEN_05B = TextConfig(
    "qwen2", hidden_size=896, intermediate_size=4864, layers=24, heads=14, kv_heads=2, head_dim=64,
    rope_theta=1e6, tied=True,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BaseVlm:
    """What a base model of prismatic is made of; ``tokens`` is its tokenizer's ``vocab_size``
    and ``all_tokens`` its length, with what was added to it."""

    style: str
    backbone: str
    resize: str
    text: TextConfig
    tokens: int
    all_tokens: int


#: The base models that OpenVLA's and MiniVLA's published runs name.
BASE_VLMS = {
    "prism-dinosiglip-224px+7b": BaseVlm(
        "openvla", "dinosiglip-vit-so-224px", "resize-naive", _LLAMA_7B, 32000, 32001
    ),
    "siglip-224px+7b": BaseVlm(
        "openvla-v0.1", "siglip-vit-so400m", "letterbox", _LLAMA_7B, 32000, 32001
    ),
    "prism-qwen25-dinosiglip-224px+0_5b": BaseVlm(
        "qwen", "dinosiglip-vit-so-224px", "resize-naive", _QWEN_05B, 151643, 151665
    ),
    "prism-qwen25-extra-dinosiglip-224px+0_5b": BaseVlm(
        "qwen", "dinosiglip-vit-so-224px", "resize-naive", _QWEN_05B, 151643, 151921
    ),
}


def convert_prismatic(
    source: Path,
    scratch: Path,
    *,
    tokenizer: Path | None,
    step: str | None = None,
    vq: Path | None = None,
    config: ModelConfig | None = None,
) -> str:
    """Fill ``scratch`` with the run ``source``; returns what was read, in one line.

    ``config`` stands for what the run's base VLM says (models of another size).
    """
    run = read_json(source / "config.json")
    vla = Fields(run, str(source / "config.json")).part("vla")
    path = checkpoint_file(source, step)
    stats = read_json(source / STATISTICS)
    tokenizer = _tokenizer(source, tokenizer)
    weights = to_safetensors(path, scratch / "weights.tmp")
    tensors, config = _named(weights, path, config or describe(vla, source))
    if _coded(vla):
        tensors_of_vq, config = read_vq(_vq(source, vq), scratch / "vq.tmp", config)
        tensors.update(tensors_of_vq)
    check_tensors(path, tensors, config, unused_names(config))
    used = {n: t for n, t in tensors.items() if not n.startswith(unused_names(config))}
    save_checkpoint(scratch, config, used, stats, lambda place: _copy(tokenizer, place))
    for left in ("weights.tmp", "vq.tmp"):
        (scratch / left).unlink(missing_ok=True)
    return f"{path.name} of a prismatic run on {vla.text('base_vlm', 'a base VLM')}"


def checkpoint_file(run: Path, step: str | None) -> Path:
    """The newest ``checkpoints/step-*.pt``, as prismatic's loader takes it, or that of ``step``."""
    files = sorted((run / "checkpoints").glob("step-*.pt"))
    if step is not None:
        files = [f for f in files if int(_number(f.name)) == int(step)]
    files = files or ([] if step else sorted((run / "checkpoints").glob("*.pt")))
    if not files:
        raise CheckpointError(f"no checkpoints/step-{step or '*'}*.pt in {run}")
    return files[-1]


def _number(name: str) -> str:
    digits = name.removeprefix("step-").split("-")[0].removesuffix(".pt")
    return digits if digits.isdigit() else "-1"


def describe(vla: Fields, source: Path) -> ModelConfig:
    """What the run's ``config.json`` says about its model."""
    name = Path(vla.text("base_vlm", "")).name
    base = BASE_VLMS.get(name)
    if base is None:
        raise CheckpointError(
            f"{source / 'config.json'}: vla.base_vlm is {name!r}; known are {', '.join(BASE_VLMS)}"
        )
    images = vla.whole("image_sequence_len", 1)
    if images > 1 and not (images == 2 and vla.flag("use_wrist_image", False)):
        raise CheckpointError(
            f"{source / 'config.json'}: this model looks at {images} images, a history of frames;"
            " one camera, or one with the wrist's beside it, is supported"
        )
    actions = vla.text("action_tokenizer", "action_tokenizer")
    if actions not in ("action_tokenizer", "extra_action_tokenizer") and not _coded(vla):
        raise vla.wrong("action_tokenizer", "action_tokenizer, extra_action_tokenizer or a vq one")
    return ModelConfig(
        text=base.text,
        towers=BACKBONES[base.backbone],
        action_vocab=base.all_tokens if "extra" in actions else base.tokens,
        prompt_style=base.style,
        empty_token_id=None if base.style == "qwen" else LLAMA_EMPTY_TOKEN,
        resize=base.resize,
        images=images,
    )


def _coded(vla: Fields) -> bool:
    return "_vq_" in f"_{vla.text('action_tokenizer', '')}"


def _named(weights: Path, source: Path, config: ModelConfig) -> tuple[Tensors, ModelConfig]:
    """The tensors under OpenVLA's names; the vocabulary is as large as its embedding."""
    out: Tensors = {}
    parts: set[str] = set()
    with open_tensors(weights) as shard:
        for full in shard.keys():  # noqa: SIM118 (a safetensors handle is no dict)
            part, _, name = full.removeprefix(f"model{SEPARATOR}").partition(SEPARATOR)
            new = _rename(part, name)
            if new is None:
                raise CheckpointError(f"{source} has an unknown tensor {full}")
            parts.add(part)
            out[new] = shard.get_tensor(full)
    lost = {"vision_backbone", "projector", "llm_backbone"} - parts
    if lost:
        raise CheckpointError(f"{source} lacks {', '.join(sorted(lost))}: it is no whole VLA")
    out = {name: tensor for name, tensor in out.items() if not name.endswith("inv_freq")}
    rows = len(out.get(LANGUAGE + "model.embed_tokens.weight", ()))
    return out, replace(config, text=replace(config.text, vocab_size=rows))


def _rename(part: str, name: str) -> str | None:
    if part == "vision_backbone":
        base = next((b for b in _TOWERS if name.startswith(b)), None)
        if base is not None:
            new = f"vision_backbone.{_TOWERS[base]}{name.removeprefix(base)}"
            return new.replace(".gamma", ".scale_factor")
    elif part == "projector":
        stem, _, kind = name.rpartition(".")
        if stem in _PROJECTOR:
            return f"projector.{_PROJECTOR[stem]}.{kind}"
    elif part == "llm_backbone":
        return LANGUAGE + name.removeprefix("llm.")
    return None


def _tokenizer(source: Path, given: Path | None) -> Path:
    path = given or source / "tokenizer.json"
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"no tokenizer at {path}: give --tokenizer, the tokenizer.json of the language model"
            " the run began with (MiniVLA: Qwen/Qwen2.5-0.5B)"
        )
    return path


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _vq(source: Path, given: Path | None) -> Path:
    if given is not None:
        return given
    raise CheckpointError(
        f"{source} speaks in codes of a VQ-VAE: give --vq, the directory with its config.json and"
        " checkpoints/model.pt (MiniVLA: Stanford-ILIAD/pretrain_vq)"
    )
