"""A stranger's tokenizer.json: what known checkpoints have is read as it is, the rest is refused
before the Rust library, which may end the process, sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from support.hostile import GB, SPECIAL, bounded
from support.real_tokenizers import FOLDER
from vla_ros.engine import CheckpointError
from vla_ros.engine.io.files import SHIPPED_FOLDER
from vla_ros.engine.io.tokenizer_file import open_tokenizer

TEST = Path(__file__).resolve().parents[3]
KNOWN = [
    *sorted(SHIPPED_FOLDER.glob("*/tokenizer.json")),
    *sorted((TEST / "golden").glob("**/tokenizer.json")),
    *sorted(FOLDER.glob("*/tokenizer.json")),
]
GOOD = json.loads((SHIPPED_FOLDER / "tabletop" / "tokenizer.json").read_text())
TOKEN = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}


@pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.parent.name)
def test_a_known_checkpoints_tokenizer_gives_the_ids_that_it_gives_the_library(path):
    plain, ours = Tokenizer.from_file(str(path)), open_tokenizer(path)
    plain.no_padding()
    plain.no_truncation()
    for text in ("Pick up the  red cube!", "<s>In: 12°\n", "äöü 🙂 漢字", ""):
        assert ours.encode(text).ids == plain.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == plain.decode(plain.encode(text).ids)


def template(**changes) -> dict:
    text = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"post_processor": {"type": "TemplateProcessing", "single": text, "pair": [],
                               "special_tokens": {"<s>": TOKEN}} | changes}  # fmt: skip


def replaces(content: str, count: int = 1) -> dict:
    one = {"type": "Replace", "pattern": {"String": "a"}, "content": content}
    return {"normalizer": {"type": "Sequence", "normalizers": [one] * count}}


def split(pattern: str) -> dict:
    return {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": pattern},
                              "behavior": "Isolated", "invert": False}}  # fmt: skip


def added(count: int = 1, **changes) -> dict:
    one = {"id": 5, "content": "x", "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False, "special": True} | changes  # fmt: skip
    return {"added_tokens": [one | {"id": one["id"] + i} for i in range(count)]}


HOSTILE = {
    "a template of 10^5 pieces": template(single=template()["post_processor"]["single"] * 50_000),
    "a token of 10^3 tokens": template(
        special_tokens={"<s>": {"id": "<s>", "ids": [1] * 1000, "tokens": ["<s>"] * 1000}}
    ),
    "precompiled": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA////"}},
    "precompiled in a sequence": {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "AAAA////"}],
        }
    },
    "a letter becomes 10^6": replaces("b" * 1_000_000),
    "letters that multiply": replaces("aaaa", 16),
    "a prepended text": {"normalizer": {"type": "Prepend", "prepend": "▁" * 1_000_000}},
    "a long pattern": split("(a|b)" * 10_000),
    "no pattern": split("(((("),
    "many parts": {
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 999}
    },
    "an unknown part": {"decoder": {"type": "CTC", "pad_token": "x"}},
    "an unknown model": {"model": {"type": "Lookup", "vocab": {}}},
    "no model": {"model": None},
    "many added tokens": added(30_000),
    "a long added token": added(content="x" * 2_000),
    "an id of 4e9": added(id=4_000_000_000),
    "an id of -1": added(id=-1),
    "added tokens that are none": {"added_tokens": {"a": 1}},
    "a vocabulary of 2^32": {"model": GOOD["model"] | {"vocab": {"a": 2**32 - 1}}},
    "a vocabulary of words": {"model": GOOD["model"] | {"vocab": {"a": "b"}}},
}


def test_what_no_known_tokenizer_has_is_refused_in_one_line(tmp_path):
    """In one process for all: none may end it, or take 8 GB."""
    for name, change in HOSTILE.items():
        (tmp_path / name).write_text(json.dumps(GOOD | change))
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from vla_ros.engine import CheckpointError\n"
        "from vla_ros.engine.io.tokenizer_file import open_tokenizer\n"
        "for path in map(Path, sys.argv[1:]):\n"
        "    try: open_tokenizer(path).encode('a' * 1000)\n"
        "    except CheckpointError as e: print(e)\n"
        "    else: print(path, 'was read')"
    )
    told = bounded(program, *(tmp_path / name for name in HOSTILE), memory=8 * GB)
    for line, name in zip(told.splitlines(), HOSTILE, strict=True):
        assert line.startswith(f"{tmp_path / name}") and len(line) < 600
        assert "was read" not in line


def test_a_pattern_that_an_instruction_brings_to_its_limit_is_an_error_and_no_panic(tmp_path):
    """The library's own limit of retries is a panic, which would end a worker, or a server."""
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(GOOD | split("(a+)+$")))
    tokenizer = open_tokenizer(path)
    assert tokenizer.encode("a cube").ids
    with pytest.raises(CheckpointError, match=r"tokenizer.json is no tokenizer of this format"):
        tokenizer.encode("a" * 200 + "b")


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_is_no_tokenizer(tmp_path, kind):
    SPECIAL[kind](tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match=r"is wanted|bytes|empty"):
        open_tokenizer(tmp_path / "tokenizer.json")


def test_a_panic_of_the_library_is_a_refusal_too(tmp_path, monkeypatch):
    """Whatever the library panics at next: the class of it is no Exception."""
    from vla_ros.engine.io import tokenizer_file

    path = tmp_path / "tokenizer.json"
    monkeypatch.setattr(
        tokenizer_file,
        "_PARTS",
        {k: (*v, "Precompiled") for k, v in tokenizer_file._PARTS.items()},
    )
    path.write_text(json.dumps(GOOD | HOSTILE["precompiled"]))
    with pytest.raises(CheckpointError, match="no tokenizer of this format"):
        open_tokenizer(path)
