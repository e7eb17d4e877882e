"""A corrector: adds to an action that was decided on an older image what the newest one changes.

A small network beside a flow policy with a VLM. Of the newest frame it reads the rows of the
policy's own prefix (image and instruction, frozen) and the robot's state; of the chunk the action
that is to be executed, its index in the chunk, and in how many action periods it is due: 0 with
the frame, more where the answer itself takes time. Its output is added to that action.

On disk it is a folder ``corrector`` in the checkpoint that it was made for: ``config.json`` and
``model.safetensors``.

Source of the idea: arXiv 2509.23224 (A2C2: one residual an action, from the newest observation, the
base policy's features, the action and its index in the chunk). The layout is our own: attention
over the prefix with one query in place of its transformer.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vla_ros.core.types import Floats
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import read_json
from vla_ros.engine.io.processors import Scaler
from vla_ros.engine.io.weights import Expected, check_tensors, read_headers, read_tensors
from vla_ros.engine.layers.devices import downloaded, upload
from vla_ros.engine.models.base import Inputs

FOLDER = "corrector"
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_MOST = 4.0  # an action is read as at most so many deviations
_CODES = 16  # values that encode an action's index in the chunk, and when it is due


@dataclass(frozen=True, slots=True)
class CorrectorConfig:
    """``hidden``: numbers in a row of the prefix; ``state`` and ``actions``: values of the robot's
    state and of an action; ``horizon``: actions of a chunk; ``width`` of the hidden layers,
    ``heads`` of ``head_dim`` numbers in the attention; ``ahead``: action periods from a frame to
    an action's execution, at most."""

    hidden: int
    state: int
    actions: int
    horizon: int
    width: int = 256
    heads: int = 4
    head_dim: int = 32
    ahead: int = 3


class Corrector(nn.Module):
    """The network of a corrector, float32. Before it is trained it adds zero."""

    def __init__(self, config: CorrectorConfig) -> None:
        super().__init__()
        self.config = config
        seen = config.hidden + config.state + config.actions + 2 * _CODES
        looked, width = config.heads * config.head_dim, config.width
        self.places = nn.Embedding(config.horizon, _CODES)
        self.periods = nn.Embedding(config.ahead + 1, _CODES)
        self.query = nn.Linear(seen, looked)
        self.rows = nn.Linear(config.hidden, 2 * looked)
        self.first = nn.Linear(seen + looked, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)
        self.out = nn.Linear(width, config.actions)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(
        self,
        rows: torch.Tensor,
        lengths: torch.Tensor,
        state: torch.Tensor,
        action: torch.Tensor,
        index: torch.Tensor,
        ahead: torch.Tensor,
    ) -> torch.Tensor:
        """The difference to add to each of B actions [B, D], in model space.

        ``rows`` [B, R, hidden]: prefixes, normalized, of which ``lengths`` int64 [B] are there and
        the rest is padding; ``state`` [B, S] and ``action`` [B, D] in model space; ``index`` int64
        [B]: the action's index in its chunk; ``ahead`` int64 [B]: action periods until it is due.
        """
        batch, count, _ = rows.shape
        config = self.config
        last = rows[torch.arange(batch, device=rows.device), lengths - 1].float()
        action = action.clamp(-_MOST, _MOST)
        seen = torch.cat((last / _MOST, state, action, self.places(index), self.periods(ahead)), -1)
        query = self.query(seen).view(batch, 1, config.heads, config.head_dim).transpose(1, 2)
        both = self.rows(rows).view(batch, count, 2, config.heads, config.head_dim)
        keys, values = both.permute(2, 0, 3, 1, 4)
        there = torch.arange(count, device=rows.device) < lengths[:, None]
        found = F.scaled_dot_product_attention(
            query.to(keys.dtype), keys, values, attn_mask=there[:, None, None]
        )
        x = torch.cat((seen, found.transpose(1, 2).reshape(batch, -1).float()), -1)
        x = F.gelu(self.first(x))
        x = x + F.gelu(self.second(x))
        x = x + F.gelu(self.third(x))
        return self.out(x).float()

    def added(
        self, model: Any, scaler: Scaler, inputs: Inputs, actions: Floats, index: int
    ) -> Floats:
        """The difference to add, float64 [n, D] in units, to ``actions`` [n, D] in units, of a
        chunk from ``index`` on, the first due with the observation of ``inputs``; ``scaler`` of
        actions."""
        rows, count = model.read_rows(inputs).float(), len(actions)
        state = upload(inputs.state[None, : self.config.state], rows.device)
        with torch.inference_mode():
            there = self(
                rows[None].expand(count, -1, -1),
                torch.full((count,), len(rows), device=rows.device),
                state.expand(count, -1),
                upload(scaler.normalize(torch.from_numpy(actions).float()), rows.device),
                torch.arange(index, index + count, device=rows.device),
                torch.arange(count, device=rows.device),
            )
        made = downloaded(there)
        # The difference of two values in units: nothing added is exactly nothing.
        added: Floats = (scaler.restore(made) - scaler.restore(torch.zeros_like(made))).numpy()
        return added


def save_corrector(directory: Path, corrector: Corrector) -> None:
    """Write ``directory/corrector``, in bf16."""
    from safetensors.torch import save_file

    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in corrector.state_dict().items()
    }
    save_file(tensors, str(folder / _WEIGHTS))
    (folder / _CONFIG).write_text(json.dumps(asdict(corrector.config), indent=1) + "\n")


def find_corrector(
    directory: Path, wanted: CorrectorConfig, device: torch.device
) -> Corrector | None:
    """The corrector in a checkpoint's folder; None: it has none.

    CheckpointError: it cannot be read, or was made for a policy of another shape than ``wanted``,
    whose inner sizes do not count.
    """
    folder = directory / FOLDER
    if not (folder / _CONFIG).is_file():
        return None
    found = read_json(folder / _CONFIG)
    names = [field.name for field in fields(CorrectorConfig)]
    if set(found) != set(names) or not all(type(found[n]) is int and found[n] > 0 for n in names):
        raise CheckpointError(f"{folder / _CONFIG} describes no corrector of this version")
    config = CorrectorConfig(**found)
    shape = ("hidden", "state", "actions", "horizon")
    if wrong := [
        f"{name} {getattr(config, name)}, the policy's is {getattr(wanted, name)}"
        for name in shape
        if getattr(config, name) != getattr(wanted, name)
    ]:
        raise CheckpointError(f"{folder} is a corrector for another policy: {'; '.join(wrong)}")
    with torch.device("meta"):
        corrector = Corrector(config)
    tensors = {name: tuple(tensor.shape) for name, tensor in corrector.state_dict().items()}
    stored = read_headers([folder / _WEIGHTS])
    check_tensors(folder, stored, Expected(tensors))
    read = {n: t.to(device, torch.float32, copy=True) for n, t in read_tensors(stored, tensors)}
    corrector.load_state_dict(read, assign=True)
    return corrector.requires_grad_(False).eval()
