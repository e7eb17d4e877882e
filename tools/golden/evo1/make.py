"""Make Evo-1's golden files: LeRobot's own policy, small and random, on a CPU.

    python tools/golden/evo1/make.py [FOLDER]

in an environment with lerobot 0.6.1 and its extra evo1 (made with transformers 5.23.0,
torch 2.13.0, torchvision 0.28.0). For every case of cases.py a folder in FOLDER (here): what
LeRobot saves (config.json with the key ``shapes`` added, processors and their statistics),
``tensors.json`` (names and shapes of its model.safetensors; the values are drawn by cases.py) and
``golden.npz`` (what it makes of one observation). Replaced are InternVL's sizes and its downloads
from the hub.

EVO1_SOURCE names a checkout of MINT-SJTU/Evo-1 (made with 1bf31c4): the authors' own head, with the
same weights, makes a chunk of the whole context, which it does not mask.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:  # that of the package index beside torch's CPU build; no operator is used
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

GOLDEN = Path(__file__).resolve().parents[3] / "test" / "golden"
EVO1 = GOLDEN / "evo1"
sys.path[:0] = [str(EVO1), str(GOLDEN / "flow")]

from cases import CASES, SHAPES, TOKENS, Case, weight
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.evo1 import internvl3_embedder
from lerobot.policies.evo1.configuration_evo1 import Evo1Config
from lerobot.policies.evo1.modeling_evo1 import Evo1Policy
from lerobot.policies.evo1.processor_evo1 import make_evo1_pre_post_processors
from lerobot.policies.rtc.configuration_rtc import RTCConfig
from safetensors import safe_open
from seeded import draw, image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModel, InternVLConfig, PreTrainedTokenizerFast


def write_tokenizer(path: Path) -> None:
    """Every byte is a token, and the places of images."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(("<pad>", "<eos>", "<unk>", "<n>", *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(TOKENS))
    tokenizer.save(str(path))


def internvl(tokenizer: Any) -> Any:
    eyes, words = SHAPES["vision"], SHAPES["text"]
    vision = {
        "hidden_size": eyes["width"], "num_hidden_layers": eyes["depth"],
        "num_attention_heads": eyes["heads"], "intermediate_size": eyes["mlp"],
        "image_size": [eyes["image_size"]] * 2, "patch_size": [eyes["patch"]] * 2,
        "attention_bias": True, "use_qk_norm": False, "norm_type": "layer_norm",
        "layer_norm_eps": 1e-6, "use_mean_pooling": True, "use_mask_token": False,
    }  # fmt: skip
    text = {
        "model_type": "qwen2", "vocab_size": words["vocab_size"],
        "hidden_size": words["hidden_size"], "intermediate_size": words["intermediate_size"],
        "num_hidden_layers": words["layers"], "num_attention_heads": words["heads"],
        "num_key_value_heads": words["kv_heads"], "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    }  # fmt: skip
    side = eyes["image_size"] // eyes["patch"] // SHAPES["shuffle"]
    return InternVLConfig(
        vision_config=vision, text_config=text, image_seq_length=side**2,
        downsample_ratio=1 / SHAPES["shuffle"],
        image_token_id=tokenizer.convert_tokens_to_ids(TOKENS[2]),
    )  # fmt: skip


def stay_offline_and_small() -> None:
    path = str(EVO1 / "tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=path, pad_token="<pad>")
    config = internvl(tokenizer)
    internvl3_embedder.AutoTokenizer = SimpleNamespace(from_pretrained=lambda *_, **__: tokenizer)
    internvl3_embedder.AutoModel = SimpleNamespace(
        from_pretrained=lambda *_, **__: AutoModel.from_config(config, attn_implementation="eager")
    )


def statistics(name: str, case: Case) -> dict[str, dict[str, torch.Tensor]]:
    out = {}
    for key, size in (("observation.state", case.state), ("action", case.action)):
        spread = np.abs(draw(f"{name}/{key}/spread", size)) + 0.3
        middle = 0.5 * draw(f"{name}/{key}/middle", size)
        values = {
            "mean": middle, "std": spread, "min": middle - 2 * spread, "max": middle + 2 * spread,
            "q01": middle - 1.5 * spread, "q99": middle + 1.6 * spread,
            "q10": middle - spread, "q90": middle + 1.1 * spread,
        }  # fmt: skip
        if key == "action":
            values["max"][2] = values["min"][2]  # a value that never moved
        out[key] = {n: torch.from_numpy(v.astype(np.float32)) for n, v in values.items()}
    return out


def policy_config(case: Case) -> Any:
    features = {
        f"observation.images.{camera}": PolicyFeature(FeatureType.VISUAL, (3, 48, 64))
        for camera in case.cameras
    }
    features["observation.state"] = PolicyFeature(FeatureType.STATE, (case.state,))
    state, action = (NormalizationMode(mode) for mode in case.modes)
    return Evo1Config(
        device="cpu",
        input_features=features,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (case.action,))},
        normalization_mapping={
            "VISUAL": NormalizationMode.IDENTITY, "STATE": state, "ACTION": action,
        },
        vlm_model_name="OpenGVLab/InternVL3-1B-hf",
        vlm_dtype="float32",
        use_flash_attn=False,
        **case.config,
    )  # fmt: skip


