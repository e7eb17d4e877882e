"""An adapter that peft wrote, with LeRobot's own default targets, becomes what peft makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from support.hub_folders import WEIGHTS, adapted, both, lerobots, set_fields, without
from vla_ros.engine.convert import ConvertOptions, convert
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.weights import canonical

peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft accelerate")

#: lerobot 0.6.1 ``_get_default_peft_targets``
_HEADS = "state_proj|action_in_proj|action_out_proj|action_time_mlp_in|action_time_mlp_out"
TARGETS = {
    "smolvla": rf"(model\.vlm_with_expert\.lm_expert\..*\.(q|v)_proj|model\.({_HEADS}))",
    "pi0": rf"(.*\.gemma_expert\..*\.self_attn\.(q|v)_proj|model\.({_HEADS}))",
    "pi05": rf"(.*\.gemma_expert\..*\.self_attn\.(q|v)_proj|model\.({_HEADS}))",
}


class Network(nn.Module):
    """The linear layers of a checkpoint under their own names."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.config = {"model_type": "custom"}
        for name in [
            n for n in tensors if n.endswith(("_proj.weight", "_in.weight", "_out.weight"))
        ]:
            *path, last = name.removesuffix(".weight").split(".")
            at: nn.Module = self
            for part in path:
                if not hasattr(at, part):
                    at.add_module(part, nn.Module())
                at = getattr(at, part)
            weight, bias = tensors[name], tensors.get(name.replace("weight", "bias"))
            if weight.ndim == 2:
                layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
                layer.weight.data = weight.clone()
                if bias is not None:
                    layer.bias.data = bias.clone()
                at.add_module(last, layer)


def own(name: str) -> str:
    """The one name for what versions of transformers name differently."""
    return f"model.{canonical(name)}"


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("kind", TARGETS)
def test_it_becomes_what_peft_makes_of_it(kind: str, rslora: bool, tmp_path: Path) -> None:
    base, source = tmp_path / "base", tmp_path / "source"
    lerobots(kind)(base)
    both(lerobots(kind), without(WEIGHTS), set_fields(use_peft=True))(source)
    torch.manual_seed(3)
    settings = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=TARGETS[kind], use_rslora=rslora, init_lora_weights=False
    )
    model = peft.get_peft_model(Network(load_file(base / WEIGHTS)), settings)
    model.save_pretrained(str(source))
    merged = model.merge_and_unload().state_dict()
    convert(source, tmp_path / "target", ConvertOptions(base=base))
    before, after = load_file(base / WEIGHTS), load_file(tmp_path / "target" / WEIGHTS)
    before = {own(name): tensor for name, tensor in before.items()}
    merged = {own(name): tensor for name, tensor in merged.items()}
    changed = [n for n in merged if not torch.equal(merged[n], before[n])]
    assert len(changed) > 6
    assert any("action_out_proj" in name for name in changed)
    for name, tensor in merged.items():
        assert (after[name] - tensor).abs().max() < 1e-6
    assert all(torch.equal(after[n], before[n]) for n in before if n not in changed)


def test_without_its_base_the_line_asks_for_it(tmp_path: Path) -> None:
    both(lerobots("pi05"), adapted())(tmp_path / "source")
    with pytest.raises(CheckpointError, match=r"LoRA adapter: give --base.*\(lerobot/base\)"):
        convert(tmp_path / "source", tmp_path / "target", ConvertOptions())
