"""In which patch of the image an object's centre is: labels of the auxiliary losses."""

from __future__ import annotations

import torch

NOWHERE = -100  # no patch: cross-entropy leaves it out


def places_of(pixels: torch.Tensor, things: torch.Tensor, side: int, patch: int) -> torch.Tensor:
    """Pixels [B, objects, 2] in one image, things int64 [B, K, 2], an object's number or
    NOWHERE -> the patches they are in, int64 [B, K, 2]; NOWHERE outside of the image."""
    if not pixels.shape[1]:
        return torch.full_like(things, NOWHERE)
    cell = torch.floor(pixels / patch)
    inside = ((cell >= 0) & (cell < side)).all(-1)
    where = torch.where(inside, cell[..., 1] * side + cell[..., 0], float(NOWHERE)).long()
    flat = things.flatten(1)
    found = where.gather(1, flat.clamp(min=0)).view(things.shape)
    return torch.where(things == NOWHERE, NOWHERE, found)


def patch_labels(pixels: torch.Tensor, side: int, patch: int) -> torch.Tensor:
    """Pixels [B, images, K, 2] -> int64 [B, images * side^2]: 1 + the object, 0 for none.

    What is outside of the image, or behind the camera (NaN), has no patch. Where two objects
    share a patch the later one has it.
    """
    batch, images, objects, _ = pixels.shape
    cell = torch.floor(pixels / patch)
    inside = ((cell >= 0) & (cell < side)).all(-1)  # NaN is not
    where = torch.where(inside, cell[..., 1] * side + cell[..., 0], 0.0).long()
    # One cell more, for what has none.
    labels = torch.zeros(batch, images, side * side + 1, dtype=torch.long, device=pixels.device)
    where = torch.where(inside, where, side * side)
    for number in range(objects):
        labels.scatter_(2, where[:, :, number : number + 1], number + 1)
    return labels[:, :, :-1].flatten(1)
