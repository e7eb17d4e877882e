"""The parts of `make fuzz-pure`: what reads bytes, over good bytes and some that are changed."""

from __future__ import annotations

import random

import pytest

from endurance.fuzz_pure import PARTS, _seeds

NEEDED = {"cdr": "sensor_msgs", "bag": "rosbags", "database": "rosbags", "tokenizer": "tokenizers"}


def changed(seed: bytes, chance: random.Random) -> bytes:
    """A seed with bytes replaced, cut out, doubled or cut off."""
    data = bytearray(seed)
    for _ in range(chance.randint(1, 4)):
        at, to = sorted(chance.randint(0, len(data)) for _ in range(2))
        what = chance.randrange(4)
        if what == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif what == 1:
            del data[at : min(to, at + 8)]
        elif what == 2:
            data[at:at] = data[at:to]
        else:
            del data[to:]
    return bytes(data)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_finds_nothing_in_its_seeds_and_in_changes_of_them(part):
    if part in NEEDED:
        pytest.importorskip(NEEDED[part])
    run, chance = PARTS[part](), random.Random(part)
    for seed in _seeds(part):
        run(seed)
        for _ in range(200):
            run(changed(seed, chance))
