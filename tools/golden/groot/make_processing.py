"""Make processing.npz and the JSON files in robots/: NVIDIA's own pictures, states and actions.

    pip install albumentations==1.4.18 albucore==0.0.17 opencv-python-headless==4.10.0.84 scipy
    PYTHONPATH=gr00t python tools/golden/groot/make_processing.py [FOLDER]

See make_head.py for the rest. Left out of albumentations is scikit-image, which nothing here uses.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parents[3] / "test" / "golden"
sys.path[:0] = [str(GOLDEN / "groot"), str(GOLDEN / "flow")]

_LEFT_OUT = {
    "skimage": (), "skimage.exposure": ("match_histograms",), "torchvision": (),
    "skimage.metrics": ("structural_similarity",), "skimage.transform": ("ProjectiveTransform",),
    "skimage.measure": ("label",), "torchvision.transforms": (),
    "torchvision.transforms.v2": ("Compose",),
}  # fmt: skip
for _name, _members in _LEFT_OUT.items():
    sys.modules[_name] = module_from_spec(ModuleSpec(_name, None))
    sys.modules[_name].__path__ = []
    for _member in _members:
        setattr(sys.modules[_name], _member, type(_member, (), {}))

import authors  # noqa: F401
from cases import PICTURES, ROBOTS, robot_statistics
from gr00t.data.state_action.state_action_processor import StateActionProcessor
from gr00t.data.utils import parse_modality_configs, to_json_serializable
from gr00t.model.gr00t_n1d7.image_augmentations import build_image_transformations_albumentations
from seeded import draw, image

SETTINGS = {
    "use_percentiles": True, "clip_outliers": True, "apply_sincos_state_encoding": True,
    "use_relative_action": True,
}  # fmt: skip


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN / "groot"
    (target / "robots").mkdir(exist_ok=True)
    statistics = {name: robot_statistics(name, draw) for name in ROBOTS}
    known = parse_modality_configs(ROBOTS)
    processor = StateActionProcessor(known, statistics, **SETTINGS)
    processor.eval()
    arrays = {}
    for name, robot in ROBOTS.items():
        sizes = {g: len(s["min"]) for g, s in statistics[name]["state"].items()}
        raw = {g: 1.5 * draw(f"{name}/state/{g}", 1, n) for g, n in sizes.items()}
        shown = processor.apply_state(raw, name)
        keys = robot["state"]["modality_keys"]
        arrays[f"{name}/raw"] = np.concatenate([raw[k][0] for k in keys])
        arrays[f"{name}/shown"] = np.concatenate([shown[k][0] for k in keys])
        horizon = len(robot["action"]["delta_indices"])
        groups = robot["action"]["modality_keys"]
        wide = {g: len(statistics[name]["action"][g]["min"]) for g in groups}
        chunk = {g: 0.8 * draw(f"{name}/chunk/{g}", 1, horizon, wide[g]) for g in groups}
        states = {k: v[None] for k, v in raw.items()}
        made = processor.unapply_action(chunk, name, state=states)
        arrays[f"{name}/chunk"] = np.concatenate([chunk[g][0] for g in groups], -1)
        arrays[f"{name}/actions"] = np.concatenate([made[g][0] for g in groups], -1)
    kwargs = {
        **SETTINGS, "modality_configs": to_json_serializable(known), "use_albumentations": True,
        "image_target_size": [256, 256], "image_crop_size": [230, 230], "crop_fraction": None,
        "shortest_image_edge": None, "formalize_language": True, "use_mean_std": False,
    }  # fmt: skip
    files = {
        "processor_config": {"processor_class": "Gr00tN1d7Processor", "processor_kwargs": kwargs},
        "statistics": to_json_serializable(statistics),
        "embodiment_id": {"arm": 4},
    }
    for name, content in files.items():
        (target / "robots" / f"{name}.json").write_text(json.dumps(content) + "\n")
    for name, case in PICTURES.items():
        _, eval_transform = build_image_transformations_albumentations(
            [case["side"]] * 2, [case["crop"]] * 2, None, None, None, None
        )
        seen = eval_transform(image=image(f"picture/{name}", *case["size"]))["image"]
        arrays[f"picture/{name}"] = seen[:: case["every"], :: case["every"]]
        print(name, seen.shape)
    np.savez_compressed(target / "processing.npz", **arrays)
    print(f"processing.npz: {(target / 'processing.npz').stat().st_size} bytes")


if __name__ == "__main__":
    main()
