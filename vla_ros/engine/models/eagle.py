"""Eagle: the vision and language half of GR00T N1.5 (Eagle 2.5) and N1.6 (Eagle 3).

Sources: NVIDIA/Isaac-GR00T n1.5 ``eagle2_hg_model/modeling_eagle2_5_vl.py``, ``transforms.py``;
n1.6 ``Eagle-Block2A-2B-v2/modeling_eagle3_vl.py``, ``modeling_siglip2.py``, ``eagle_backbone.py``,
``processing_gr00t_n1d6.py``. A SigLIP tower, the connector ``mlp1`` and the first layers of
Qwen3-1.7B with its last norm. N1.5 sees squares of 224 pixels, a token a patch. N1.6 sees larger
ones, for which the table of positions is stretched (once, at load; the authors' code does it for
every image), and joins 2 x 2 patches.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.core.files import TOKENIZER, read_bytes
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import SIGLIP_SO400M, TextConfig, TowerConfig
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import EAGLE_VISION, QWEN3_TEXT
from vla_ros.engine.io.files import read_json, tokenizer_folders
from vla_ros.engine.io.linear import Linear, behind_norm
from vla_ros.engine.io.quantize import VISION, Map, Take, as_it_is, mapped
from vla_ros.engine.io.tensors import Plain, Table, shapes
from vla_ros.engine.io.tokenizer_file import FileTokenizer, open_tokenizer, refusing
from vla_ros.engine.io.weights import Expected, Shape, Weights
from vla_ros.engine.models.golden_ints import same_integers
from vla_ros.engine.models.qwen3_vl import (
    Qwen3,
    qwen3_table,
)
from vla_ros.engine.models.siglip import SigLip, pixel_shuffle, read_siglip, tower_table

IMAGE_TOKEN = 151669  # <IMG_CONTEXT>
QWEN3_1B7 = TextConfig("qwen3", 151680, 2048, 6144, 28, 16, 8, 128, 1e6, 1e-6, tied=True)
_SIDE = 28  # of N1.6's images: a multiple, two patches of 14
_EPS = 1e-5  # torch's LayerNorm, in front of N1.6's connector


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """``base`` opens the names of its tensors; ``text.layers`` counts the layers that are used.

    ``vision.image_size`` is the side of an image, ``table`` that of the stored table of positions
    in patches. ``shuffle`` x ``shuffle`` patches become one token, through a norm and two linear
    maps (N1.6), or with 1 each through one (N1.5).
    """

    base: str
    vision: TowerConfig
    text: TextConfig
    table: int = 16
    shuffle: int = 1
    image_token: int = IMAGE_TOKEN

    @property
    def view_tokens(self) -> int:
        """Tokens of one camera."""
        return self.vision.patches // self.shuffle**2

    @property
    def tower(self) -> str:
        """The prefix of the names of its tower's tensors."""
        return f"{self.base}vision_model.vision_model."

    @property
    def language(self) -> str:
        """The prefix of the names of its language model's tensors."""
        return f"{self.base}language_model."

    def build(self, weights: Weights, like: torch.Tensor, longest: int) -> Eagle:
        """The model, for prompts of at most ``longest`` rows."""
        return Eagle(self, weights, like, longest)

    def expected(self) -> Expected:
        """Its tensors; the pooling head and the head of words, which nothing uses, may be missing,
        and an embedding that is tied may be there under its other name."""
        vision, width, hidden = self.vision, self.vision.width, self.text.hidden_size
        wide, joins = width * self.shuffle**2, self.shuffle > 1
        tower = dict(tower_table(SigLip, vision, vision.patches))
        tower["embeddings.position_embedding.weight"] = Plain((self.table**2, width))
        if joins:
            patch = Plain((width, 3 * vision.patch**2))
            tower["embeddings.patch_embedding.weight"] = patch
        connector: Table = {"0": wide, "1": (wide, hidden), "3": (hidden, hidden)}
        must = shapes(
            {
                self.tower: tower,
                f"{self.base}mlp1": connector if joins else {"0": (width, hidden)},
                f"{self.language}model": qwen3_table(self.text),
            }
        )
        embedding = f"{self.language}model.embed_tokens.weight"
        words = f"{self.language}lm_head.weight"
        pool: Table = {
            "probe": Plain((1, 1, width)),
            "attention.in_proj_weight": Plain((3 * width, width)),
            "attention.in_proj_bias": Plain((3 * width,)),
            "attention.out_proj": (width, width),
            "layernorm": width,
            "mlp.fc1": (width, vision.mlp),
            "mlp.fc2": (vision.mlp, width),
        }
        spare = {words: must[embedding], **shapes(pool, f"{self.tower}head.")}
        return Expected(must, spare, {embedding: words})

    def discrete(self) -> dict[str, list[int]]:
        """The integers of the gate: rows of the table of positions that a patch reads, and their
        weights in steps of 2 ** -15. CheckpointError where the published table is not its own."""
        patches = self.vision.image_size // self.vision.patch
        found = position_integers(self.table, patches)
        if (self.table, patches) == (16, 18):
            for name, values in N16_POSITIONS.items():
                same_integers("GR00T N1.6", name.replace("_", " "), values, found[name])
        return found

    def shapes_json(self) -> dict[str, Any]:
        """``shapes`` of a config.json that :func:`parse_eagle` reads back."""
        return {
            "image_token_index": self.image_token,
            "vision_config": EAGLE_VISION.write(self.vision, {"num_patches": self.table**2}),
            "text_config": QWEN3_TEXT.write(self.text),
        }