def observation(name: str, case: Case) -> dict[str, Any]:
    batch: dict[str, Any] = {"task": case.task}
    for camera, size in case.cameras.items():
        if size is not None:
            pixels = torch.from_numpy(image(f"{name}/{camera}", *size)).permute(2, 0, 1)
            batch[f"observation.images.{camera}"] = pixels.float() / 255.0
    batch["observation.state"] = torch.from_numpy(draw(f"{name}/state", case.state))
    return batch


def draw_weights(policy: Any) -> None:
    """All parameters by their names; tables are buffers and stay."""
    with torch.no_grad():
        for name, tensor in policy.named_parameters():
            tensor.copy_(torch.from_numpy(weight(name, tuple(tensor.shape)).copy()))


class Recorded:
    """What goes through the policy's parts."""

    def __init__(self, policy: Any) -> None:
        self.found: dict[str, list[Any]] = {}
        model, head = policy.model.embedder.model, policy.model.action_head
        self._keep(model.vision_tower, "pixels", lambda a, k, out: k["pixel_values"])
        self._keep(model.multi_modal_projector, "features", lambda a, k, out: out)
        self._keep(model.language_model, "hidden", lambda a, k, out: out.last_hidden_state)
        self._keep(model.language_model, "attended", lambda a, k, out: k["attention_mask"])
        layer = model.language_model.layers[0]
        self._keep(layer.self_attn, "cos", lambda a, k, out: k["position_embeddings"][0])
        self._keep(head.state_encoder, "state", lambda a, k, out: a[0])
        self._keep(head.action_encoder, "x", lambda a, k, out: a[0])
        self._keep(head.mlp_head, "v", lambda a, k, out: out)
        inner = head.time_pos_enc.forward

        class Table:
            def __init__(self, table: torch.Tensor) -> None:
                self.table = table

            def __getitem__(table, key: Any) -> torch.Tensor:
                self.found.setdefault("time_index", []).append(torch.tensor(key[1]))
                return table.table[key]

        head.time_pos_enc.forward = lambda length: Table(inner(length))

    def _keep(self, module: Any, name: str, what: Any) -> None:
        def hook(_: Any, args: Any, kwargs: Any, out: Any) -> None:
            self.found.setdefault(name, []).append(what(args, kwargs, out))

        module.register_forward_hook(hook, with_kwargs=True)


