"""A token policy of any size in training: its weights stay, LoRA's change (peft).

Source: openvla ``vla-scripts/finetune.py`` (which layers, how much, how they begin). The language
model is transformers' own here, since peft changes modules; the adapter it saves has OpenVLA's
names, and :mod:`vla_ros.engine.convert.adapter` merges it, as it does anybody's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from vla_ros.core.errors import UserError
from vla_ros.engine.convert.adapter import merge
from vla_ros.engine.families.openvla import load_checkpoint
from vla_ros.engine.io.checkpoint import STATISTICS, Checkpoint
from vla_ros.engine.io.config import ModelConfig, TextConfig
from vla_ros.engine.io.fields import TEXT
from vla_ros.engine.io.files import copy_beside, read_json, write_json
from vla_ros.engine.io.tokens import PromptTokenizer
from vla_ros.engine.models.towers import Projector, VisionBackbone
from vla_ros_lab.train.batches import TreePrefixLayout
from vla_ros_lab.train.frames import DataSummary, FrameTable
from vla_ros_lab.train.loop import Objective
from vla_ros_lab.train.network import make_objective
from vla_ros_lab.train.options import TrainOptions

ADAPTER = "lora_adapter"  # beside the merged weights, for who wants it alone
_ALPHA = 16  # at most, as OpenVLA's
#: every linear layer but the head, by its last name
_LAYERS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    "qkv", "proj", "fc1", "fc2", "fc3",
)  # fmt: skip


def language_model(text: TextConfig) -> Any:
    """transformers' model of these sizes, without weights."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    kinds = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}
    configure, model = kinds[text.kind]
    sizes = {name: value for name, value in TEXT.write(text).items() if name != "model_type"}
    config = configure(**sizes, head_dim=text.head_dim, attn_implementation="sdpa")
    with torch.device("meta"):
        made = model(config)
    made.model.rotary_emb = type(made.model.rotary_emb)(config)  # no weight: it is calculated
    return made


class OpenVLA(nn.Module):
    """OpenVLA's three parts, under the names of the checkpoint's tensors."""

    def __init__(self, source: Checkpoint) -> None:
        super().__init__()
        config = source.config
        with torch.device("meta"):
            self.vision_backbone = VisionBackbone(config.towers)
            self.projector = Projector(
                config.feature_width, config.text.hidden_size, len(config.towers) == 2
            )
        self.language_model = language_model(config.text)
        tensors = dict(source.tensors)
        if config.text.tied:
            tensors["language_model.lm_head.weight"] = tensors[
                "language_model.model.embed_tokens.weight"
            ]
        self.load_state_dict(tensors, assign=True)


class LoraNetwork(nn.Module):
    """A checkpoint with adapters to train; its ``forward`` is that of a Network."""

    def __init__(self, source: Checkpoint, rank: int, objects: int, seed: int) -> None:
        super().__init__()
        from peft import LoraConfig, get_peft_model

        self.config: ModelConfig = source.config
        generator = torch.random.get_rng_state()
        torch.manual_seed(seed)
        wanted = LoraConfig(
            r=rank,
            lora_alpha=min(rank, _ALPHA),
            lora_dropout=0.0,
            target_modules=list(_LAYERS),
            init_lora_weights="gaussian",
        )
        self.adapted: Any = get_peft_model(OpenVLA(source), wanted)  # type: ignore[arg-type]
        self.patch_head = nn.Linear(self.config.feature_width, objects + 1)
        self.place_head = nn.Linear(self.config.text.hidden_size, 2 * self.config.patches)
        torch.random.set_rng_state(generator)
        for number, tower in enumerate(self.config.towers):
            shape = (1, 3, 1, 1)
            self.register_buffer(f"mean_{number}", torch.tensor(tower.mean).view(shape), False)
            self.register_buffer(f"std_{number}", torch.tensor(tower.std).view(shape), False)

    def forward(
        self, pixels: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor, layout: TreePrefixLayout
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Network.forward; ``pixels`` are normalized as the first tower wants them."""
        model, batch = self.adapted.base_model.model, len(ids)
        features = model.vision_backbone(self._pixels(pixels.flatten(0, 1)))
        features = features.reshape(batch, self.config.patches, -1)
        language = model.language_model
        embedded = language.model.embed_tokens(ids)
        patches = model.projector(features).to(embedded.dtype)
        x = torch.cat((embedded[:, :1], patches, embedded[:, 1:]), 1)
        seen = layout.mask(ids.device)[None, None]
        mask = torch.zeros(seen.shape, dtype=x.dtype, device=ids.device)
        mask = mask.masked_fill(~seen, torch.finfo(x.dtype).min).expand(batch, -1, -1, -1)
        positions = layout.positions(ids.device).expand(batch, -1)
        hidden = language.model(
            inputs_embeds=x, position_ids=positions, attention_mask=mask, use_cache=False
        ).last_hidden_state
        hidden = hidden.gather(1, rows[..., None].expand(-1, -1, hidden.shape[-1]))
        return language.lm_head(hidden), hidden, features

    def _pixels(self, first: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if len(self.config.towers) == 1:
            return (first,)
        (mean, std), (mean_1, std_1) = (
            (self.get_buffer(f"mean_{n}"), self.get_buffer(f"std_{n}")) for n in range(2)
        )
        return first, (first * std + mean - mean_1) / std_1


class LoraKind:
    """A checkpoint with adapters in training. UserError: nothing to adapt, or no peft."""

    chunk = 1

    def __init__(self, options: TrainOptions) -> None:
        if not options.init_from:
            raise UserError("--lora adapts a checkpoint: name it with --init-from")
        try:
            import peft  # noqa: F401
        except ImportError as error:
            raise UserError(f"--lora: {error}: pip install peft") from error
        dtype = torch.bfloat16 if options.dtype == "bfloat16" else torch.float32
        self._source = load_checkpoint(options.init_from, torch.device("cpu"), dtype)
        self.config = config = self._source.config
        if config.parallel or config.vq or config.text.ternary or self._source.quantized:
            raise UserError(
                f"--lora: {options.init_from} does not give its actions token by token with weights"
                " of full size, as OpenVLA does"
            )
        self.image_size, self.images = config.image_size, config.images
        self.delays, self._rank, self._seed = config.max_delay, options.lora, options.seed

    def build(self, frames: FrameTable) -> nn.Module:
        objects = len(frames.info.objects)
        self.network = LoraNetwork(self._source, self._rank, objects, self._seed)
        return self.network

    def objective(
        self, options: TrainOptions, frames: FrameTable, device: torch.device, compiled: bool
    ) -> Objective:
        tokenize = PromptTokenizer(self._source.directory, self.config)
        return make_objective(frames, self.network, options, device, compiled, tokenize)

    def write(self, learned: DataSummary, directory: Path) -> None:
        """The base with the adapter merged into it, under the statistics of the new data."""
        base = self._source.directory
        self.network.adapted.save_pretrained(str(directory / ADAPTER), save_embedding_layers=False)
        merge(base, directory / ADAPTER, directory, self.config)
        copy_beside(base, directory)
        (directory / STATISTICS).unlink(missing_ok=True)  # of the base's data
        stats = learned.norm_stats()
        write_json(
            directory / "config.json", {**read_json(base / "config.json"), "norm_stats": stats}
        )
