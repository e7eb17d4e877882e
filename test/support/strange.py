"""Directories that are no checkpoint of ours: what happens, and the line that tells."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from support.engine import tiny_config
from support.folders import CONFIG, WEIGHTS, Change, both, edit, tensors, without
from support.releases import Trap, adapter, oft_release, plain_config, prismatic_run
from vla_ros.engine.families.openvla import write_random

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 6965\n"
INDEX = "model.safetensors.index.json"
NORM = "language_model.model.norm.weight"


def config(**changes: Any) -> Change:
    """Change fields of config.json; None removes one."""

    def change(raw: dict[str, Any]) -> None:
        for key, value in changes.items():
            name, _, inner = key.partition("__")
            if inner:
                raw[name][inner] = value
            elif value is None:
                del raw[name]
            else:
                raw[name] = value

    return edit(CONFIG, change)


def other(raw: object, *names: str) -> Change:
    """Somebody else's directory: this config.json and files of these names."""

    def change(d: Path) -> None:
        for path in d.iterdir():
            path.unlink()
        if raw is not None:
            (d / "config.json").write_text(json.dumps(raw))
        for name in names:
            (d / name).write_bytes(b"x")

    return change


def write(name: str, content: bytes | str) -> Change:
    data = content.encode() if isinstance(content, str) else content
    return lambda d: (d / name).write_bytes(data)


def cut(name: str, part: float) -> Change:
    """Keep that part of a file; above 1 it counts bytes from the end."""

    def change(d: Path) -> None:
        whole = (d / name).read_bytes()
        (d / name).write_bytes(whole[: int(len(whole) * part) if part < 1 else -int(part)])

    return change


def stats(**changes: Any) -> Change:
    """Change the action statistics of the only data set; None removes one."""

    def change(raw: dict[str, Any]) -> None:
        action = raw["norm_stats"]["random"]["action"]
        for key, value in changes.items():
            action.pop(key) if value is None else action.update({key: value})

    return edit(CONFIG, change)


def directory_in_place_of(name: str) -> Change:
    def change(d: Path) -> None:
        (d / name).unlink()
        (d / name).mkdir()

    return change


def link_to_nothing(d: Path) -> None:
    (d / WEIGHTS).unlink()
    (d / WEIGHTS).symlink_to(d / "blobs" / "gone")


def replaced(make: Callable[[Path], object]) -> Change:
    """The directory made anew by somebody's program."""

    def change(d: Path) -> None:
        shutil.rmtree(d)
        make(d)

    return change


