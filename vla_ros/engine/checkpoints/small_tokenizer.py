"""A byte-level BPE tokenizer with at most 704 ids, for this project's small models.

Its merges are learned from the few sentences below, so the words of a tabletop task are one
token each and any other text still has a spelling. Id 0 is BOS and opens every prompt, id 1 ends a
sequence. BitVLA's has other words for the two, and its own prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vla_ros.engine.tokens import IMAGE, PROMPTS

TEXT_VOCAB = 704
_SPECIAL = {
    "openvla": ("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    "bitvla": ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
}

_COLOURS = "red green blue yellow orange purple white black brown pink grey"
_THINGS = (
    "cube block plate bowl mug cup box drawer cabinet stove basket tray table ball bottle can"
    " spoon knife fork book caddy ketchup soup sauce butter milk cheese wine rack moka pot pan"
)
_VERBS = (
    "pick up the and place it on in into next to put push pull open close turn move stack reach"
    " touch lift grasp slide"
)
_WHERE = (
    "left right top bottom front back middle first second third between of from under above"
    " behind near far corner centre center side"
)


def corpus() -> list[str]:
    """The sentences that the merges are learned from."""
    words = " ".join((_COLOURS, _THINGS, _VERBS, _WHERE)).split()
    tasks = [
        f"pick up the {colour} {thing} and place it on the {other}"
        for colour in _COLOURS.split()
        for thing in ("cube", "block", "bowl")
        for other in ("plate", "table", "tray")
    ]
    prompts = [PROMPTS["openvla"].format(task) for task in tasks]
    return prompts + [" " + word for word in words] * 4 + [PROMPTS["qwen"].format("x")] * 4


def build_tokenizer(style: str = "openvla") -> Any:
    """A ``tokenizers.Tokenizer`` for prompts of a style; the same on every call."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special, sentences = _SPECIAL["openvla"], corpus()
    if style == "bitvla":
        special = _SPECIAL[style]
        sentences += [PROMPTS[style].replace(IMAGE, "").format("x")] * 4
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_VOCAB,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    return tokenizer


def write_tokenizer(path: Path, style: str = "openvla") -> None:
    """Write ``tokenizer.json``."""
    build_tokenizer(style).save(str(path))
