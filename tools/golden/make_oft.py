"""OpenVLA-OFT with the authors' classes and their fork of transformers: OUT CLONE FIXTURES ROBOT.

ROBOT is libero or aloha: their constants module looks for that word in the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from authors import (
    llama_tokenizer,
    packages,
    randomize,
    save,
    small_towers,
    speak_actions,
    statistics,
)  # fmt: skip
from make_openvla import PROMPTS, model_of, processor_of, write
from PIL import Image
from scenes import INSTRUCTIONS, STATE, pairs, pictures

PROMPT = PROMPTS["llama2-7b-pure"]
KEYS = {"libero": "libero_spatial_no_noops", "aloha": "aloha_fold"}


def normalized(state: np.ndarray, stats: dict[str, Any]) -> np.ndarray:
    """What experiments/robot/openvla_utils.py does; that file needs TensorFlow to be imported."""
    source = CLONE / "experiments" / "robot" / "openvla_utils.py"
    code = source.read_text()
    start = code.index("def normalize_proprio(")
    end = code.index("\ndef ", start)
    from prismatic.vla.constants import ACTION_PROPRIO_NORMALIZATION_TYPE, NormalizationType

    room = {
        "np": np, "Any": Any, "Dict": dict, "NormalizationType": NormalizationType,
        "ACTION_PROPRIO_NORMALIZATION_TYPE": ACTION_PROPRIO_NORMALIZATION_TYPE,
    }  # fmt: skip
    exec(compile(code[start:end], str(source), "exec"), room)  # the authors' own lines
    return room["normalize_proprio"](state, stats)


def case(out: Path, fixtures: Path, robot: str, seed: int) -> None:
    """A release: safetensors, heads in .pt files, statistics beside them."""
    import json

    from prismatic.models.action_heads import L1RegressionActionHead
    from prismatic.models.projectors import ProprioProjector
    from prismatic.vla.constants import ACTION_DIM, NUM_ACTIONS_CHUNK, PROPRIO_DIM

    images, key = (3 if robot == "aloha" else 2), KEYS[robot]
    stats = statistics(ACTION_DIM, PROPRIO_DIM, key, gripper=robot == "libero")
    model = model_of("dinosiglip-vit-so-224px", "llama2-7b-pure", stats, {})
    randomize(model, seed)
    speak_actions(model.language_model, 32000, 1000)
    hidden = model.config.text_config.hidden_size
    head = L1RegressionActionHead(hidden, hidden, ACTION_DIM)
    projector = ProprioProjector(hidden, PROPRIO_DIM)
    randomize(head, seed + 1)
    randomize(projector, seed + 2)
    processor = processor_of("dinosiglip-vit-so-224px", "resize-naive", llama_tokenizer(fixtures))
    write(model, processor, out, fused=True)
    (out / "dataset_statistics.json").write_text(json.dumps(stats))
    for name, part in (("action_head", head), ("proprio_projector", projector)):
        wrapped = {f"module.{n}": t for n, t in part.state_dict().items()}  # saved from DDP
        torch.save(wrapped, out / f"{name}--150000_checkpoint.pt")
    processor = type(processor)(
        type(processor.image_processor).from_pretrained(out), processor.tokenizer
    )
    reloaded = type(model).from_pretrained(out).eval()
    reloaded.vision_backbone.set_num_images_in_input(images)
    reloaded.norm_stats = stats
    state = np.array(STATE[:PROPRIO_DIM])
    shown, actions = pictures(), []
    with torch.inference_mode():
        for number, text in pairs():
            seen = [Image.fromarray(shown[(number + i) % len(shown)]) for i in range(images)]
            inputs = [processor(PROMPT.format(text.lower()), picture) for picture in seen]
            pixels = torch.cat([one["pixel_values"] for one in inputs], dim=1)
            answer, _ = reloaded.predict_action(
                input_ids=inputs[0]["input_ids"], attention_mask=inputs[0]["attention_mask"],
                pixel_values=pixels, unnorm_key=key, do_sample=False, action_head=head,
                proprio_projector=projector,
                proprio=normalized(state, stats[key]["proprio"]),
            )  # fmt: skip
            actions.append(answer)
    assert np.stack(actions).shape[1:] == (NUM_ACTIONS_CHUNK, ACTION_DIM)
    ids = {f"ids_{i}": [*processor.tokenizer(PROMPT.format(text.lower())).input_ids, 29871]
           for i, text in enumerate(INSTRUCTIONS)}  # fmt: skip
    save(out, state=state, actions=np.stack(actions), **ids)


if __name__ == "__main__":
    OUT, CLONE, FIXTURES = map(Path, sys.argv[1:4])
    packages(CLONE, "prismatic", "prismatic.extern", "prismatic.extern.hf", "prismatic.models",
             "prismatic.vla", "prismatic.training")  # fmt: skip
    small_towers()
    case(OUT / f"oft-{sys.argv[4]}", FIXTURES, sys.argv[4], 11 if sys.argv[4] == "libero" else 21)
