"""Make the folder n16: NVIDIA's own GR00T N1.6, small and random, from a frame to actions.

    git clone -b n1.6.1-release https://github.com/NVIDIA/Isaac-GR00T gr00t
    pip install transformers==4.51.3 diffusers==0.35.1 albumentations==1.4.18 dm-tree torchvision \
        opencv-python-headless torch
    PYTHONPATH=gr00t python tools/golden/groot/make_n16.py [FOLDER]

The pins are NVIDIA's, but for torch (2.13.0), numpy (2.4.6) and OpenCV (5.0.0); see
eagle_authors.py for what stands in on a CPU. In the folder: what NVIDIA's ``save_pretrained``
writes (config.json, processor_config.json, statistics.json, embodiment_id.json), the tokenizer,
``tensors.json`` (names and shapes; the values are drawn by drawn.py) and ``golden.npz``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).resolve().parents[3] / "test" / "golden"
sys.path[:0] = [str(GOLDEN / "groot"), str(GOLDEN / "flow")]

from drawn import weight
from eagle_authors import bare, packed, small_copy, use_torch_attention
from eagle_cases import (
    ACTIONS,
    CAMERAS,
    DIT,
    HEAD,
    IMAGE_TOKEN,
    SELECT,
    STATES,
    TAG,
    TASK,
    TEXT,
    VISION,
)
from seeded import draw, image

EAGLE = "model/modules/nvidia/Eagle-Block2A-2B-v2"
TOKENIZER = ("vocab.json", "merges.txt", "added_tokens.json")


def smaller(config: dict[str, Any]) -> None:
    config["text_config"] |= TEXT
    config["vision_config"] |= {**VISION, "num_patches": 25, "full_attention_indexes": [1]}
    config["image_token_index"] = IMAGE_TOKEN


def load_authors(scratch: Path) -> Any:
    folder = small_copy(scratch, EAGLE, smaller)
    for name in ("", "configs", "configs.model", "configs.data", "model", "model.gr00t_n1d6",
                 "model.modules", "data", "data.state_action"):  # fmt: skip
        bare(f"gr00t.{name}".rstrip("."), scratch / "gr00t" / name.replace(".", "/"))
    sys.modules["gr00t.configs.model"].register_model_config = lambda *_: None
    use_torch_attention()
    from gr00t.model.gr00t_n1d6 import gr00t_n1d6, processing_gr00t_n1d6

    return folder, gr00t_n1d6, processing_gr00t_n1d6


def statistics() -> dict[str, Any]:
    out: dict[str, Any] = {}
    for kind, keys in (("state", STATES), ("action", ACTIONS)):
        out[kind] = {}
        for key, size in keys.items():
            spread = np.abs(draw(f"n16/{kind}/{key}/spread", size)) + 0.3
            middle = 0.5 * draw(f"n16/{kind}/{key}/middle", size)
            values = {
                "mean": middle, "std": spread, "min": middle - 2 * spread,
                "max": middle + 2 * spread, "q01": middle - 1.5 * spread,
                "q99": middle + 1.6 * spread,
            }  # fmt: skip
            out[kind][key] = {n: v.astype(np.float64).tolist() for n, v in values.items()}
    out["state"]["gripper"]["max"][1] = out["state"]["gripper"]["min"][1]  # it never moved
    return {TAG: out}


def processor_of(module: Any) -> Any:
    from gr00t.data.types import ModalityConfig

    modalities = {
        "video": ModalityConfig([0], list(CAMERAS)),
        "state": ModalityConfig([0], list(STATES)),
        "action": ModalityConfig(list(range(5)), list(ACTIONS)),
        "language": ModalityConfig([0], ["annotation.human.action.task_description"]),
    }
    processor = module.Gr00tN1d6Processor(
        {TAG: modalities}, statistics(), shortest_image_edge=80, crop_fraction=0.95,
        max_state_dim=9, max_action_dim=11, max_action_horizon=HEAD["action_horizon"],
        use_albumentations=True, formalize_language=True,
    )  # fmt: skip
    processor.eval()
    return processor


def model_of(module: Any) -> Any:
    from gr00t.configs.model.gr00t_n1d6 import Gr00tN1d6Config

    config = Gr00tN1d6Config(
        **HEAD, max_state_dim=9, max_action_dim=11, max_num_embodiments=5, select_layer=SELECT,
        backbone_embedding_dim=TEXT["hidden_size"], shortest_image_edge=80,
        diffusion_model_cfg={**DIT, "num_layers": 4}, state_dropout_prob=0.2,
    )  # fmt: skip
    from transformers.modeling_utils import no_init_weights

    with no_init_weights():  # as from_pretrained does; all are drawn below
        model = module.Gr00tN1d6(config).float().eval()
    siglip = sys.modules[type(model.backbone.model.vision_model).__module__]
    siglip.flash_attn_varlen_func, siglip._flash_supports_window_size = packed, False
    state = model.state_dict()
    model.load_state_dict({
        name: torch.from_numpy(weight(name, tuple(t.shape)).copy()) for name, t in state.items()
    })  # fmt: skip
    model.tie_weights()
    return model


def run(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        eagle, modelling, processing = load_authors(Path(scratch))
        for name in TOKENIZER:
            shutil.copy(eagle / name, folder)
        model, processor = model_of(modelling), processor_of(processing)
        processor.save_pretrained(folder)
        model.config.save_pretrained(folder)
        golden = answer(model, processor)
        names = {n: list(t.shape) for n, t in model.state_dict().items()}
    (folder / "tensors.json").write_text(json.dumps(names, indent=0) + "\n")
    np.savez_compressed(folder / "golden.npz", **golden)
    print({n: v.shape for n, v in golden.items()})


def answer(model: Any, processor: Any) -> dict[str, np.ndarray]:
    from gr00t.data.embodiment_tags import EmbodimentTag
    from gr00t.data.types import VLAStepData

    tag = EmbodimentTag(TAG)
    states = {k: draw(f"n16/state/{k}", 1, n) for k, n in STATES.items()}
    images = {k: [image(f"n16/{k}", *size)] for k, size in CAMERAS.items()}
    content = VLAStepData(images=images, states=states, actions={}, text=TASK, embodiment=tag)
    inputs = processor.collator([processor([{"content": content}])])["inputs"]
    noise = torch.from_numpy(draw("n16/noise", 1, HEAD["action_horizon"], 11))
    kept: dict[str, list[torch.Tensor]] = {"vision": [], "rows": [], "velocities": []}

    def keep(name: str, pick: Any = lambda out: out) -> Any:
        return lambda module, given, out: kept[name].append(pick(out).detach().clone())

    eagle = model.backbone.model
    eagle.mlp1.register_forward_hook(keep("vision"))
    eagle.language_model.model.register_forward_hook(keep("rows", lambda o: o.last_hidden_state))
    model.action_head.action_decoder.register_forward_hook(keep("velocities"))
    randn = torch.randn
    torch.randn = lambda *_, **__: noise.clone()
    try:
        with torch.inference_mode():
            out = model.get_action(dict(inputs))
    finally:
        torch.randn = randn
    chunk = out["action_pred"]
    units = processor.decode_action(chunk.numpy(), tag, {k: v[None] for k, v in states.items()})
    pixels = inputs["pixel_values"]
    return {
        "ids": inputs["input_ids"][0].numpy(),
        "state": inputs["state"][0, 0].numpy(),
        "pixels": torch.cat(list(pixels)).numpy().astype(np.float32),
        "vision": kept["vision"][0][0].numpy(),
        "rows": kept["rows"][0][0].numpy(),
        "context": out["backbone_features"][0].numpy(),
        "velocities": torch.stack(
            [v[0, -HEAD["action_horizon"] :] for v in kept["velocities"]]
        ).numpy(),
        "chunk": chunk[0].numpy(),
        "actions": np.concatenate([units[k][0] for k in ACTIONS], -1),
    }


if __name__ == "__main__":
    run(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN / "groot" / "n16")
