"""Ids of prompts by the authors' own tokenizer classes: ``prompt_ids.json``.

    pip install transformers==4.40.1 tokenizers==0.19.1 sentencepiece protobuf "numpy<2"
    make tokenizers; python tools/golden/make.py prompts .

transformers 4.40.1 is what OpenVLA was released with. Llama 2's and Gemma's are made of the
SentencePiece models themselves, by its own conversion, and must agree with its slow class, which is
SentencePiece; Qwen's are by its slow class, which is regular expressions and Python. Token 29871
goes behind OpenVLA's prompts as ``modeling_prismatic.py`` puts it there. Tags such as <s> are left
out of Gemma's: its SentencePiece model has them as pieces, its tokenizer.json takes them apart.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import transformers
from transformers import (
    AddedToken,
    GemmaTokenizer,
    GemmaTokenizerFast,
    LlamaTokenizer,
    LlamaTokenizerFast,
    Qwen2Tokenizer,
    Qwen2TokenizerFast,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "tokenizers"
EMPTY = 29871
TASKS = (
    "pick up the red cube",
    "Pick Up The RED Cube",
    'put the "blue" mug on the plate',
    "don't spill what's in Anna's cup",
    "stelle die Tüte zurück – größer als 3 cm²",
    "把红色方块放到盘子里",
    "pousse l'été vers la forêt",
    "🤖 wave 👋🏽 twice",
    "open\tthe drawer",
    "first line\nsecond line",
    "trailing spaces   ",
    "   leading spaces",
    "trailing newline\n",
    "two  spaces   and    more",
    "move 12.5 mm to x=-0.25, y=1e-3",
    "snake_case and CamelCase and kebab-case",
    "<s> </s> <unk> <bos> <|im_start|> <loc0001> <seg001>",
    "from <loc0001> to <seg001>",
    "a",
    "!?.,;:",
    "In: What action should the robot take to x?\nOut:",
    "naïve café ﬁne Ａ １",
    "e\u0301 against \u00e9",
    "zero\u200bwidth and no\u00a0break",
    "right to left: شارك الصندوق",
    "pick up the object " * 4,
)
QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


def openvla(task: str) -> str:
    """openvla ``vla-scripts/deploy.py``; blanks at the edges are taken away here."""
    return f"In: What action should the robot take to {task.strip().lower()}?\nOut:"


def minivla(task: str) -> str:
    """openvla-mini's prompt builder for Qwen."""
    said = f"What action should the robot take to {task.strip().lower()}?"
    return (
        f"<|im_start|>system\n{QWEN_SYSTEM}<|im_end|>\n<|im_start|>user\n{said}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def pi0(task: str) -> str:
    """lerobot ``processor_pi0.py``."""
    return task if task.endswith("\n") else f"{task}\n"


def pi05(task: str) -> str:
    """lerobot ``processor_pi05.py``, of a state in the bins 0, 127 and 255."""
    cleaned = task.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {cleaned}, State: 0 127 255;\nAction: "


def groot(task: str) -> str:
    """Isaac-GR00T N1.7's chat, of one picture of four places."""
    import re

    cleaned = re.sub(r"[^\w\s]", "", task.lower())
    picture = f"<|vision_start|>{'<|image_pad|>' * 4}<|vision_end|>"
    return f"<|im_start|>user\n{picture}{cleaned}<|im_end|>\n"


def slow_qwen(name: str) -> Any:
    """Qwen's slow class with the vocabulary, merges and added tokens of a tokenizer.json."""
    raw = json.loads((FOLDER / name / "tokenizer.json").read_text(encoding="utf-8"))
    merges = [m if isinstance(m, str) else " ".join(m) for m in raw["model"]["merges"]]
    with tempfile.TemporaryDirectory() as scratch:
        vocab, pairs = Path(scratch) / "vocab.json", Path(scratch) / "merges.txt"
        vocab.write_text(json.dumps(raw["model"]["vocab"]), encoding="utf-8")
        pairs.write_text("#version: 0.2\n" + "\n".join(merges), encoding="utf-8")
        added = {
            t["id"]: AddedToken(t["content"], special=t["special"], normalized=False)
            for t in raw["added_tokens"]
        }
        return Qwen2Tokenizer(str(vocab), str(pairs), added_tokens_decoder=added)


def agreeing(fast: Any, slow: Any, text: str) -> list[int]:
    """The ids of a fast class, where the slow one has the same."""
    ids = list(fast(text).input_ids)
    assert ids == list(slow(text).input_ids), text
    return ids


def main() -> None:
    llama_file, gemma_file = (str(FOLDER / n / "tokenizer.model") for n in ("llama2", "gemma"))
    llama, llama_slow = LlamaTokenizerFast(llama_file, from_slow=True), LlamaTokenizer(llama_file)
    gemma, gemma_slow = GemmaTokenizerFast(gemma_file, from_slow=True), GemmaTokenizer(gemma_file)
    added = [f"<loc{i:04}>" for i in range(1024)] + [f"<seg{i:03}>" for i in range(128)]
    gemma.add_tokens(added)
    qwen25_fast = Qwen2TokenizerFast(tokenizer_file=str(FOLDER / "qwen2_5" / "tokenizer.json"))
    qwen25, qwen3 = slow_qwen("qwen2_5"), slow_qwen("qwen3")
    found: dict[str, dict[str, list[int]]] = {}
    for task in TASKS:
        ids = list(llama(openvla(task)).input_ids)
        if "<" not in task:  # the slow class takes special tokens in a text apart in another way
            ids = agreeing(llama, llama_slow, openvla(task))
            agreeing(gemma, gemma_slow, pi0(task))
        if ids[-1] != EMPTY:
            ids.append(EMPTY)
        for family, made in (
            ("openvla", ids),
            ("minivla", agreeing(qwen25_fast, qwen25, minivla(task))),
            ("pi0", gemma(pi0(task)).input_ids),
            ("pi05", gemma(pi05(task)).input_ids),
            ("groot-n1.7", qwen3(groot(task)).input_ids),
        ):
            if family not in ("pi0", "pi05") or "<s>" not in task:
                found.setdefault(family, {})[task] = list(made)
    content = {"made_by": f"transformers {transformers.__version__}", "ids": found}
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    (ROOT / "test" / "golden" / "prompt_ids.json").write_text(text.replace('"},', '"},\n') + "\n")
    print({family: len(ids) for family, ids in found.items()})


if __name__ == "__main__":
    main()
