"""Other programs that make a chunk of the same inputs: LeRobot and transformers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from vla_ros.core.errors import UserError
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros_lab.bench.measure import PhaseTimes, Stopwatch

#: LeRobot's interpreter runs it, in a process: its pins exclude this project's
PROGRAM = Path(__file__).with_name("lerobot_program.py")
UNUSED = {"model.dit.embed_tokens.weight"}  # the expert's embedding: nobody reads it


@dataclass(frozen=True, slots=True)
class Inputs:
    """Inputs of one chunk, in model space: pixels [V, ...], ids int64 [n], state [S], noise [H, D],
    none for a single pass."""

    pixels: torch.Tensor
    ids: torch.Tensor
    state: torch.Tensor
    noise: torch.Tensor | None


class RivalRow(Protocol):
    """One program that makes a chunk; ``version``: of another one's code, "" for ours."""

    version: str

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, PhaseTimes]:
        """The chunk [H, D] on the CPU in float32, and the time of its phases: images (vision), the
        rest of the prefix (prefill), all solver steps (decode)."""
        ...


class LerobotRow:
    """LeRobot in a process that is asked for a chunk at a time. Close it. UserError: it cannot be
    started."""

    def __init__(self, python: str, question: Mapping[str, Any], inputs: Inputs) -> None:
        assert inputs.noise is not None, "LeRobot's flow policies start from noise"
        self._folder = tempfile.TemporaryDirectory()
        arrays = Path(self._folder.name) / "inputs.npz"
        names = ("pixels", "ids", "state", "noise")
        np.savez(arrays, **{name: getattr(inputs, name).cpu().numpy() for name in names})
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, text=True, env=env, cwd=self._folder.name,
            )  # fmt: skip
        except OSError as error:
            raise UserError(f"LeRobot's interpreter {python} cannot be started: {error}") from error
        self.version = str(self._ask({**question, "inputs": str(arrays)})["version"])

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, PhaseTimes]:
        """A chunk of the inputs that it was made with."""
        answer = self._ask({})
        return torch.tensor(answer["chunk"]), PhaseTimes(answer["cpu"], answer["wall"])

    def __enter__(self) -> LerobotRow:
        return self

    def __exit__(self, *raised: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        self._folder.cleanup()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()[-1:] or ["it printed nothing"]
        self.__exit__(None, None, None)
        raise UserError(f"LeRobot's process ended: {lines[0]}")


def transformers_pi0(
    config: FlowConfig,
    take: Callable[[str], torch.Tensor],
    names: list[str],
    dtype: torch.dtype = torch.float32,
) -> Any:
    """PI0ForConditionalGeneration of these shapes with the tensors ``names``, by ``take(name)``.

    ValueError: a tensor of its own has no counterpart.
    """
    from transformers import PI0Config, PI0ForConditionalGeneration

    text = config.shapes.text
    asked = PI0Config(
        vlm_config=_paligemma(config),
        dit_config=_gemma(replace(config.shapes.expert, vocab_size=text.vocab_size)),
        chunk_size=config.horizon,
        max_state_dim=config.state_width,
        max_action_dim=config.action_width,
        num_inference_steps=config.steps,
    )
    return _filled(PI0ForConditionalGeneration, asked, take, names, dtype)


def transformers_paligemma(
    config: FlowConfig,
    take: Callable[[str], torch.Tensor],
    names: list[str],
    dtype: torch.dtype = torch.float32,
) -> Any:
    """PaliGemmaForConditionalGeneration of a pi0-FAST, with a head of its own; the rest as
    :func:`transformers_pi0`."""
    from transformers import PaliGemmaConfig, PaliGemmaForConditionalGeneration

    asked = PaliGemmaConfig(**_paligemma(config), tie_word_embeddings=False)
    return _filled(PaliGemmaForConditionalGeneration, asked, take, names, dtype)


def _paligemma(config: FlowConfig) -> dict[str, Any]:
    tower, text = config.shapes.vision, config.shapes.text
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": tower.width,
        "num_hidden_layers": tower.depth,
        "num_attention_heads": tower.heads,
        "intermediate_size": tower.mlp,
        "image_size": tower.image_size,
        "patch_size": tower.patch,
        "vision_use_head": False,
    }
    return {
        "model_type": "paligemma",
        "text_config": _gemma(text),
        "vision_config": vision,
        "projection_dim": text.hidden_size,
        "image_token_id": text.vocab_size,
    }


