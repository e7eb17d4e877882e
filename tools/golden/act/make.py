"""Make ACT's golden files: LeRobot's own policy, small and random, on a CPU.

    python tools/golden/act/make.py [FOLDER]

in the environment that `vla-ros lerobot setup` makes. For every case of cases.py a folder in FOLDER
(test/golden/act): what LeRobot saves, ``tensors.json`` (names and shapes of its model.safetensors;
the values are drawn by cases.py) and ``golden.npz``: the chunk and the actions of one observation,
the rows of its encoder, and what LeRobot's ensembler says of a stream of chunks.
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

TEST = Path(__file__).resolve().parents[3] / "test"
ACT = TEST / "golden" / "act"
sys.path.insert(0, str(TEST))

from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy, ACTTemporalEnsembler
from lerobot.policies.act.processor_act import make_act_pre_post_processors
from safetensors import safe_open

from golden.act.cases import CASES, FRAMES, Case, weight
from golden.flow.seeded import draw, image

DECAYS = (0.01, -0.05)


def statistics(name: str, case: Case) -> dict[str, dict[str, torch.Tensor]]:
    out = {}
    sizes = {"observation.state": case.state or 3, "action": case.action}
    for key, size in sizes.items():
        spread = np.abs(draw(f"{name}/{key}/spread", size)) + 0.3
        middle = 0.5 * draw(f"{name}/{key}/middle", size)
        values = {
            "mean": middle, "std": spread, "min": middle - 2 * spread, "max": middle + 2 * spread,
            "q01": middle - 1.5 * spread, "q99": middle + 1.6 * spread,
        }  # fmt: skip
        out[key] = {n: torch.from_numpy(v.astype(np.float32)) for n, v in values.items()}
    for key in case.cameras:
        mean, std = 0.4 + 0.05 * draw(f"{name}/{key}/mean", 3), 0.2 + 0.02 * draw(f"{key}/std", 3)
        out[key] = {
            n: torch.from_numpy(v.astype(np.float32)).view(3, 1, 1)
            for n, v in (("mean", mean), ("std", std))
        }
    return out


def policy_config(case: Case) -> Any:
    features = {
        key: PolicyFeature(FeatureType.VISUAL, (3, *size)) for key, size in case.cameras.items()
    }
    if case.state:
        features["observation.state"] = PolicyFeature(FeatureType.STATE, (case.state,))
    kinds = ("VISUAL", "STATE", "ACTION")
    return ACTConfig(
        device="cpu",
        pretrained_backbone_weights=None,
        input_features=features,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (case.action,))},
        normalization_mapping={
            kind: NormalizationMode(mode) for kind, mode in zip(kinds, case.modes, strict=True)
        },
        **case.config,
    )


def observation(name: str, case: Case) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for key, size in case.cameras.items():
        pixels = torch.from_numpy(image(f"{name}/{key}", *size)).permute(2, 0, 1)
        batch[key] = pixels.float() / 255.0
    # LeRobot's network asks for it even where the policy takes none: for its device
    batch["observation.state"] = torch.from_numpy(draw(f"{name}/state", case.state or 3))
    return batch


def ensembled(name: str, horizon: int, width: int) -> dict[str, torch.Tensor]:
    chunks = torch.from_numpy(draw(f"{name}/stream", FRAMES, horizon, width))
    out = {}
    for number, decay in enumerate(DECAYS):
        one = ACTTemporalEnsembler(decay, horizon)
        out[f"ensembled_{number}"] = torch.cat([one.update(chunk[None]) for chunk in chunks])
    return out


def run(folder: Path, name: str, case: Case) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = policy_config(case)
    policy = ACTPolicy(config).eval()
    drawn = {n: weight(n, tuple(t.shape)) for n, t in policy.state_dict().items()}
    policy.load_state_dict({n: torch.from_numpy(v.copy()) for n, v in drawn.items()})
    before, after = make_act_pre_post_processors(config, dataset_stats=statistics(name, case))
    before.save_pretrained(str(folder))
    after.save_pretrained(str(folder))
    with tempfile.TemporaryDirectory() as scratch:
        policy.save_pretrained(scratch)
        shutil.copy(f"{scratch}/config.json", folder)
        with safe_open(f"{scratch}/model.safetensors", "pt") as file:
            tensors = [[n, file.get_slice(n).get_shape()] for n in sorted(file.keys())]
    (folder / "tensors.json").write_text("[\n" + ",\n".join(map(json.dumps, tensors)) + "\n]\n")
    rows: list[torch.Tensor] = []
    policy.model.encoder.register_forward_hook(lambda m, a, out: rows.append(out[:, 0]))
    chunk = policy.predict_action_chunk(before(observation(name, case)))[0]
    golden = {"chunk": chunk, "rows": rows[0], "actions": after(chunk.clone())}
    golden |= ensembled(name, config.chunk_size, case.action)
    arrays = {n: v.detach().numpy() for n, v in golden.items()}
    np.savez_compressed(folder / "golden.npz", **arrays)


def main() -> None:
    torch.set_num_threads(1)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ACT
    for name, case in CASES.items():
        run(target / name, name, case)


if __name__ == "__main__":
    main()
