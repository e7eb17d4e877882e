"""Prompts with the tokenizers of the published checkpoints, token for token what the authors' own
classes make of them (tools/golden/make_prompts.py). `make tokenizers` brings the files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.engine import tiny_config
from support.real_tokenizers import FOLDER, pieces, why_not
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.groot import formalize
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.processors import TextTokenizer
from vla_ros.engine.io.tokens import ActionTokens, PromptTokenizer
from vla_ros.engine.models.preparation import prompt_text
from vla_ros.engine.models.qwen3_vl import qwen_prompt

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "prompt_ids.json"
IDS: dict[str, dict[str, list[int]]] = json.loads(GOLDEN.read_text())["ids"]
NAMES = {
    "openvla": "llama2",
    "minivla": "qwen2_5",
    "pi0": "paligemma",
    "pi05": "paligemma",
    "groot-n1.7": "qwen3",
}
CASES = [(family, task) for family, tasks in IDS.items() for task in tasks]


def of(family: str) -> Path:
    if reason := why_not(NAMES[family]):
        pytest.skip(reason)
    return FOLDER / NAMES[family]


def token_config(family: str) -> ModelConfig:
    """The published vocabularies: 32000 padded to 32064; 151665 of Qwen2.5, 256 actions more."""
    qwen = family == "minivla"
    config = tiny_config("qwen2_tied" if qwen else "llama_gqa")
    vocab, actions = (151936, 151921) if qwen else (32064, 32000)
    return replace(
        config,
        text=replace(config.text, vocab_size=vocab),
        action_vocab=actions,
        prompt_style="qwen" if qwen else "openvla",
        empty_token_id=None if qwen else 29871,
    )


_MADE: dict[str, Any] = {}


def ids_of(family: str, task: str) -> list[int]:
    folder = of(family)
    if family in ("openvla", "minivla"):
        if family not in _MADE:
            _MADE[family] = PromptTokenizer(folder, token_config(family))
        return list(_MADE[family](task))
    if folder.name not in _MADE:
        vocab = 151936 if family.startswith("groot") else 257152
        _MADE[folder.name] = TextTokenizer(folder, None, "", vocab)
    if family == "groot-n1.7":
        text = qwen_prompt(formalize(task), 1, 4)
    else:
        text = prompt_text(family, task, np.array([0, 127, 255]))
    return list(_MADE[folder.name](text))


@pytest.mark.parametrize(("family", "task"), CASES)
def test_a_prompt_is_the_authors_token_for_token(family: str, task: str) -> None:
    assert ids_of(family, task) == IDS[family][task]


def test_token_29871_ends_every_prompt_of_openvla_once() -> None:
    """Llama 2's "▁"; Mistral's vocabulary, which some packages call Llama 2's, has it elsewhere."""
    folder = of("openvla")
    known = [piece for piece, _, _ in pieces(folder / "tokenizer.model")]
    assert known.index("▁") == 29871
    assert known.index("▁In") == 512
    for task in IDS["openvla"]:
        ids = ids_of("openvla", task)
        assert ids[-1] == 29871 != ids[-2]
        assert ids[:2] == [1, 512]


def test_minivlas_actions_lie_behind_qwens_real_vocabulary() -> None:
    from tokenizers import Tokenizer

    length = Tokenizer.from_file(str(of("minivla") / "tokenizer.json")).get_vocab_size()
    assert length == 151665
    actions = ActionTokens(token_config("minivla").action_vocab)
    assert (actions.first, actions.vocab) == (length, length + 256)
    assert max(max(ids) for ids in IDS["minivla"].values()) < length


def test_paligemmas_added_tokens() -> None:
    """1024 places, 128 segments and the image behind Gemma's 256,000; each is one token."""
    tokenizer = TextTokenizer(of("pi0"), None, "", 257153)
    for name, number in (("<loc0000>", 256000), ("<loc1023>", 257023), ("<seg000>", 257024),
                         ("<seg127>", 257151), ("<image>", 257152)):  # fmt: skip
        assert tokenizer.id_of(name) == number
        assert tokenizer(f"to {name}.")[-2] == number
    with pytest.raises(CheckpointError, match="has no token <image> below 257152"):
        TextTokenizer(of("pi0"), None, "", 257152).id_of("<image>")


def test_blanks_at_the_edges_are_kept_where_the_authors_keep_them() -> None:
    for family in ("pi0", "groot-n1.7"):
        assert ids_of(family, "trailing spaces   ") != ids_of(family, "trailing spaces")
    for family in ("openvla", "minivla"):  # which are taken away there, and that is documented
        assert ids_of(family, "trailing spaces   ") == ids_of(family, "trailing spaces")


def test_another_models_tokenizer_is_refused(tmp_path: Path) -> None:
    """Gemma's ids lie beyond Llama's vocabulary."""
    with pytest.raises(CheckpointError, match="they do not belong together"):
        PromptTokenizer(of("pi0"), token_config("openvla"))("pick up the RED cube, 把红色方块")