def _filled(
    kind: Any,
    asked: Any,
    take: Callable[[str], torch.Tensor],
    names: list[str],
    dtype: torch.dtype,
) -> Any:
    with torch.device("meta"):
        model = kind(asked)
    model = model.to(dtype).to_empty(device="cpu").eval()
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    theirs = {name: _their_name(name, hasattr(asked, "vlm_config")) for name in names}
    with torch.no_grad():
        for name in names:
            own[theirs[name]].copy_(take(name))
    left = {name for name, _ in model.named_parameters()} - set(theirs.values()) - UNUSED
    if left:
        raise ValueError(
            f"transformers' {kind.__name__} has tensors without a counterpart: {sorted(left)[:3]}"
        )
    return _with_buffers(model, asked)


def _with_buffers(model: Any, config: Any) -> Any:
    """Buffers are computed and stored nowhere: those of a model of one layer are the same."""
    small = deepcopy(config)
    vlm = getattr(small, "vlm_config", small)
    vlm.text_config.num_hidden_layers = vlm.vision_config.num_hidden_layers = 1
    if vlm is not small:
        small.dit_config.num_hidden_layers = 1
    fresh = type(model)(small)
    for name, value in fresh.named_buffers():
        holder, _, last = name.rpartition(".")
        model.get_submodule(holder).register_buffer(last, value, persistent=False)
    return model


class TransformersRow:
    """transformers' pi0: its ``sample_actions``, with the clock around its parts."""

    def __init__(self, config: FlowConfig, model: Any, device: torch.device) -> None:
        import transformers

        self.version = transformers.__version__
        self._config, self._model, self._device = config, model.to(device), device

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, PhaseTimes]:
        model, config, noise = self._model, self._config, inputs.noise
        assert noise is not None, "pi0 starts from noise"
        watch, dtype = Stopwatch(self._device), model.dtype
        slots = len(inputs.pixels) * config.view_tokens
        image = torch.full((slots,), config.shapes.text.vocab_size)
        ids = torch.cat([image, inputs.ids.cpu()])[None].to(self._device)
        encode, forward = model.model.vlm.get_image_features, type(model).forward

        def step(*args: Any, **kwargs: Any) -> Any:
            return watch.time("decode", lambda: forward(model, *args, **kwargs))

        model.model.vlm.get_image_features = lambda *a: watch.time("vision", lambda: encode(*a))
        model.forward = step

        def sample() -> torch.Tensor:
            found: torch.Tensor = model.sample_actions(
                inputs.state[None].to(self._device, dtype),
                ids,
                inputs.pixels[None].to(self._device, dtype),
                noise[None].to(self._device, dtype),
                attention_mask=torch.ones_like(ids),
                pixel_attention_mask=torch.ones(
                    1, len(inputs.pixels), dtype=torch.bool, device=self._device
                ),
            )
            return found

        try:
            with torch.inference_mode():
                out = watch.time("whole", sample)
        finally:
            del model.forward, model.model.vlm.get_image_features
        watch.rest("prefill", "whole")
        return out[0].float().cpu(), watch.spent


def _gemma(text: TextConfig) -> dict[str, Any]:
    return {
        "model_type": "gemma",
        "vocab_size": text.vocab_size,
        "hidden_size": text.hidden_size,
        "intermediate_size": text.intermediate_size,
        "num_hidden_layers": text.layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_dim,
        "rms_norm_eps": text.rms_eps,
    }


def _their_name(name: str, expert: bool) -> str:
    if not expert:
        return name.replace("paligemma_with_expert.paligemma.", "")
    name = name.replace("paligemma_with_expert.paligemma.model.", "model.vlm.")
    name = name.replace("paligemma_with_expert.gemma_expert.model.", "model.dit.")
    if name.startswith(("state_proj", "action_in_proj", "action_time_mlp")):
        return f"embed_action_time.{name}"
    return name
