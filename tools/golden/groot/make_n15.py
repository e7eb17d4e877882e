"""Make the folder n15: NVIDIA's own GR00T N1.5, small and random, from a frame to actions.

    git clone -b n1.5-release https://github.com/NVIDIA/Isaac-GR00T gr00t
    pip install transformers==4.51.3 diffusers==0.35.1 albumentations==1.4.18 dm-tree torchvision \
        einops numpydantic opencv-python-headless torch
    PYTHONPATH=gr00t python tools/golden/groot/make_n15.py [FOLDER]

As make_n16.py says. The transforms are those of NVIDIA's So100DualCam data configuration with other
names of keys: crop, resize, min and max.
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
from eagle_authors import bare, small_copy, stand_in, use_torch_attention
from eagle_cases import (
    DIT,
    HEAD,
    IMAGE_TOKEN,
    N15_ACTIONS,
    N15_CAMERAS,
    N15_STATES,
    N15_TAG,
    SELECT,
    TASK,
    TEXT,
    VISION,
)
from seeded import draw, image

EAGLE = "model/backbone/eagle2_hg_model"
TOKENIZER = ("vocab.json", "merges.txt", "added_tokens.json")
SIDE, VIEW_TOKENS = 56, 16


def smaller(config: dict[str, Any]) -> None:
    config["text_config"] |= TEXT
    config["vision_config"] |= {**VISION, "image_size": SIDE}
    config["image_token_index"] = IMAGE_TOKEN
    config["force_image_size"] = SIDE


def load_authors(scratch: Path) -> Path:
    folder = small_copy(scratch, EAGLE, smaller)
    radio = "class RADIOConfig:\n    pass\n\n\nclass RADIOModel:\n    pass\n"
    (folder / "radio_model.py").write_text(radio)  # another tower, which wants flash attention
    for name in ("preprocessor_config.json", "processor_config.json"):
        path = folder / name
        settings = json.loads(path.read_text())
        settings["tokens_per_tile"] = VIEW_TOKENS
        if "size" in settings:
            settings["size"] = {"height": SIDE, "width": SIDE}
        path.write_text(json.dumps(settings))
    for name in ("", "model", "model.backbone", "model.action_head", "data", "data.transform"):
        bare(f"gr00t.{name}".rstrip("."), scratch / "gr00t" / name.replace(".", "/"))
    sys.modules["gr00t"].__file__ = str(scratch / "gr00t" / "__init__.py")
    stand_in("pytorch3d")
    stand_in("pytorch3d.transforms")
    use_torch_attention()
    from gr00t.model.backbone.eagle_backbone import EagleBackbone

    sys.modules["gr00t.model.backbone"].EagleBackbone = EagleBackbone
    return folder


def metadata() -> dict[str, Any]:
    statistics: dict[str, Any] = {}
    modalities: dict[str, Any] = {
        "video": {
            k: {"resolution": [w, h], "channels": 3, "fps": 20.0}
            for k, (h, w) in N15_CAMERAS.items()
        }
    }
    for kind, keys in (("state", N15_STATES), ("action", N15_ACTIONS)):
        statistics[kind], modalities[kind] = {}, {}
        for key, size in keys.items():
            spread = np.abs(draw(f"n15/{kind}/{key}/spread", size)) + 0.3
            middle = 0.5 * draw(f"n15/{kind}/{key}/middle", size)
            values = {
                "mean": middle, "std": spread, "min": middle - 2 * spread,
                "max": middle + 2 * spread, "q01": middle - 1.5 * spread,
                "q99": middle + 1.6 * spread,
            }  # fmt: skip
            statistics[kind][key] = {n: v.astype(np.float64).tolist() for n, v in values.items()}
            modalities[kind][key] = {
                "absolute": True, "rotation_type": None, "shape": [size], "continuous": True,
            }  # fmt: skip
    gripper = statistics["state"]["gripper"]
    gripper["max"][1] = gripper["min"][1]  # it never moved
    return {"statistics": statistics, "modalities": modalities, "embodiment_tag": N15_TAG}


def transform() -> Any:
    from gr00t.data.schema import DatasetMetadata
    from gr00t.data.transform.base import ComposedModalityTransform
    from gr00t.data.transform.concat import ConcatTransform
    from gr00t.data.transform.state_action import StateActionToTensor, StateActionTransform
    from gr00t.data.transform.video import VideoCrop, VideoResize, VideoToNumpy, VideoToTensor
    from gr00t.model.transforms import GR00TTransform

    video, state, action = (
        [f"{kind}.{key}" for key in keys]
        for kind, keys in (("video", N15_CAMERAS), ("state", N15_STATES), ("action", N15_ACTIONS))
    )
    whole = ComposedModalityTransform(transforms=[
        VideoToTensor(apply_to=video),
        VideoCrop(apply_to=video, scale=0.95),
        VideoResize(apply_to=video, height=SIDE, width=SIDE, interpolation="linear"),
        VideoToNumpy(apply_to=video),
        StateActionToTensor(apply_to=state),
        StateActionTransform(apply_to=state, normalization_modes=dict.fromkeys(state, "min_max")),
        StateActionToTensor(apply_to=action),
        StateActionTransform(apply_to=action, normalization_modes=dict.fromkeys(action, "min_max")),
        ConcatTransform(
            video_concat_order=video, state_concat_order=state, action_concat_order=action
        ),
        GR00TTransform(
            state_horizon=1, action_horizon=HEAD["action_horizon"], max_state_dim=9,
            max_action_dim=11,
        ),
    ])  # fmt: skip
    whole.eval()
    whole.set_metadata(DatasetMetadata.model_validate(metadata()))
    return whole


def config_json() -> dict[str, Any]:
    """As in the folder of GR00T-N1.5-3B, with smaller numbers."""
    width = TEXT["hidden_size"]
    head = {
        **HEAD, "action_dim": 11, "max_action_dim": 11, "max_state_dim": 9, "add_pos_embed": True,
        "backbone_embedding_dim": width, "max_num_embodiments": 32, "model_dtype": "float32",
        "noise_beta_alpha": 1.5, "noise_beta_beta": 1.0, "noise_s": 0.999,
        "num_target_vision_tokens": 5, "num_timestep_buckets": 1000, "tune_diffusion_model": True,
        "tune_projector": True, "use_vlln": True,
        "diffusion_model_cfg": {**DIT, "num_layers": 4, "cross_attention_dim": width},
        "vl_self_attention_cfg": {
            "attention_head_dim": 10, "dropout": 0.2, "final_dropout": True,
            "num_attention_heads": 4, "num_layers": 2, "positional_embeddings": None,
        },
    }  # fmt: skip
    backbone = {
        "eagle_path": "NVEagle/eagle_er-qwen3_1_7B-Siglip2_400M_stage1_5_128gpu_er_v7_1mlp_nops",
        "load_bf16": False, "project_to_dim": None, "reproject_vision": False,
        "select_layer": SELECT, "tune_llm": False, "tune_visual": True,
        "use_flash_attention": True,
    }  # fmt: skip
    return {
        "action_dim": 11, "action_head_cfg": head, "action_horizon": HEAD["action_horizon"],
        "architectures": ["GR00T_N1_5"], "backbone_cfg": backbone, "compute_dtype": "float32",
        "hidden_size": width, "model_dtype": "float32", "model_type": "gr00t_n1_5",
    }  # fmt: skip


def model_of() -> Any:
    from gr00t.model.gr00t_n1 import GR00T_N1_5, GR00T_N1_5_Config
    from transformers.modeling_utils import no_init_weights

    with no_init_weights():
        model = GR00T_N1_5(GR00T_N1_5_Config(**config_json()), "").float().eval()
    state = model.state_dict()
    model.load_state_dict({
        name: torch.from_numpy(weight(name, tuple(t.shape)).copy()) for name, t in state.items()
    })  # fmt: skip
    model.backbone.eagle_model.language_model.tie_weights()
    return model


def run(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "experiment_cfg").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        eagle = load_authors(Path(scratch))
        for name in TOKENIZER:
            shutil.copy(eagle / name, folder)
        model = model_of()
        golden = answer(model, transform())
        names = {n: list(t.shape) for n, t in model.state_dict().items()}
    metadatas = json.dumps({N15_TAG: metadata()}, indent=1) + "\n"
    (folder / "experiment_cfg" / "metadata.json").write_text(metadatas)
    (folder / "config.json").write_text(json.dumps(config_json(), indent=1) + "\n")
    (folder / "tensors.json").write_text(json.dumps(names, indent=0) + "\n")
    np.savez_compressed(folder / "golden.npz", **golden)
    print({n: v.shape for n, v in golden.items()})


def answer(model: Any, whole: Any) -> dict[str, np.ndarray]:
    states = {f"state.{k}": draw(f"n15/state/{k}", 1, 1, n) for k, n in N15_STATES.items()}
    frame: dict[str, Any] = {
        f"video.{k}": image(f"n15/{k}", *size)[None, None] for k, size in N15_CAMERAS.items()
    }
    frame |= {**states, "annotation.human.task_description": np.array([TASK])}
    inputs = whole(frame)
    noise = torch.from_numpy(draw("n15/noise", 1, HEAD["action_horizon"], 11))
    kept: dict[str, list[torch.Tensor]] = {
        "vision": [],
        "rows": [],
        "context": [],
        "velocities": [],
    }

    def keep(name: str, pick: Any = lambda out: out) -> Any:
        return lambda module, given, out: kept[name].append(pick(out).detach().clone())

    eagle, head = model.backbone.eagle_model, model.action_head
    eagle.mlp1.register_forward_hook(keep("vision"))
    eagle.language_model.model.register_forward_hook(keep("rows", lambda o: o.last_hidden_state))
    head.vl_self_attention.register_forward_hook(keep("context"))
    head.action_decoder.register_forward_hook(keep("velocities"))
    randn = torch.randn
    torch.randn = lambda *_, **__: noise.clone()
    try:
        with torch.inference_mode():
            chunk = model.get_action(dict(inputs))["action_pred"].float()
    finally:
        torch.randn = randn
    units = whole.unapply({"action": chunk.clone()})
    return {
        "ids": inputs["eagle_input_ids"][0].numpy(),
        "state": inputs["state"][0, 0].numpy().astype(np.float32),
        "pixels": inputs["eagle_pixel_values"].numpy().astype(np.float32),
        "vision": kept["vision"][0].flatten(0, 1).numpy(),
        "rows": kept["rows"][0][0].numpy(),
        "context": kept["context"][0][0].numpy(),
        "velocities": torch.stack(
            [v[0, -HEAD["action_horizon"] :] for v in kept["velocities"]]
        ).numpy(),
        "chunk": chunk[0].numpy(),
        "actions": np.concatenate([np.asarray(units[f"action.{k}"])[0] for k in N15_ACTIONS], -1),
    }


if __name__ == "__main__":
    run(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN / "groot" / "n15")