def foreign_tokenizer(d: Path) -> None:
    """Its ids go further than the model's vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = "In: What action should the robot take to pick up the cube? Out:"
    vocab = {word: 5000 + i for i, word in enumerate(["<s>", "?", *words.split()])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 5000)]
    )
    tokenizer.save(str(d / "tokenizer.json"))


def tokenizer_without_bos(d: Path) -> None:
    raw = json.loads((d / "tokenizer.json").read_text())
    (d / "tokenizer.json").write_text(json.dumps({**raw, "post_processor": None}))


def two_files(d: Path) -> None:
    shutil.copyfile(d / WEIGHTS, d / "a.safetensors")
    (d / WEIGHTS).rename(d / "b.safetensors")


def only_an_adapter(d: Path) -> None:
    write_random(d / "base", tiny_config(), seed=1)
    adapter(d / "lora", d / "base")
    shutil.rmtree(d / "base")
    for path in (d / "lora").iterdir():
        path.rename(d / path.name)
    (d / "lora").rmdir()


def only_pickled(content: object) -> Change:
    def change(d: Path) -> None:
        (d / WEIGHTS).unlink()
        torch.save(content, d / "pytorch_model.bin")

    return change


def two_heads(d: Path) -> None:
    oft_release(d)
    head = (d / "action_head--150000_checkpoint.pt").read_bytes()
    (d / "action_head--50000_checkpoint.pt").write_bytes(head)


def converted_and_its_config_lost(d: Path) -> None:
    """Heads in safetensors, and config.json as the authors wrote it."""
    oft_release(d)
    raw = json.loads((d / "config.json").read_text())
    (d / "config.json").write_text(json.dumps(plain_config(raw)))
    for path in d.glob("*.pt"):
        head = torch.load(path, weights_only=True)
        room = path.name.split("--")[0]
        named = {f"{room}.{n.removeprefix('module.')}": t for n, t in head.items()}
        save_file(named, d / f"{room}.safetensors")
        path.unlink()


def quantized(found: dict[str, torch.Tensor]) -> None:
    found[NORM] = found[NORM].to(torch.int8)


def of_nan(value: float) -> Callable[[dict[str, torch.Tensor]], object]:
    def edit(found: dict[str, torch.Tensor]) -> None:
        found["projector.fc1.weight"][3, 1] = value

    return edit


SAYS_LEROBOT = "a policy of lerobot, of type '{}': this engine reads OpenVLA"
LEROBOT = {"input_features": {}, "output_features": {}}
QWEN = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}

#: name -> what happens to a good directory, and the pattern of the line that tells
CASES: dict[str, tuple[Change, str]] = {
    # config.json
    "nothing": (other(None), r"no config.json in \S+: there is nothing"),
    "no config": (without("config.json"), "no config.json in .*: there is model.safetensors"),
    "empty config": (write("config.json", ""), "config.json is empty: copy or download it"),
    "cut config": (cut("config.json", 0.5), "config.json is no JSON .*perhaps cut short"),
    "config is a pointer": (write("config.json", LFS), "config.json is a git-lfs pointer"),
    "config is a list": (write("config.json", "[]"), "config.json holds a list"),
    "config is a number": (write("config.json", "7"), "config.json holds a int"),
    "config in another code": (write("config.json", b'{"a": "\xff"}'), "is no text in UTF-8"),
    "config is a directory": (directory_in_place_of("config.json"), "config.json is a directory"),
    "deep config": (write("config.json", "[" * 100000), "config.json has brackets 100,000 deep"),
    "text for a number": (config(text_config__hidden_size="64"), r"\S+hidden_size is '64'"),
    "no heads": (config(text_config__num_attention_heads=0), "config.json: .*attention_heads is 0"),
    "text config is a list": (config(text_config=[1]), r"config.json: text_config is \[1\]"),
    "unknown towers": (
        config(vision_config=None, vision_backbone_id="clip-vit-l"),
        "config.json: vision_backbone_id is 'clip-vit-l': known are dinosiglip",
    ),
    "unknown strategy": (config(image_resize_strategy="squash"), "resize_strategy is 'squash'"),
    "another activation": (config(text_config__hidden_act="gelu"), "hidden_act is 'gelu'"),
    "quantized config": (config(quantization_config={"bits": 4}), "quantized weights"),
    "another model": (config(text_config__model_type="mamba"), "model_type is 'mamba'"),
    # statistics
    "no statistics": (config(norm_stats=None), "has no action statistics: neither"),
    "statistics are a list": (config(norm_stats=[1]), "config.json: wanted an object"),
    "a data set is a list": (config(norm_stats={"x": []}), "config.json: wanted an object"),
    "cut statistics": (write("dataset_statistics.json", "{"), "dataset_statistics.json is no JSON"),
    "a list beside": (write("dataset_statistics.json", "[]"), "statistics.json holds a list"),
    "no q01": (stats(q01=None), r"it: norm_stats\['random'\]\['action'\] lacks q01; there is q99"),
    "words for bounds": (stats(q01=["a"] * 7), r"\['q01'\] is no list of numbers"),
    "NaN for a bound": (stats(q99=[float("nan")] * 7), r"\['q99'\] holds NaN or infinity"),
    "unequal bounds": (stats(q99=[1.0]), "lists of unequal length"),
    "a mask of words": (stats(mask=["no"] * 7), r"\['mask'\] is no list of true and false"),
    # preprocessor
    "cut preprocessor": (write("preprocessor_config.json", "{"), "config.json is no JSON"),
    "another preprocessor": (
        write("preprocessor_config.json", '{"image_processor_type": "CLIPImageProcessor"}'),
        "preprocessor_config.json: image_processor_type is 'CLIPImageProcessor'",
    ),
    # weights
    "no weights": (without(WEIGHTS), "no .safetensors in .*vla-ros convert"),
    "empty weights": (write(WEIGHTS, ""), "model.safetensors is empty"),
    "cut header": (cut(WEIGHTS, 0.001), "model.safetensors is no whole safetensors file"),
    "one byte short": (cut(WEIGHTS, 1), "model.safetensors is no whole safetensors file"),
    "weights are a pointer": (write(WEIGHTS, LFS), "model.safetensors is a git-lfs pointer"),
    "weights are noise": (write(WEIGHTS, bytes(range(256)) * 9), "no whole safetensors file"),
    "weights are a page": (write(WEIGHTS, "<html>404</html>" * 9), "no whole safetensors file"),
    "weights are a directory": (directory_in_place_of(WEIGHTS), "model.safetensors is a directory"),
    "link to nothing": (link_to_nothing, "model.safetensors is a link to nothing"),
    "index without a map": (
        both(without(WEIGHTS), write(INDEX, "{}")), "index.json has no weight_map",
    ),
    "cut index": (both(without(WEIGHTS), write(INDEX, '{"w')), "index.json is no JSON"),
    "lost shard": (
        both(without(WEIGHTS), write(INDEX, '{"weight_map": {"a": "gone.safetensors"}}')),
        "lacks the shards gone.safetensors",
    ),
    "index that leads elsewhere": (
        both(without(WEIGHTS), write(INDEX, '{"weight_map": {"a": "../../etc/passwd"}}')),
        "weight_map names '../../etc/passwd', no file beside it",
    ),
    "two of them": (two_files, "b.safetensors and a.safetensors both hold .*two checkpoints"),
    "NaN": (tensors(of_nan(float("nan"))), "model.safetensors: projector.fc1.weight holds NaN"),
    "infinity": (tensors(of_nan(float("inf"))), "projector.fc1.weight holds NaN or infinity"),
    "whole numbers": (tensors(quantized), rf"{NORM} is I8"),
    "a tensor is missing": (tensors(lambda t: t.pop(NORM)), f"1 missing: {NORM}"),
    "a tensor too many": (tensors(lambda t: t.update(x=torch.ones(1))), "1 extra: x"),
    "another shape": (tensors(lambda t: t.update({NORM: torch.ones(3)})), r"is \[3\], wanted"),
    "heads without their config": (replaced(converted_and_its_config_lost), "extra: action_head"),
    "a config without its heads": (config(parallel_decoding=True), "missing: action_head.model"),
    "codes without their VQ-VAE": (config(vq={"latent": 16}), "missing: vq.codebooks"),
    # tokenizers
    "no tokenizer": (without("tokenizer.json"), "no .*tokenizer.json: copy the base model's"),
    "SentencePiece alone": (
        lambda d: (d / "tokenizer.json").rename(d / "tokenizer.model"),
        "no .*tokenizer.json, only tokenizer.model, which this engine does not read",
    ),
    "words and merges alone": (
        lambda d: (d / "tokenizer.json").rename(d / "vocab.json"), "only vocab.json, which",
    ),
    "cut tokenizer": (cut("tokenizer.json", 0.5), "tokenizer.json is no JSON"),
    "empty tokenizer": (write("tokenizer.json", ""), "tokenizer.json is empty"),
    "tokenizer is a pointer": (write("tokenizer.json", LFS), "tokenizer.json is a git-lfs pointer"),
    "another's tokenizer": (foreign_tokenizer, "tokenizer.json gives .* do not belong together"),
    "tokenizer without <s>": (tokenizer_without_bos, "tokenizer.json begins a prompt with"),
    # what others release
    "OpenVLA-OFT": (replaced(oft_release), "OpenVLA-OFT release.*run `vla-ros convert"),
    "OpenVLA-OFT with two heads": (replaced(two_heads), "OpenVLA-OFT release.*`vla-ros convert"),
    "a run of prismatic": (replaced(prismatic_run), "run of prismatic.*`vla-ros convert .*--tok"),
    "pickled weights": (only_pickled({"x": torch.ones(1)}), "pytorch_model.bin, a pickle.*convert"),
    "a pickle with code": (only_pickled(Trap()), "pytorch_model.bin, a pickle"),
    "an adapter": (both(other(None), only_an_adapter), "LoRA adapter.*--base BASE"),
    "an adapter and its base's config": (
        both(without(WEIGHTS), write("adapter_config.json", "{}")), "LoRA adapter.*--base BASE",
    ),
    "weights for llama.cpp": (other(None, "q4.gguf"), "holds q4.gguf, weights for llama.cpp"),
    "a pipeline of diffusers": (other(None, "model_index.json"), "a pipeline of diffusers"),
    **{
        f"lerobot {kind}": (
            other({"type": kind, **LEROBOT}, WEIGHTS), re.escape(SAYS_LEROBOT.format(kind))
        )
        for kind in ("groot", "tdmpc", "diffusion")
    },
    **{  # read by the engine, and not whole here
        f"lerobot {kind}": (
            other({"type": kind, **LEROBOT}, WEIGHTS), "input_features has no camera"
        )
        for kind in ("pi0", "pi05", "smolvla", "act")
    },
    "a language model": (other(QWEN, WEIGHTS), r"a language model \(Qwen2ForCausalLM\) without"),
    "a vision-language model": (
        other({"model_type": "paligemma"}, WEIGHTS), "model_type 'paligemma': this engine reads",
    ),
    "transformers' pi0": (other({"model_type": "pi0"}, WEIGHTS), "model_type 'pi0'"),
    "an empty object": (other({}, WEIGHTS), "config.json: vision_backbone_id is ''"),
}  # fmt: skip