#: The published sizes of N1.5, and of N1.6 for images of 252 pixels.
EAGLE_N15 = EagleConfig("backbone.eagle_model.", SIGLIP_SO400M, replace(QWEN3_1B7, layers=12))
EAGLE_N16 = EagleConfig(
    "backbone.model.",
    replace(SIGLIP_SO400M, image_size=252),
    replace(QWEN3_1B7, layers=16),
    shuffle=2,
)


def smart_side(side: int) -> int:
    """The side that N1.6's images of ``side`` pixels are brought to: the nearest multiple of 28.

    Source: ``smart_resize`` with its factor and its least number of pixels, of a square.
    """
    return max(2 * _SIDE, round(side / _SIDE) * _SIDE)


def parse_eagle(
    fields: Fields, known: EagleConfig, layers: int, wide: int, head: Fields
) -> EagleConfig:
    """The published sizes, or those of ``shapes``, with the first ``layers`` of its layers, for a
    head that reads rows of ``wide`` values, by its fields ``head``.

    The config.json of Eagle lies beside NVIDIA's code and not in a checkpoint: the published one is
    known here. One key is this project's own: ``shapes``, for models of other sizes, in the words
    of that file ({"vision_config", "text_config", "image_token_index"}). CheckpointError.
    """
    config = known
    if fields.raw.get("shapes") is not None:
        config = _parse_shapes(fields.part("shapes"), known)
    elif layers > QWEN3_1B7.layers:
        raise CheckpointError(f"select_layer is {layers}: Qwen3-1.7B has 28 layers")
    vision, text = config.vision, config.text
    if wide != text.hidden_size:
        raise head.wrong("backbone_embedding_dim", f"{text.hidden_size}, as of its Qwen3")
    block = vision.patch * config.shuffle
    if vision.image_size % block:
        raise CheckpointError(
            f"images of {vision.image_size} pixels do not divide into blocks of {block}"
        )
    if text.head_dim % 2 or text.heads % text.kv_heads or vision.width % vision.heads:
        raise CheckpointError("heads do not divide the widths of Eagle's shapes")
    return replace(config, text=replace(text, layers=layers))


def _parse_shapes(shapes: Fields, known: EagleConfig) -> EagleConfig:
    sizes, vision = shapes.part("vision_config"), known.vision
    vision = replace(vision, **EAGLE_VISION.parse(sizes, vision))
    if known.shuffle == 1:  # N1.6's images have a size of their own, which the processor has
        vision = replace(vision, image_size=sizes.whole("image_size", vision.image_size))
    count = sizes.whole("num_patches", vision.patches if known.shuffle == 1 else 256)
    table = round(count**0.5)
    if table * table != count:
        raise sizes.wrong("num_patches", "a square number")
    text = replace(known.text, **QWEN3_TEXT.parse(shapes.part("text_config"), known.text))
    token = shapes.whole("image_token_index", known.image_token, least=0)
    return EagleConfig(known.base, vision, text, table, known.shuffle, token)


