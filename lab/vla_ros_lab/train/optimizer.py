"""Optimizers of a network's parameters: Muon for the matrices, AdamW for all others; or AdamW.

Source: Jordan et al. 2024 and Liu et al. 2025 ("Muon is scalable for LLM training"), whose
scaling lets both share one learning rate. Against AdamW alone (7e-4) the small model came as far
in 125 steps as it did in 225.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from vla_ros.engine.layers.devices import multiplies_bfloat16

#: matrices whose rows have nothing in common
_TABLES = ("embed_tokens", "lm_head", "patch_head", "lora_")
_UNDECAYED = ("norm", "bias", "pos_embed", "positions")


class Muon(torch.optim.Muon):
    """Muon with products in float32. torch has them in bf16, in which a CPU without such
    instructions spent 14 of the 15 s of a step of the small model; float32 takes a sixteenth."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """A step with Nesterov's momentum; no ``closure``."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if (grad := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(grad)
                average = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
                update = orthogonal(grad.lerp(average, group["momentum"]), group)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-0.2 * group["lr"] * math.sqrt(max(grad.shape)))


def orthogonal(update: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """``update`` [A, B] with singular values near 1, by Newton and Schulz's iteration."""
    wide = update if update.shape[0] <= update.shape[1] else update.T
    wide = wide / wide.norm().clamp(min=group["eps"])
    a, b, c = group["ns_coefficients"]
    for _ in range(group["ns_steps"]):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if update.shape[0] <= update.shape[1] else wide.T


def muon_for(device: torch.device) -> type[torch.optim.Muon]:
    """The quicker Muon on a device."""
    return torch.optim.Muon if multiplies_bfloat16(device) else Muon


class Optimizer:
    """Several of torch's optimizers as one, each of other parameters, with one learning rate."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self._parts = parts

    def step(self, rate: float) -> None:
        """Change the parameters along their gradients, then clear those."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """States of all parts, by their numbers."""
        return {str(number): part.state_dict() for number, part in enumerate(self._parts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        for number, part in enumerate(self._parts):
            part.load_state_dict(state[str(number)])


def adamw(network: nn.Module, betas: tuple[float, float], weight_decay: float) -> Optimizer:
    """AdamW of all parameters."""
    return Optimizer(
        torch.optim.AdamW(network.parameters(), betas=betas, weight_decay=weight_decay)
    )


def muon_and_adamw(network: nn.Module, rate: float, weight_decay: float) -> Optimizer:
    """Muon and AdamW of every parameter that requires a gradient."""
    matrices: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        if any(part in name for part in _UNDECAYED):
            plain.append(parameter)
        elif parameter.ndim == 2 and not any(part in name for part in _TABLES):
            matrices.append(parameter)
        else:
            decayed.append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    muon = muon_for(next(network.parameters()).device)
    return Optimizer(
        muon(matrices, rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, rate, betas=(0.9, 0.95), fused=True),
    )
