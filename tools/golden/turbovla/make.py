"""Make TurboVLA's golden files: the authors' own model, small and random, on a CPU.

    python make.py FOLDER CLONE

in an environment with transformers 4.57.1, timm 1.0.31, torchvision 0.28.0 and torch 2.13.0; CLONE
is H-EmbodVis/TurboVLA at 2d42436. Writes ``tokenizer.json`` and, for every case of cases.py, a
folder: ``model_config.json`` (the authors' own), ``tensors.json`` (names and shapes; the values are
drawn by cases.py) and
``golden.npz`` (what it makes of one observation and each sentence). The two encoders are made from
small configurations, with transformers' own classes, and are loaded by the authors' code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:  # that of the package index beside torch's CPU build; no operator is used
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from transformers import BertConfig, BertModel, BertTokenizerFast, DINOv3ViTConfig, DINOv3ViTModel

TEST = Path(__file__).resolve().parents[3] / "test"
sys.path[:0] = [str(TEST), sys.argv[2]]

from turbovla.evaluation import policy as evaluation
from turbovla.models.configuration import TurboVLAConfig
from turbovla.models.turbovla import build_turbovla

from golden.flow.seeded import draw, image
from golden.turbovla.cases import ACTION, CASES, STATE, TEXT, VISION, VOCAB, statistics, weight


def encoders(folder: Path) -> None:
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(VOCAB) + "\n")
    BertTokenizerFast(vocab_file=str(vocab)).save_pretrained(folder / "bert")
    bert = BertModel(BertConfig(vocab_size=len(VOCAB), **TEXT))
    bert.save_pretrained(folder / "bert")
    DINOv3ViTModel(DINOv3ViTConfig(**VISION)).save_pretrained(folder / "dino")


def one(name: str, target: Path, parts: Path) -> None:
    case, found = CASES[name], statistics()
    config = TurboVLAConfig.from_mapping(case.config)
    config.text.model_name_or_path = str(parts / "bert")
    config.vision.model_name_or_path = str(parts / "dino")
    config.vision.compute_precision = "fp32"
    model = build_turbovla(config).eval()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            tensor.copy_(torch.from_numpy(np.asarray(weight(key, tuple(tensor.shape)))))
    own = found["libero_all4_no_noops"]
    evaluation.PROPRIO_MEAN, evaluation.PROPRIO_STD = (
        np.asarray(own["proprio"][key], np.float32) for key in ("mean", "std")
    )
    evaluation.ACTION_MIN, evaluation.ACTION_MAX = (
        np.asarray(own["action"][key], np.float32) for key in ("min", "max")
    )
    side = config.vision.image_size
    normalize = evaluation._build_manual_rgb_normalizer(
        [0.485, 0.456, 0.406], [0.229, 0.224, 0.225], 1 / 255, side, VISION["patch_size"], name
    )
    pictures = [image(f"{name}/{view}", side, side) for view in range(config.vision.num_views)]
    pixels = normalize(pictures)["pixel_values"]
    state = evaluation.normalize_state(draw(f"{name}/state", STATE))
    out: dict[str, Any] = {"pixels": pixels[..., ::8, ::8].numpy(), "state": state.numpy()}
    for number, task in enumerate(case.tasks):
        with torch.inference_mode():
            tokens = model.text_encoder([task], device=torch.device("cpu"))[0][0]
            memory = model.encode_condition([task], pixels[None])[0]
            chunk = model([task], pixels[None], state[None])[0].numpy()
        assert chunk.shape == (config.action.horizon, ACTION)
        acted = [evaluation.normalized_action_to_env_action(row) for row in chunk]
        out |= {f"words_{number}": tokens.numpy(), f"memory_{number}": memory.numpy(),
                f"chunk_{number}": chunk, f"actions_{number}": np.stack(acted)}  # fmt: skip
    folder = target / name
    folder.mkdir(parents=True, exist_ok=True)
    said = config.to_dict()
    said["text"]["model_name_or_path"] = "bert-base-uncased"
    said["vision"]["model_name_or_path"] = "facebook/dinov3-vitb16-pretrain-lvd1689m"
    (folder / "model_config.json").write_text(json.dumps(said, indent=1) + "\n")
    shapes = {key: list(tensor.shape) for key, tensor in model.state_dict().items()}
    (folder / "tensors.json").write_text(json.dumps(shapes) + "\n")
    np.savez_compressed(folder / "golden.npz", **out)


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        encoders(Path(scratch))
        for name in CASES:
            one(name, target, Path(scratch))
        words = (Path(scratch) / "bert" / "tokenizer.json").read_text()
        (target / "tokenizer.json").write_text(words)


if __name__ == "__main__":
    main()
