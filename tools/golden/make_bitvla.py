"""A small checkpoint by BitVLA's own classes, and what they say with it (see make.py).

The authors' fork of transformers wants newer packages than OpenVLA's. Their constants module takes
LIBERO where nothing else is said.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from authors import packages, randomize, save, statistics
from PIL import Image
from scenes import INSTRUCTIONS, STATE, pairs, pictures

KEY = "libero_spatial_no_noops"
WORDS = 704
SIDE, PATCH = 56, 14
TEXT = {
    "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    "max_position_embeddings": 512, "tie_word_embeddings": True, "bos_token_id": 0,
    "eos_token_id": 1, "pad_token_id": None,
}  # fmt: skip
TOWER = {
    "hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 4, "num_attention_heads": 4,
    "image_size": SIDE, "patch_size": PATCH, "vit_weight_bits": 1, "vit_act_bits": 8,
}  # fmt: skip


def tokenizer() -> Any:
    """A byte-level BPE tokenizer with BitNet's special tokens, as transformers' fast one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False,
    )  # fmt: skip
    words = [" " + text for text in INSTRUCTIONS] * 3 + [chat_template()] * 3
    raw.train_from_iterator(words, trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token=special[0], eos_token=special[1], pad_token=special[3],
        chat_template=chat_template(),
    )  # fmt: skip


def chat_template() -> str:
    """The authors' own, out of the file that writes it."""
    source = (CLONE / "openvla-oft" / "convert_ckpt.py").read_text()
    line = next(n for n in source.splitlines() if 'tokenizer_config["chat_template"] =' in n)
    room: dict[str, Any] = {"tokenizer_config": {}}
    exec(line, room)
    return str(room["tokenizer_config"]["chat_template"])


def own_lines(path: str, *names: str) -> dict[str, Any]:
    """Functions of a file of theirs that imports TensorFlow or data loaders."""
    from bitvla import constants
    from prismatic.vla.constants import ACTION_PROPRIO_NORMALIZATION_TYPE, NormalizationType

    room: dict[str, Any] = {
        "np": np, "re": re, "Any": Any, "Dict": dict, "NormalizationType": NormalizationType,
        "ACTION_PROPRIO_NORMALIZATION_TYPE": ACTION_PROPRIO_NORMALIZATION_TYPE,
    }  # fmt: skip
    room |= {n: getattr(constants, n) for n in dir(constants) if n.isupper()}
    source = (CLONE / path).read_text()
    for name in names:
        start = source.index(f"def {name}(")
        behind = re.search(r"\n(?=[@\w])", source[start + 4 :])
        end = len(source) if behind is None else start + 4 + behind.start()
        exec(compile(source[start:end], path, "exec"), room)  # the authors' own lines
    return room


def prompt_of(text: str, images: int, tokens: int, words: Any, talk: Any) -> list[int]:
    """Ids as experiments/robot/bitnet_utils.py makes them; that file needs TensorFlow."""
    from bitvla.constants import BITNET_DEFAULT_IMAGE_TOKEN as IMAGE

    said = (
        "<image>\n" * images + f"<proprio_pad>What action should the robot take to {text.lower()}?"
    )
    sources = talk["llava_to_openai"]([
        {"from": "human", "value": said}, {"from": "gpt", "value": ""},
    ])  # fmt: skip
    ask = [{"role": "user", "content": sources[0]["content"]}]
    prompt = words.apply_chat_template(ask, tokenize=False, add_generation_prompt=True)
    prompt = prompt.replace(IMAGE, IMAGE * tokens)
    return list(words(prompt, add_special_tokens=True).input_ids)


