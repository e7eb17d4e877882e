"""GR00T's prompts: pictures, then the instruction, in the words of the language model's chat."""

from __future__ import annotations

import re

IMAGE = "<|image_pad|>"


def formal(text: str) -> str:
    """Without capitals and punctuation, as N1.6 and N1.7 were trained."""
    return re.sub(r"[^\w\s]", "", text.lower())


def qwen_prompt(text: str, views: int, tokens: int) -> str:
    """One message of a user in Qwen3-VL's chat template, without an answer begun.

    Source: ``Gr00tN1d7Processor._apply_vlm_processing`` and ``Qwen3VLProcessor.__call__``, which
    gives a picture as many places as it has ``tokens``.
    """
    picture = f"<|vision_start|>{IMAGE * tokens}<|vision_end|>"
    return f"<|im_start|>user\n{picture * views}{text}<|im_end|>\n"
