"""The KV cache: storage for the keys and values of the requests that are alive.

A slot belongs to one request from ``acquire`` to ``release`` and is then used again by index;
nothing is ever copied from frame to frame. Not thread-safe: one engine, one thread.
"""

from __future__ import annotations

from typing import Any

import torch


class KVCache:
    """Per layer K and V of [slots, kv_heads, slot_length, head_dim] (head major).

    Head major because a decode pass on a CPU is then two plain batched products. ``storage``: where
    it lies, [2 layers, slots, kv_heads, slot_length, head_dim]; None: in memory of its own.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        slot_length: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        storage: torch.Tensor | None = None,
    ) -> None:
        self.slots, self.slot_length, self.longest = slots, slot_length, slot_length
        if storage is None:
            shape = (2 * layers, slots, kv_heads, slot_length, head_dim)
            storage = torch.zeros(shape, dtype=dtype, device=device)
        self._storage = storage
        self._entries = storage  # the part of every slot that is in use
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        #: of every layer both [2, slots, kv_heads, slot_length, head_dim]
        self.both: list[torch.Tensor] = []
        self._view(slot_length)
        self._next = 0
        self._live: set[int] = set()
        self._arrays: dict[int, list[tuple[Any, Any]]] = {}

    def _view(self, slot_length: int) -> None:
        self._entries = self._storage[:, :, :, :slot_length]
        self.slot_length = slot_length
        self.both = list(self._entries.unflatten(0, (-1, 2)))
        self.keys, self.values = ([both[part] for both in self.both] for part in (0, 1))

    def resize(self, slot_length: int) -> None:
        """Make all slots this long, in the same storage. Only while no request is alive."""
        if self._live:
            raise RuntimeError("the KV cache cannot change its shape while requests are alive")
        if slot_length > self.longest:
            raise ValueError(f"a slot has at most {self.longest} entries, wanted {slot_length}")
        self._view(slot_length)

    def part(self, slot: int) -> KVCache:
        """One slot as a KV cache of its own, in this one's memory."""
        layers, _, heads, length, dim = self._storage.shape
        storage = self._storage[:, slot : slot + 1]
        return KVCache(layers // 2, 1, length, heads, dim, self.dtype, self.device, storage)

    def arrays(self, slot: int) -> list[tuple[Any, Any]]:
        """K and V of one slot by layer as NumPy arrays over this memory: [kv_heads, longest,
        head_dim] of float32, or of bfloat16 as uint16."""
        if slot not in self._arrays:
            bits = torch.float32 if self.dtype == torch.float32 else torch.uint16
            parts = [each.view(bits).numpy() for each in self._storage[:, slot]]
            self._arrays[slot] = list(zip(parts[::2], parts[1::2], strict=True))
        return self._arrays[slot]

    @property
    def device(self) -> torch.device:
        return self._storage.device

    @property
    def dtype(self) -> torch.dtype:
        return self._storage.dtype

    @property
    def live(self) -> frozenset[int]:
        """Slots that belong to a request now."""
        return frozenset(self._live)

    def acquire(self) -> int:
        """Give the next free slot, in turn. Raises RuntimeError when all are taken."""
        for offset in range(self.slots):
            slot = (self._next + offset) % self.slots
            if slot not in self._live:
                self._live.add(slot)
                self._next = (slot + 1) % self.slots
                return slot
        raise RuntimeError(f"all {self.slots} KV slots are taken: a request was never released")

    def release(self, slot: int) -> None:
        """Take the slot back. Raises RuntimeError when no request holds it."""
        if slot not in self._live:
            raise RuntimeError(f"KV slot {slot} is not held by any request")
        self._live.remove(slot)

    def flush(self, damaged: bool = False) -> None:
        """Free every slot. What they hold stays in memory, behind every mask.

        ``damaged``: zero it too. After a non-finite value no mask helps: 0 * NaN = NaN.
        """
        self._live.clear()
        self._next = 0
        if damaged:
            self._storage.zero_()

    def fill(self, slot: int, value: float) -> None:
        """Overwrite one slot (tests poison what must not be read)."""
        self._entries[:, slot] = value

    def move(self, slot: int, source: torch.Tensor, target: torch.Tensor) -> None:
        """Move entries inside a slot: the accepted path of a draft tree to its own entries.

        ``source`` and ``target`` int64 on the device; one gather and one write for K and V of all
        layers. An entry may be named twice as a target only where the same is written.
        """
        entries = self._entries[:, slot]
        entries.index_copy_(2, target, entries.index_select(2, source))