class Eagle(Qwen3):
    """Tower, connector and language model, for prompts of ``longest`` rows at most."""

    def __init__(
        self, config: EagleConfig, weights: Weights, like: torch.Tensor, longest: int
    ) -> None:
        self.config = config
        positions = torch.arange(config.vision.patches)
        stretching = _Stretched(config, weights)
        self.vision_model = read_siglip(stretching, config.tower, config.vision, positions, like)
        self._mlp1 = _read_connector(config, weights, like)
        base = f"{config.language}model."
        super().__init__(config.text, weights, base, like, longest, last_norm=True)
        self.features_width = self.width

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [V, 3, s, s] in [-1, 1] -> the rows that stand in the prompt [n, C]."""
        x = self.vision_model(pixels)
        if self.config.shuffle > 1:
            x = pixel_shuffle(x, self.config.shuffle)
            x = F.layer_norm(x, (x.shape[-1],), None, None, _EPS)
        first, *last = self._mlp1
        x = first(x)
        if last:
            x = last[0](F.gelu(x))
        return x.flatten(0, 1)


class _Stretched(Weights):
    """A checkpoint's tower as :func:`read_siglip` knows it: a convolution, and one row of the
    table for every patch of an image."""

    def __init__(self, config: EagleConfig, weights: Weights) -> None:
        self._config, self.within = config, weights

    def take(self, name: str) -> torch.Tensor:
        tensor, vision = self.within.take(name), self._config.vision
        if name.endswith("position_embedding.weight"):
            return stretched(tensor, vision.image_size // vision.patch)
        if name.endswith("patch_embedding.weight") and tensor.dim() == 2:
            grid = tensor.view(len(tensor), vision.patch, vision.patch, 3)
            return grid.permute(0, 3, 1, 2).contiguous()
        return tensor

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        return self.within.blocks(name)

    def shape(self, name: str) -> Shape:
        return self.within.shape(name)


def _read_connector(config: EagleConfig, weights: Weights, like: torch.Tensor) -> list[Map]:
    """The linear maps, the first with the norm in front of it and for columns (y, x, C) of the
    patches that are joined; the authors' are (C, y, x), ``pixel_unshuffle``."""
    base = f"{config.base}mlp1."
    if config.shuffle == 1:
        return [mapped(weights, f"{base}0", VISION, like)]

    def joined(take: Take) -> Linear:
        first = behind_norm(take, f"{base}0", as_it_is(f"{base}1")(take))
        made = first.weight
        columns = made.view(len(made), config.vision.width, -1).transpose(1, 2)
        return Linear(columns.flatten(1), first.bias)

    return [
        mapped(weights, f"{base}joined", VISION, like, joined),
        mapped(weights, f"{base}3", VISION, like),
    ]


# The table of positions
#
# Source: torch's ``interpolate(mode="bilinear", align_corners=False, antialias=True)``, which
# NVIDIA's ``Siglip2VisionEmbeddings`` calls for every image. Here the rows that a patch reads and
# their weights are tables of their own, so they can be compared with stored ones: a table that is
# off by one row still gives plausible actions.

WEIGHT_SCALE = 1 << 15  # weights are compared in steps of 2 ** -15


