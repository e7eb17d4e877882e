"""openpi's messages: arrays there and back, and nothing but Malformed for any bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

msgpack = pytest.importorskip("msgpack", reason="msgpack is not installed: pip install '.[serve]'")

from support.foreign_server import from_map, to_map
from vla_ros.core.types import Observation
from vla_ros.policies import InvalidAction, PolicyRefused
from vla_ros.policies.remote.codec import MAX_LENGTH, MAX_PARTS, Jpeg, Malformed, pack, unpack
from vla_ros.policies.remote.names import OPENPI, names_from

NUMBERS = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="<"),
    arrays.unsigned_integer_dtypes(endianness="<"),
    arrays.floating_dtypes(endianness="<"),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=9) | st.binary(max_size=9), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
ARRAY = st.fixed_dictionaries(
    {b"__ndarray__": PLAIN, b"data": PLAIN | st.binary(max_size=64),
     b"dtype": PLAIN | st.sampled_from(["<f4", "|u1", "|O", "<M8[s]", "V8", "(2,)f4", "<U4", ","]),
     b"shape": PLAIN | st.lists(st.integers(-2, 2**40), max_size=4)}
)  # fmt: skip


@given(arrays.arrays(NUMBERS, arrays.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_arrays_are_openpi_s_and_come_back(array) -> None:
    data = pack({"a": array, "text": "ä"})
    assert data == msgpack.packb({"a": array, "text": "ä"}, default=to_map)
    theirs = msgpack.unpackb(data, object_hook=from_map)["a"]
    ours = unpack(data)["a"]
    for found in (theirs, ours):
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)


def test_a_numpy_number_comes_back_and_an_object_is_not_sent() -> None:
    assert unpack(pack({"n": np.float32(0.5)}))["n"] == np.float32(0.5)
    for bad in (np.array([object()]), object(), np.array(["x"])):
        with pytest.raises((TypeError, ValueError), match="cannot be sent"):
            pack({"a": bad})


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_are_a_map_or_malformed(data) -> None:
    try:
        assert isinstance(unpack(data), dict)
    except Malformed as error:
        assert "\n" not in str(error)


@given(st.dictionaries(st.sampled_from(["observation/image", "prompt", "x"]), PLAIN | ARRAY))
@settings(max_examples=300)
def test_any_message_is_an_observation_or_says_what_is_wrong(message) -> None:
    try:
        found = unpack(msgpack.packb(message))
    except Malformed:
        return
    with pytest.raises(InvalidAction) as error:
        OPENPI["libero"].from_wire(found, 1, (2, 3))
    assert "\n" not in str(error.value)


@given(PLAIN | st.fixed_dictionaries({}, optional={
    "images": PLAIN, "state": PLAIN, "size": PLAIN, "action_scale": PLAIN, "gripper": PLAIN,
    "layout": PLAIN, "prompt": PLAIN}))  # fmt: skip
def test_any_table_is_names_or_refused(raw) -> None:
    try:
        names = names_from(raw)
    except (PolicyRefused, TypeError, ValueError):
        return
    image = np.zeros((4, 4, 3), np.uint8)
    more = dict.fromkeys(names.more_cameras, image)
    seen = Observation(1, 2, 3, image, image, np.zeros(names.state_dim), more_images=more)
    assert names.to_wire(seen, "stack")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x91" * 400 + b"\x01", "the message is a list|deeper than|StackError"),
        (msgpack.packb({"a": [[[[[[1]]]]]]}), "deeper than 6"),
        (msgpack.packb({"a": [{}] * (MAX_PARTS + 1)}), "more than 1000 parts"),
        (msgpack.packb({"a": [0] * (MAX_LENGTH + 1)}), "exceeds max_array_len"),
        (msgpack.packb({"a": [[0] * MAX_LENGTH] * 900}), "more than 16384 entries: send numbers"),
        (msgpack.packb({"a": [dict.fromkeys(range(4000), 0)] * 9}), "more than 16384 entries"),
        (b"\xdf\x7f\xff\xff\xff", "exceeds max_map_len"),
        (b"\x81\xa1a\xc6\x7f\xff\xff\xff", "incomplete|max_bin_len"),
        (msgpack.packb({"a": msgpack.ExtType(4, b"x")}), "max_ext_len"),
        (pack({"a": np.zeros(99, np.uint8)}), "at most 64"),
    ],
)  # fmt: skip
def test_what_would_cost_much_is_refused_before_it_does(data, said) -> None:
    with pytest.raises(Malformed, match=said):
        unpack(data, 64 if said == "at most 64" else 1 << 22)


@pytest.mark.parametrize("table", OPENPI)
def test_what_a_table_sends_it_reads(table) -> None:
    names = OPENPI[table]
    image = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    more = {role: image[::-1].copy() for role in names.more_cameras}
    state = np.arange(float(names.state_dim))
    sent = Observation(1, 2, 3, image, image[::2, ::2].copy(), state, more_images=more)
    message = unpack(pack(names.to_wire(sent, "stack")))
    found, task = names.from_wire(message, 1, (2, 3))
    assert task == "stack"
    np.testing.assert_array_equal(found.image, image)
    np.testing.assert_array_equal(found.proprio, state)
    assert set(found.more_images) == set(more)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no JPEG"),
        (b"\x89PNG\r\n", "no JPEG"),
        (b"\xff\xd8\xff\xe0 and no more", "neither JPEG nor PNG|corrupt"),
        ("text", "no JPEG"),
    ],
)
def test_an_image_that_is_no_jpeg_is_malformed(data, says) -> None:
    with pytest.raises(Malformed, match=says):
        unpack(msgpack.packb({"image": {b"__jpeg__": True, b"data": data}}))


def test_small_jpegs_of_large_images_are_not_all_decoded() -> None:
    large = Jpeg(np.zeros((3000, 3000, 3), np.uint8), 10)
    assert len(pack({"a": large})) < 1 << 18
    assert unpack(pack({"a": large}))["a"].shape == (3000, 3000, 3)
    with pytest.raises(Malformed, match="images of more than"):
        unpack(pack({"a": large, "b": large}))
    with pytest.raises(Malformed, match="exceeds"):
        unpack(pack({"a": Jpeg(np.zeros((4000, 4000, 3), np.uint8), 10)}))
