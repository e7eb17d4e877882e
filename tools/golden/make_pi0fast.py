"""Two small checkpoints by LeRobot's own pi0-FAST, and what it says with them (see make.py).

    vla-ros lerobot setup --dir env
    env/bin/python tools/golden/make.py pi0fast clones

``pi0fast`` is trained for a minute by LeRobot's own loss on a spot that the state and the picture
show, so that it says "Action: ", FAST tokens and the end marker; ``pi0fast-random`` has random
weights, says anything, and runs to its last token. LeRobot's code runs as it is; replaced are the
sizes that it fixes and its downloads from the hub. FAST's processor class lies on the hub too:
:class:`Fast` is this project's, with the three fields that LeRobot reads of it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors
from lerobot.policies.pi0_fast import modeling_pi0_fast
from lerobot.processor import tokenizer_processor
from scipy.fft import dct
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

GOLDEN = Path(__file__).resolve().parents[2] / "test" / "golden"
sys.path[:0] = [str(GOLDEN), str(GOLDEN / "flow")]
from seeded import draw, image, weight
from spot import DIM, HORIZON, STATE, STEP, TASK, trajectory

VOCAB = 360
SHAPES = {
    "vision": {"width": 24, "depth": 2, "heads": 2, "mlp": 32, "image_size": 28, "patch": 14},
    "text": {
        "vocab_size": VOCAB, "hidden_size": 40, "intermediate_size": 80, "layers": 3, "heads": 4,
        "kv_heads": 1, "head_dim": 10, "tied": False,
    },
}  # fmt: skip
FRAMES = 12


def text_tokenizer(*, ends: bool = False) -> PreTrainedTokenizerFast:
    """As Gemma's: blanks become a token of their own, <bos> opens a prompt; ``ends``: none opens
    and <eos> ends, as LeRobot loads it for what the model is to say."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = ["\n", "▁", *(chr(c) for c in range(33, 127))]
    merges = [("A", "c"), ("Ac", "t"), ("i", "o"), ("io", "n"), ("Act", "ion")]
    words = [*special, *letters, *("".join(m) for m in merges)]
    words += [f"<loc{i:04}>" for i in range(VOCAB - len(words))]
    raw = Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges, unk_token="<unk>"))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Replace("▁", " ")
    raw.post_processor = processors.TemplateProcessing(
        single="$A <eos>" if ends else "<bos> $A", special_tokens=[("<eos>", 1), ("<bos>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


class Fast:
    """The FAST tokenizer: DCT of each value over the chunk, rounded, spelled, byte pairs of it."""

    scale = 10.0

    def __init__(self, chunks: Any) -> None:
        rounded = np.around(dct(chunks, axis=1, norm="ortho") * self.scale).astype(int)
        self.min_token = int(rounded.min())
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=200, min_frequency=2, show_progress=False, max_token_length=10000,
            initial_alphabet=[chr(i) for i in range(rounded.max() - self.min_token + 1)],
        )  # fmt: skip
        raw.train_from_iterator([self._spelled(one) for one in rounded], trainer)
        self.bpe_tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=raw, clean_up_tokenization_spaces=False
        )

    def _spelled(self, rounded: Any) -> str:
        return "".join(chr(max(0, c)) for c in rounded.flatten() - self.min_token)

    def __call__(self, chunks: torch.Tensor) -> list[list[int]]:
        rounded = np.around(dct(chunks.numpy(), axis=1, norm="ortho") * self.scale).astype(int)
        return [self.bpe_tokenizer(self._spelled(one))["input_ids"] for one in rounded]

    def save(self, folder: Path) -> None:
        self.bpe_tokenizer.save_pretrained(str(folder))
        said = {"scale": self.scale, "vocab_size": 200, "min_token": self.min_token}
        said |= {"action_dim": None, "time_horizon": None}
        said |= {"processor_class": "UniversalActionProcessor"}
        (folder / "processor_config.json").write_text(json.dumps(said, indent=2) + "\n")


def stay_offline_and_small(fast: Fast) -> None:
    """LeRobot's sizes and hub names, replaced."""

    def words(*_: Any, **options: Any) -> PreTrainedTokenizerFast:
        return text_tokenizer(ends=options.get("add_eos_token", False))

    for module in (modeling_pi0_fast, tokenizer_processor):
        module.AutoTokenizer = SimpleNamespace(from_pretrained=words)
        module.AutoProcessor = SimpleNamespace(from_pretrained=lambda *_, **__: fast)
    text, vision = SHAPES["text"], SHAPES["vision"]
    paligemma = modeling_pi0_fast.PaliGemmaForConditionalGenerationWithPiGemma

    def small(config: Any) -> Any:
        config.text_config.vocab_size = config.image_token_index = text["vocab_size"]
        eyes = config.vision_config
        eyes.hidden_size, eyes.num_hidden_layers = vision["width"], vision["depth"]
        eyes.num_attention_heads, eyes.intermediate_size = vision["heads"], vision["mlp"]
        eyes.image_size, eyes.patch_size = vision["image_size"], vision["patch"]
        eyes.projection_dim = text["hidden_size"]
        return paligemma(config=config)

    modeling_pi0_fast.PaliGemmaForConditionalGenerationWithPiGemma = small
    modeling_pi0_fast.get_gemma_config = lambda _: modeling_pi0_fast.GemmaConfig(
        text["hidden_size"], text["layers"], text["intermediate_size"], text["heads"],
        text["kv_heads"], text["head_dim"],
    )  # fmt: skip


def policy_config(cameras: tuple[str, ...], modes: tuple[str, str], **fields: Any) -> Any:
    features = {
        f"observation.images.{c}": PolicyFeature(FeatureType.VISUAL, (3, 36, 30)) for c in cameras
    }
    features["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE,))
    state, action = (NormalizationMode(mode) for mode in modes)
    return make_policy_config(
        "pi0_fast",
        device="cpu",
        input_features=features,
        output_features={"action": PolicyFeature(FeatureType.ACTION, (DIM,))},
        normalization_mapping={
            "VISUAL": NormalizationMode.IDENTITY, "STATE": state, "ACTION": action,
        },
        chunk_size=HORIZON, n_action_steps=HORIZON, image_resolution=(28, 28), fast_skip_tokens=8,
        tokenizer_max_length=80, max_action_tokens=40, max_decoding_steps=40, max_state_dim=9,
        max_action_dim=7,
        **fields,
    )  # fmt: skip


def statistics() -> dict[str, dict[str, torch.Tensor]]:
    found = [trajectory(p) for p in np.linspace(0, 40, 400)]
    out = {}
    for key, rows in (
        ("observation.state", np.stack([s for _, s, _ in found])),
        ("action", np.concatenate([c for _, _, c in found])),
    ):
        values = {"mean": rows.mean(0), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0)}
        values |= {f"q{p:02}": np.percentile(rows, p, 0) for p in (1, 10, 90, 99)}
        out[key] = {n: torch.from_numpy(v.astype(np.float32)) for n, v in values.items()}
    return out


def as_frame(pixels: dict[str, Any], state: Any) -> dict[str, Any]:
    batch: dict[str, Any] = {"task": TASK, "observation.state": torch.from_numpy(state)}
    for camera, one in pixels.items():
        values = torch.from_numpy(one.copy()).permute(2, 0, 1).float() / 255.0
        batch[f"observation.images.{camera}"] = values
    return batch


def train(policy: Any, before: Any, steps: int) -> None:
    """By LeRobot's own loss; then weights that compress."""
    random = np.random.RandomState(0)
    examples = []
    for phase in np.linspace(0, 40, 320):
        pixels, state, chunk = trajectory(phase)
        frame = as_frame({"front": pixels, "wrist": pixels[::-1]}, state)
        examples.append(before({**frame, "action": torch.from_numpy(chunk)[None]}))
    names = [n for n, v in examples[0].items() if isinstance(v, torch.Tensor)]
    optimizer = torch.optim.AdamW(policy.parameters(), 3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    decoding = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps)
    policy.train()
    for number in range(steps):
        chosen = random.randint(0, len(examples), 32)
        batch = {n: torch.cat([examples[i][n] for i in chosen]) for n in names}
        loss, _ = policy.forward(batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        decoding.step()
        if number % 100 == 0 or number == steps - 1:
            print(f"step {number}: loss {loss.item():.4f}", flush=True)
    policy.eval()
    with torch.no_grad():
        for tensor in policy.parameters():
            tensor.copy_(tensor.bfloat16().float())


def said(policy: Any, before: Any, after: Any, frames: list[dict[str, Any]]) -> dict[str, Any]:
    """Prompt ids, tokens and actions of every frame, and the logits of the first one's tokens."""
    tokens, actions, ids, logits = [], [], [], []
    inner = policy.model.sample_actions_fast_kv_cache
    head = policy.model.paligemma_with_expert.paligemma.lm_head

    def record(*given: Any, **options: Any) -> torch.Tensor:
        out = inner(*given, **options)
        tokens.append(out[0].numpy().copy())
        return out

    policy.model.sample_actions_fast_kv_cache = record
    handle = head.register_forward_hook(lambda _m, _i, out: logits.append(out[0, -1].numpy()))
    for number, frame in enumerate(frames):
        batch = before(frame)
        mask = batch["observation.language.attention_mask"][0]
        row = np.full(80, -1)
        row[: int(mask.sum())] = batch["observation.language.tokens"][0][mask].numpy()
        ids.append(row)
        chunk = policy.predict_action_chunk(dict(batch))
        actions.append(after(chunk)[0].numpy())
        if number == 0:
            handle.remove()
    policy.model.sample_actions_fast_kv_cache = inner
    return {
        "tokens": np.stack(tokens), "actions": np.stack(actions), "ids": np.stack(ids),
        "logits": np.stack(logits),
    }  # fmt: skip


def odd_strings(policy: Any, good: Any) -> dict[str, Any]:
    """What LeRobot makes of strings that are too short, too long, of other tokens or empty."""
    words = text_tokenizer()
    prefix = words.encode("Action: ", add_special_tokens=False)
    end = words.convert_tokens_to_ids("|")
    body = [int(t) for t in good[len(prefix) : list(good).index(end)]]
    cases = {
        "short": [*prefix, *body[:2], end],
        "long": [*prefix, *body, *body, end],
        "empty": [*prefix, end],
        "no_end": [*prefix, *body],
        "prefix_twice": [*prefix, *body[:3], *prefix, *body[3:], end],
        "a_word": [*prefix, *body[:2], words.convert_tokens_to_ids("x"), *body[2:], end],
        "above": [*prefix, *body[:2], VOCAB - 2, *body[2:], end],
        "half_prefix": [*prefix[:2], *body, end],
        "behind_the_end": [*prefix, *body, end, *body],
    }
    out: dict[str, Any] = {}
    for name, tokens in cases.items():
        out[f"odd_{name}"] = np.array(tokens)
        made = policy.detokenize_actions(torch.tensor([tokens]), HORIZON, DIM)
        out[f"made_{name}"] = made[0].numpy()
    return out


def write(folder: Path, policy: Any, before: Any, after: Any, fast: Fast) -> None:
    folder.mkdir(parents=True)
    before.save_pretrained(str(folder))
    after.save_pretrained(str(folder))
    policy.save_pretrained(str(folder))
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "shapes": SHAPES}, indent=1))
    text_tokenizer().save_pretrained(str(folder))
    fast.save(folder / "fast-action-tokenizer")


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    target = Path(sys.argv[1])
    stats = statistics()
    chunks = np.stack([trajectory(p)[2] for p in np.linspace(0, 40, 400)])
    mean, std = (stats["action"][n].numpy() for n in ("mean", "std"))
    fast = Fast((chunks - mean) / std)
    stay_offline_and_small(fast)

    config = policy_config(("front", "wrist"), ("QUANTILES", "MEAN_STD"))
    policy = get_policy_class("pi0_fast")(config)
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    train(policy, before, int(sys.argv[2]) if len(sys.argv) > 2 else 1500)
    frames, states = [], []
    for phase in 3.0 + STEP * np.arange(FRAMES):
        pixels, state, _ = trajectory(phase)
        frames.append(as_frame({"front": pixels, "wrist": pixels[::-1]}, state))
        states.append((pixels, state))
    found = said(policy, before, after, frames)
    found |= odd_strings(policy, found["tokens"][0])
    found["pixels"] = np.stack([p for p, _ in states])
    found["states"] = np.stack([s for _, s in states])
    found["spoken"] = np.array([len(fast(torch.from_numpy(c)[None])[0]) for c in chunks])
    write(target / "pi0fast", policy, before, after, fast)
    np.savez_compressed(target / "pi0fast" / "expected.npz", **found)

    config = policy_config(
        ("top", "left", "right"), ("MIN_MAX", "QUANTILES"), empty_cameras=1,
        validate_action_token_prefix=False,
    )  # fmt: skip
    policy = get_policy_class("pi0_fast")(config).eval()
    with torch.no_grad():
        for name, tensor in policy.named_parameters():
            drawn = torch.from_numpy(weight(name, tuple(tensor.shape), True).copy())
            tensor.copy_((drawn * 16).round() / 16 if tensor.dim() > 1 else drawn.bfloat16())
    before, after = make_pre_post_processors(config, dataset_stats=stats)
    pictures = {"top": image("top", 36, 30), "right": image("right", 28, 28)}
    frames = [as_frame(pictures, draw(f"state{i}", STATE)) for i in range(3)]
    found = said(policy, before, after, frames)
    found |= pictures | {"states": np.stack([draw(f"state{i}", STATE) for i in range(3)])}
    write(target / "pi0fast-random", policy, before, after, fast)
    np.savez_compressed(target / "pi0fast-random" / "expected.npz", **found)


if __name__ == "__main__":
    main()