def case(out: Path, seed: int) -> None:
    """A release: safetensors, heads in .pt files, statistics beside them."""
    from bitvla.model.bitvla_for_action_prediction import BitVLAForActionPrediction
    from configuration_bit_vla import Bitvla_Config
    from prismatic.models.action_heads import L1RegressionActionHead
    from prismatic.models.projectors import ProprioProjector
    from prismatic.vla.constants import ACTION_DIM, PROPRIO_DIM
    from transformers import SiglipImageProcessor, SiglipVisionConfig
    from transformers.models.llava.configuration_bitnet import BitNetConfig
    from transformers.models.llava.modeling_bitnet import ActQuant, BitLinear, WeightQuant

    out.mkdir(parents=True)
    config = Bitvla_Config(
        text_config=BitNetConfig(**TEXT), vision_config=SiglipVisionConfig(**TOWER),
        vision_feature_select_strategy="full", image_token_index=WORDS - 2, vocab_size=WORDS,
    )  # fmt: skip
    config._attn_implementation = config.text_config._attn_implementation = "eager"
    config.vision_config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = BitVLAForActionPrediction(config).eval()
    randomize(model, seed)
    words = tokenizer()
    for extra in ("<|image_pad|>", "<proprio_pad>"):
        words.add_special_tokens({"additional_special_tokens": [extra]})
    image, proprio = (words.convert_tokens_to_ids(t) for t in ("<|image_pad|>", "<proprio_pad>"))
    stop = words.convert_tokens_to_ids("<|end_of_text|>")
    # action_token_begin_idx: where labels count as actions, which are 1 more than it
    model.set_constant(image, proprio, -100, WORDS - 2, stop)
    stats = statistics(ACTION_DIM, PROPRIO_DIM, KEY)
    model.norm_stats = stats
    hidden = TEXT["hidden_size"]
    head = L1RegressionActionHead(hidden, hidden, ACTION_DIM)
    projector = ProprioProjector(hidden, PROPRIO_DIM)
    randomize(head, seed + 1)
    randomize(projector, seed + 2)
    processor = SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    model.save_pretrained(out, safe_serialization=True)
    processor.save_pretrained(out)
    words.save_pretrained(out)
    (out / "dataset_statistics.json").write_text(json.dumps(stats))
    for name, part in (("action_head", head), ("proprio_projector", projector)):
        wrapped = {f"module.{n}": t for n, t in part.state_dict().items()}  # saved from DDP
        torch.save(wrapped, out / f"{name}--10000_checkpoint.pt")
    talk = own_lines(
        "openvla-oft/bitvla/dataset/bitvla_transform.py", "replace_image_tokens", "llava_to_openai"
    )
    scale = own_lines("openvla-oft/experiments/robot/openvla_utils.py", "normalize_proprio")
    state, patches = np.array(STATE[:PROPRIO_DIM]), (SIDE // PATCH) ** 2
    shown, found = pictures(), {k: [] for k in ("pixels", "vision", "states", "normal", "actions")}
    doubled: dict[str, list[np.ndarray]] = {"states_double": [], "normal_double": []}
    kept: dict[str, torch.Tensor] = {}
    first = model.language_model.model.layers[0].self_attn.q_proj
    first.register_forward_pre_hook(lambda _, given: kept.setdefault("input", given[0].detach()))
    plain = model.get_image_features

    def features(**words: Any) -> torch.Tensor:
        kept["vision"] = plain(**words)
        return kept["vision"]

    model.get_image_features = features
    say = head.predict_action
    head.predict_action = lambda states: kept.setdefault("normal", say(states))  # as it came
    rows = []

    def answer(number: int, text: str, dtype: torch.dtype) -> dict[str, np.ndarray]:
        kept.clear()
        seen = [Image.fromarray(shown[(number + i) % len(shown)]) for i in range(2)]
        pixels = torch.stack(
            [processor.preprocess(p, return_tensors="pt")["pixel_values"][0] for p in seen]
        )
        ids = torch.tensor([prompt_of(text, 2, patches, words, talk)])
        actions, states = model.predict_action(
            input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels[None].to(dtype),
            unnorm_key=KEY, proprio=scale["normalize_proprio"](state, stats[KEY]["proprio"]),
            proprio_projector=projector, action_head=head,
        )  # fmt: skip
        if not rows:  # the discrete choices, as integers
            x = kept["input"][0].float()
            inverse = 127 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
            rows.append((x * inverse).round().clamp(-128, 127).to(torch.int8).numpy())
            assert (
                ActQuant.apply(x) - torch.from_numpy(rows[0]).float() / inverse
            ).abs().max() == 0
            longer, _ = model._prepare_input_for_action_prediction(ids, torch.ones_like(ids))
            labels = model._prepare_labels_for_action_prediction(torch.full_like(ids, -100), longer)
            rows.append(model._process_action_masks(labels[:, 1:])[0].nonzero()[:, 0].numpy())
        return {
            "pixels": pixels.numpy(), "vision": kept["vision"].flatten(0, 1).numpy(),
            "states": states[0].numpy(), "normal": kept["normal"][0].numpy(), "actions": actions,
        }  # fmt: skip

    with torch.inference_mode():
        for number, text in pairs():
            for name, value in answer(number, text, torch.float32).items():
                found[name].append(value)
        for part in (model, head, projector):
            part.double()
        torch.set_default_dtype(torch.float64)
        for number, text in pairs():  # the same code where sums are a thousand times finer
            again = answer(number, text, torch.float64)
            for name in ("states", "normal"):
                doubled[name + "_double"].append(again[name].astype(np.float32))
    found |= doubled
    for name, many in {"pixels": 1, "vision": 2, "states": 2, "states_double": 2}.items():
        found[name] = found[name][:many]
    ternary = {}
    for name in ("vision_tower.vision_model.encoder.layers.1.mlp.fc2",
                 "language_model.model.layers.2.mlp.down_proj"):  # fmt: skip
        module = model.get_submodule(name)
        assert type(module).__name__ == BitLinear.__name__
        weight = WeightQuant.apply(module.weight.detach())
        ternary[f"ternary {name}"] = torch.sign(weight).to(torch.int8).numpy()
        ternary[f"scale {name}"] = weight.abs().max().numpy()
    ids = {f"ids_{i}": prompt_of(text, 2, patches, words, talk)
           for i, text in enumerate(INSTRUCTIONS)}  # fmt: skip
    save(
        out, state=state, image=image, proprio=proprio, int8_rows=rows[0],
        action_rows=rows[1], **ternary, **ids,
        **{k: np.stack(v) for k, v in found.items()},
    )  # fmt: skip


if __name__ == "__main__":
    OUT, CLONE = (Path(word).resolve() for word in sys.argv[1:3])
    oft = CLONE / "openvla-oft"
    packages(oft, "prismatic", "prismatic.models", "prismatic.vla", "prismatic.training", "bitvla",
             "bitvla.model")  # fmt: skip
    sys.path.insert(0, str(oft / "bitvla"))
    case(OUT / "bitvla", 31)