#: The gate's integers at N1.6's published size: images of 252 pixels, 18 patches on a side of a
#: table of 16; the second half of the weights mirrors the first.
_LAST = (5461, 9102, 12743, 16384, 20025, 23666, 27307, 30948)
_HALF = [WEIGHT_SCALE, *(w for one in _LAST for w in (one, WEIGHT_SCALE - one))]
N16_POSITIONS = {
    "position_rows": [0, 0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    "position_weights": _HALF + _HALF[::-1],
}


def position_integers(source: int, target: int) -> dict[str, list[int]]:
    """:func:`axis_matrix` as integers: the first row that each position reads, and the weights
    other than 0 of those that it reads, rounded to steps of 1 / WEIGHT_SCALE."""
    rows, weights = [], []
    for row in axis_matrix(source, target):
        used = row.nonzero().flatten().tolist()
        rows.append(used[0])
        weights += [round(v * WEIGHT_SCALE) for v in row[used].tolist()]
    return {"position_rows": rows, "position_weights": weights}


def axis_matrix(source: int, target: int) -> torch.Tensor:
    """float32 [target, source]: each position of the target, a mean of the source's."""
    scale = torch.tensor(source / target, dtype=torch.float32)
    wide = torch.clamp(scale, min=1.0)  # the triangle's half width
    centers = scale * (torch.arange(target, dtype=torch.float32) + 0.5)
    positions = torch.arange(source, dtype=torch.float32)
    first = (centers - wide + 0.5).to(torch.int64).clamp(min=0)
    last = (centers + wide + 0.5).to(torch.int64).clamp(max=source)
    distance = ((positions + 0.5)[None] - centers[:, None]).abs() / wide
    weights = (1.0 - distance).clamp(min=0.0)
    inside = (positions[None] >= first[:, None]) & (positions[None] < last[:, None])
    weights = torch.where(inside, weights, torch.zeros(()))
    return weights / weights.sum(1, keepdim=True)


def stretched(table: torch.Tensor, target: int) -> torch.Tensor:
    """A table [s * s, C] -> [target * target, C], float32."""
    source = round(len(table) ** 0.5)
    if source == target:
        return table
    axis = axis_matrix(source, target).to(table.device)
    grid = table.float().view(source, source, -1)
    grid = torch.einsum("ia,abc->ibc", axis, grid)
    return torch.einsum("jb,ibc->ijc", axis, grid).flatten(0, 1)


# The prompt
#
# Qwen3's words, and a position for every row of an image. Words between two special tokens are cut
# by themselves, as the authors' tokenizer does.

VOCABULARY, MERGES, ADDED = "vocab.json", "merges.txt", "added_tokens.json"
IM_START, IM_END, IMG_CONTEXT = "<|im_start|>", "<|im_end|>", "<IMG_CONTEXT>"
IMG_START, IMG_END = "<img>", "</img>"
#: Ids that Eagle gives its own tokens, for a tokenizer of Qwen3 that does not know them.
_EAGLES = {IMG_CONTEXT: IMAGE_TOKEN, IMG_START: 151670, IMG_END: 151671}
_QWENS = {IM_START: 151644, IM_END: 151645}
_CHAT = f"{IM_START}system\nYou are a helpful assistant.{IM_END}\n{IM_START}user\n"
_SPECIALS = (IM_START, IM_END, IMG_START, IMG_END, IMG_CONTEXT)
_SPECIAL = re.compile(f"({'|'.join(map(re.escape, _SPECIALS))})")
#: transformers ``tokenization_qwen2.py``
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def images_first(task: str, views: int, tokens: int) -> str:
    """N1.5's chat (images, the task, the assistant's turn), of so many images with so many
    positions each. ValueError: the task would end the chat or hold an image's position."""
    return f"{_CHAT}{_images_text(views, tokens)}{_plain(task)}{IM_END}\n{IM_START}assistant\n"


def task_first(task: str, views: int, tokens: int) -> str:
    """N1.6's chat: the task, then images. ValueError as of :func:`images_first`."""
    return f"{_CHAT}{_plain(task)}{_images_text(views, tokens)}{IM_END}\n"


def _plain(task: str) -> str:
    if found := _SPECIAL.search(task):
        raise ValueError(f"an instruction cannot have {found.group()} in it")
    return task


def _images_text(views: int, tokens: int) -> str:
    """Source: ``replace_media_placeholder`` of Eagle's processor."""
    return "".join(
        f"<image {i + 1}>{IMG_START}{IMG_CONTEXT * tokens}{IMG_END}" for i in range(views)
    )


class EagleTokenizer:
    """Text -> ids with the tokenizer of a folder, or of the path that was given.

    A folder has ``tokenizer.json``, or ``vocab.json``, ``merges.txt`` and ``added_tokens.json`` as
    they lie beside NVIDIA's code. CheckpointError in one line where there is none or it belongs to
    another model; ``image_token`` is the model's id of an image's position.
    """

    def __init__(
        self, directory: Path, given: str | None, vocab: int, image_token: int = IMAGE_TOKEN
    ) -> None:
        self._folder = _folder(directory, given)
        self._tokenizer, added = _read_tokenizer(self._folder)
        self._vocab = vocab
        self._special = {name: self._id(name, added) for name in _SPECIALS}
        if self._special[IMG_CONTEXT] != image_token:
            raise CheckpointError(
                f"{self._folder} gives {IMG_CONTEXT} the id {self._special[IMG_CONTEXT]}, the model"
                f" has {image_token}: they do not belong together"
            )

    def __call__(self, text: str) -> list[int]:
        """Ids of a whole chat, whose special tokens are spelled out."""
        ids: list[int] = []
        for piece in _SPECIAL.split(text):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        if max(ids, default=0) >= self._vocab:
            raise CheckpointError(
                f"{self._folder} gives ids up to {max(ids)}, the model has {self._vocab}: they do"
                " not belong together"
            )
        return ids

    def _id(self, token: str, added: dict[str, Any]) -> int:
        found = added.get(token, self._tokenizer.token_to_id(token))
        qwens = all(self._tokenizer.token_to_id(t) == i for t, i in _QWENS.items())
        if found is None and qwens:  # Qwen3's own tokenizer ends in front of Eagle's tokens
            found = _EAGLES.get(token)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < self._vocab:
            raise CheckpointError(
                f"the tokenizer in {self._folder} has no token {token}: it is not Eagle's"
            )
        return found


def _folder(directory: Path, given: str | None) -> Path:
    folders = tokenizer_folders(directory, given)
    for folder in folders:
        if (folder / "tokenizer.json").is_file():
            return folder
        if (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
            return folder
    raise CheckpointError(
        f"no tokenizer in {folders[0]}: copy {VOCABULARY}, {MERGES} and {ADDED} there from Eagle's"
        " folder beside NVIDIA's code, or name their folder with the option 'tokenizer'"
    )


def _read_tokenizer(folder: Path) -> tuple[FileTokenizer, dict[str, Any]]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    added = read_json(folder / ADDED) if (folder / ADDED).is_file() else {}
    if (folder / "tokenizer.json").is_file():
        return open_tokenizer(folder / "tokenizer.json"), added
    read_json(folder / VOCABULARY, TOKENIZER)
    read_bytes(folder / MERGES, TOKENIZER)
    with refusing(folder / VOCABULARY):
        files = (str(folder / VOCABULARY), str(folder / MERGES))
        tokenizer = Tokenizer(models.BPE.from_file(*files))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return FileTokenizer(tokenizer, folder / VOCABULARY), added