def run(folder: Path, name: str, case: Case) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config = policy_config(case)
    policy = Evo1Policy(config).eval()
    draw_weights(policy)
    before, after = make_evo1_pre_post_processors(config, dataset_stats=statistics(name, case))
    save(folder, policy, before, after)
    noise = torch.from_numpy(draw(f"{name}/noise", config.chunk_size * config.max_action_dim))
    noise = noise.clamp(-1, 1)[None]
    drawn = torch.rand
    recorded = Recorded(policy)
    batch = before(observation(name, case))
    torch.rand = lambda *_, **__: (noise + 1) / 2  # type: ignore[assignment]
    chunk = policy.predict_action_chunk(dict(batch))[0]
    found, steps = recorded.found, config.num_inference_timesteps
    attended = found["attended"][0]
    golden = {
        "pixels": found["pixels"][0], "features": found["features"][0],
        "hidden": found["hidden"][0][0], "attended": attended[0].bool(),
        "cos": found["cos"][0].reshape(-1, found["cos"][0].shape[-1]),
        "state": found["state"][0][0], "time_index": torch.stack(found["time_index"][:steps]),
        "x": torch.cat(found["x"][:steps]),
        "v": torch.cat(found["v"][:steps]).view(steps, config.chunk_size, -1),
        "chunk": chunk, "actions": after(chunk.clone()),
    }  # fmt: skip
    policy.config.rtc_config = RTCConfig(execution_horizon=6, max_guidance_weight=6.0)
    policy.init_rtc_processor()
    left = torch.from_numpy(draw(f"{name}/left", config.chunk_size, config.max_action_dim))
    left[:, case.action :] = 0
    extra = {"inference_delay": 2, "prev_chunk_left_over": left[None], "execution_horizon": 6}
    golden["guided_chunk"] = policy.predict_action_chunk(dict(batch), **extra)[0]
    golden["guided_weights"] = policy.rtc_processor.get_prefix_weights(2, 6, config.chunk_size)
    golden["authors_chunk"] = authors(policy, found["hidden"][0], golden["state"], case)
    torch.rand = drawn
    arrays = {n: v.detach().numpy() for n, v in golden.items()}
    np.savez_compressed(folder / "golden.npz", **arrays)


def authors(policy: Any, hidden: torch.Tensor, state: torch.Tensor, case: Case) -> torch.Tensor:
    sys.path.insert(0, f"{os.environ['EVO1_SOURCE']}/Evo_1")
    from model.action_head.flow_matching import FlowmatchingActionHead

    config = policy.config
    names = {
        "embed_dim": config.embed_dim, "hidden_dim": config.hidden_dim,
        "action_dim": config.chunk_size * config.max_action_dim, "horizon": config.chunk_size,
        "per_action_dim": config.max_action_dim, "num_heads": config.num_heads,
        "num_layers": config.num_layers, "num_categories": config.num_categories,
        "num_inference_timesteps": config.num_inference_timesteps,
        "state_dim": config.max_state_dim, "state_hidden_dim": config.state_hidden_dim,
    }  # fmt: skip
    head = FlowmatchingActionHead(config=SimpleNamespace(**names)).eval()
    head.load_state_dict(policy.model.action_head.state_dict(), strict=True)
    mask = (torch.arange(config.max_action_dim) < case.action).float()[None]
    embodiment = torch.tensor([config.default_embodiment_id])
    with torch.no_grad():
        chunk = head.get_action(
            hidden, state=state[None], embodiment_id=embodiment, action_mask=mask
        )
    return chunk.view(config.chunk_size, -1)


def save(folder: Path, policy: Any, before: Any, after: Any) -> None:
    before.save_pretrained(str(folder))
    after.save_pretrained(str(folder))
    with tempfile.TemporaryDirectory() as scratch:
        policy.save_pretrained(scratch)
        raw = json.loads(Path(f"{scratch}/config.json").read_text())
        raw["shapes"] = SHAPES
        (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
        with safe_open(f"{scratch}/model.safetensors", "pt") as file:
            tensors = [[n, file.get_slice(n).get_shape()] for n in sorted(file.keys())]
    (folder / "tensors.json").write_text("[\n" + ",\n".join(map(json.dumps, tensors)) + "\n]\n")


def main() -> None:
    torch.set_num_threads(1)
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else EVO1
    if target == EVO1:
        write_tokenizer(EVO1 / "tokenizer.json")
    stay_offline_and_small()
    for name, case in CASES.items():
        run(target / name, name, case)


if __name__ == "__main__":
    main()
