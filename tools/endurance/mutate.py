"""Spoiling what is good: bytes, JSON-like values and messages, each from a random generator."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

NUMBERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, 2**64, 10**30)
FLOATS = (0.0, -0.0, 1e-310, 1e308, float("inf"), float("-inf"), float("nan"), -1.0, 0.5)
TEXTS = (
    "", " ", "\0", "\x07", "../../etc/passwd", "a" * 5000, "\u202eabc", "</s>", "<PAD>", "é" * 50,
    "🤖", "-1", "nan", "null", "%s%n", "{{ x }}", "$(id)", "\ud7ff", "0" * 400,
)  # fmt: skip


def spoilt_bytes(good: bytes, rng: random.Random) -> bytes:
    """One to four small wounds, or a large one."""
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not data:
            return bytes(rng.randrange(256) for _ in range(rng.randrange(64)))
        at = rng.randrange(len(data))
        match rng.randrange(8):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.choice((0, 1, 127, 128, 255))
            case 2:
                word = rng.choice((0, 1, 2**16, 2**31 - 1, 2**32 - 1, len(data)))
                data[at : at + 4] = word.to_bytes(4, rng.choice(("little", "big")))
            case 3:
                del data[at:]
            case 4:
                del data[at : at + rng.randrange(1, 16)]
            case 5:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 32)))
            case 6:
                begin = rng.randrange(len(data))
                data[at:at] = data[begin : begin + rng.randrange(1, 64)]
            case _:
                data[at : at + 8] = b"\xff\xff\xff\xff\xff\xff\xf8\x7f"  # a NaN, or a huge number
    return bytes(data)


def nasty(rng: random.Random, depth: int = 0) -> Any:
    """Any value that JSON or YAML can say."""
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:
        return rng.choice(FLOATS)
    if kind == 2:
        return rng.choice(TEXTS)
    if kind in (3, 4):
        return rng.choice((None, True, False, [], {}))
    if kind == 5:
        return [nasty(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): nasty(rng, depth + 1) for _ in range(rng.randrange(3))}


def spoilt_value(good: Any, rng: random.Random) -> Any:
    """The same structure with one place of it made nasty, dropped, doubled or renamed."""
    copy = json.loads(json.dumps(good))
    places = list(_places(copy))
    if not places:
        return nasty(rng)
    holder, key = rng.choice(places)
    match rng.randrange(5):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(TEXTS)] = holder.pop(key)
        case 2 if isinstance(holder, list):
            holder.insert(key, holder[key])
        case 3 if isinstance(holder[key], (int, float)) and not isinstance(holder[key], bool):
            holder[key] = rng.choice((-holder[key], holder[key] + 1, holder[key] * 1000, 0))
        case _:
            holder[key] = nasty(rng)
    return copy


def _places(value: Any) -> Sequence[tuple[Any, Any]]:
    if isinstance(value, dict):
        own = [(value, key) for key in value]
        return own + [place for one in value.values() for place in _places(one)]
    if isinstance(value, list):
        own = [(value, number) for number in range(min(len(value), 50))]
        return own + [place for one in value[:50] for place in _places(one)]
    return []


def spoilt_text(good: str, rng: random.Random) -> bytes:
    """A text file with wounds of its own kind: lines dropped, doubled, swapped, indented."""
    lines = good.splitlines(keepends=True)
    match rng.randrange(5):
        case 0 if lines:
            del lines[rng.randrange(len(lines))]
        case 1 if lines:
            at = rng.randrange(len(lines))
            lines.insert(at, lines[rng.randrange(len(lines))])
        case 2 if lines:
            at = rng.randrange(len(lines))
            lines[at] = (
                rng.choice((" ", "\t", "- ", "&x ", "*x ", "!!python/object:os.system "))
                + (lines[at])
            )
        case 3 if lines:
            at = rng.randrange(len(lines))
            head, colon, _ = lines[at].partition(":")
            lines[at] = f"{head}{colon} {json.dumps(nasty(rng))}\n"
        case _:
            return spoilt_bytes(good.encode(), rng)
    return "".join(lines).encode(errors="surrogatepass")


def spoilt_message(kind: type, rng: random.Random, depth: int = 0) -> Any:
    """A message of this type with random and often nasty contents; it can be serialized."""
    message = kind()
    for name, words in kind.get_fields_and_field_types().items():
        if rng.random() < 0.25:
            continue  # as it is by default
        value = _field(getattr(message, name), words, rng, depth)
        if value is not None:
            try:
                setattr(message, name, value)
            except (AssertionError, TypeError, ValueError, OverflowError):
                continue  # rclpy itself says no to it
    return message


def _field(now: Any, words: str, rng: random.Random, depth: int) -> Any:
    if words.startswith("sequence<"):
        inner = words.removeprefix("sequence<").removesuffix(">").partition(",")[0]
        count = rng.choice((0, 1, 2, 6, 7, 8, 33, 200))
        return _many(inner, count, rng, depth)
    if words.endswith("]"):
        inner, _, size = words.removesuffix("]").partition("[")
        return _many(inner, int(size), rng, depth) if size.isdigit() else None
    return _one(now, words, rng, depth)


def _many(inner: str, count: int, rng: random.Random, depth: int) -> Any:
    if "/" in inner:
        kind = _imported(inner)
        return [spoilt_message(kind, rng, depth + 1) for _ in range(min(count, 8))]
    return [_one(None, inner, rng, depth) for _ in range(count)]


def _one(now: Any, words: str, rng: random.Random, depth: int) -> Any:
    if words in ("float", "double"):
        return rng.choice(FLOATS) if rng.random() < 0.5 else rng.uniform(-2, 2)
    if words == "boolean":
        return rng.random() < 0.5
    if words.startswith(("string", "wstring")):
        return rng.choice(TEXTS)
    if words == "octet":
        return bytes([rng.randrange(256)])
    if words.startswith(("int", "uint")):
        bits = int(words.removeprefix("u").removeprefix("int"))
        low, high = (
            (0, 2**bits - 1) if words[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        return rng.choice((low, high, min(high, 1), rng.randint(low, high), min(high, 7)))
    return spoilt_message(type(now), rng, depth + 1) if depth < 4 and now is not None else None


def _imported(name: str) -> type:
    from importlib import import_module

    package, _, kind = name.rpartition("/")
    found: type = getattr(import_module(f"{package.partition('/')[0]}.msg"), kind)
    return found
