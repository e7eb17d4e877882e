"""A message's bytes in another memory: what Lyrical's rosidl_buffer gives for a uint8[]."""

from __future__ import annotations

import array
import io
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vla_ros.core.pixels import BadMessage, decompressed, image_of, resized

PIXELS = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)


class Buffer:
    """Has what ``rosidl_buffer.Buffer`` (5.2) has in Python: no buffer protocol, no items."""

    backend_type = "cuda"

    def __init__(self, data: bytes) -> None:
        self._there = data
        self.copies = 0

    def to_bytes(self) -> bytes:
        self.copies += 1
        return self._there

    def to_array(self) -> array.array:
        return array.array("B", self.to_bytes())

    def __len__(self) -> int:
        return len(self._there)


def raw(data: object) -> SimpleNamespace:
    return SimpleNamespace(encoding="rgb8", width=3, height=2, step=9, data=data)


def png() -> bytes:
    out = io.BytesIO()
    Image.fromarray(PIXELS).save(out, "PNG")
    return out.getvalue()


#: What zstd_image_transport (image_transport_plugins 7404d77) sends of 2 x 3 bgr8 pixels with rows
#: of 10 bytes, 0, 11, 22...: written by its own compressor.
ZIPPED = bytes.fromhex(
    "0200000003000000000a00000004000000626772381f8b080000000000000363e01653d43177f28d48ceab6ce9"
    "9fb574c3ee631701edb942e414000000"
)


def zipped(data: object) -> SimpleNamespace:
    return SimpleNamespace(format="zstd", data=data)


@pytest.mark.parametrize("kind", [Buffer, bytes, lambda data: array.array("B", data)])
def test_an_image_of_zstd_image_transport_is_read_as_its_own_subscriber_does(kind) -> None:
    rows = (np.arange(20) * 11 % 256).astype(np.uint8).reshape(2, 10)
    wanted = rows[:, :9].reshape(2, 3, 3)[:, :, ::-1]
    assert np.array_equal(decompressed(zipped(kind(ZIPPED)), 100), wanted)


def test_a_zipped_image_that_is_corrupt_or_a_bomb_is_refused_before_it_takes_memory() -> None:
    for broken in (ZIPPED[:16], ZIPPED[:30], ZIPPED[:21] + b"\x28\xb5\x2f\xfd" + ZIPPED[25:]):
        with pytest.raises(BadMessage, match=r"is corrupt|data has 0 bytes"):
            decompressed(zipped(broken), 100)
    with pytest.raises(BadMessage, match="exceeds max_image_pixels 5"):
        decompressed(zipped(ZIPPED), 5)
    with pytest.raises(BadMessage, match="of 4294967294 bytes is too large for 3x2"):
        decompressed(zipped(ZIPPED[:9] + b"\xff\xff\xff\x7f" + ZIPPED[13:]), 100)
    bomb = ZIPPED[:21] + zlib.compress(bytes(1 << 24))
    with pytest.raises(BadMessage, match="data has 21 bytes, step x height is 10 x 2"):
        decompressed(zipped(bomb), 100)


KINDS = [Buffer, bytes, bytearray, memoryview, lambda data: array.array("B", data)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_are_the_same_whatever_holds_the_bytes(kind) -> None:
    assert np.array_equal(image_of(raw(kind(PIXELS.tobytes())), 100), PIXELS)
    assert np.array_equal(
        decompressed(SimpleNamespace(format="png", data=kind(png())), 100), PIXELS
    )


def test_a_buffer_is_copied_once_and_not_before_its_size_is_known_to_be_right() -> None:
    short, whole = Buffer(PIXELS.tobytes()[:-1]), Buffer(PIXELS.tobytes())
    with pytest.raises(BadMessage, match="data has 17 bytes"):
        image_of(raw(short), 100)
    assert short.copies == 0
    image_of(raw(whole), 100)
    assert whole.copies == 1


def test_a_buffer_that_is_no_picture_is_refused_as_bytes_are() -> None:
    with pytest.raises(BadMessage):
        decompressed(SimpleNamespace(format="png", data=Buffer(b"nothing")), 100)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("yuv422_yuy2; jpeg compressed mono8", "pixel_format"),
        ("bayer_rggb8; jpeg compressed ", "debayer"),
        ("bayer_grbg16; png compressed ", "debayer"),
        ("NV12; jpeg compressed mono8", "pixel_format"),
        ("rgb8; jpeg compressed mono8", "pixel_format"),
    ],
)
def test_one_channel_of_a_camera_of_colors_is_no_image(text: str, remedy: str) -> None:
    """The policy acted on the light, or on the raw mosaic, without a word."""
    out = io.BytesIO()
    Image.fromarray(PIXELS[..., 0]).save(out, "PNG")
    with pytest.raises(BadMessage, match=f"one channel of a camera of colors: .*{remedy}"):
        decompressed(SimpleNamespace(format=text, data=out.getvalue()), 100)
    for gray in ("mono8; jpeg compressed mono8", "jpeg", "", "png"):
        assert decompressed(SimpleNamespace(format=gray, data=out.getvalue()), 100).shape == (
            2,
            3,
            3,
        )
    assert decompressed(SimpleNamespace(format=text, data=png()), 100).shape == (2, 3, 3)


def test_images_are_resized_by_the_nearest_pixel_with_the_corners_in_the_corners():
    """As Rosetta resizes what it records: 2 rows to 4 are 0, 0, 1, 1, not 0, 0, 0, 1."""
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    np.testing.assert_array_equal(resized(image[:2, :2], 4, 4)[:, 0], image[[0, 0, 1, 1], 0])
    np.testing.assert_array_equal(resized(image[:2, :2], 4, 4)[0], image[0, [0, 0, 1, 1]])
    small = resized(image, 2, 3)  # of 6 columns 0, 2.5 and 5: halves to the even one
    np.testing.assert_array_equal(small, image[[0, 3]][:, [0, 2, 5]])
    assert small.flags.c_contiguous
    assert resized(image, 0, 0) is image and resized(image, 4, 6) is image
    wide = np.broadcast_to(np.arange(480)[:, None, None], (480, 640, 3)).astype(np.uint16)
    rows = resized(wide, 512, 512)[:, 0, 0]
    assert (rows[[0, 1, 2, 8, 9, 256, 511]] == [0, 1, 2, 7, 8, 240, 479]).all()


def test_an_image_that_is_to_be_turned_is_refused() -> None:
    """A phone's JPEG: on its side, with a tag that some decoders obey and others do not."""
    files = {}
    for orientation in (0, 1, 6):
        exif = Image.Exif()
        exif[0x0112] = orientation
        out = io.BytesIO()
        Image.fromarray(PIXELS).save(out, "JPEG", exif=exif)
        files[orientation] = SimpleNamespace(format="jpeg", data=out.getvalue())
    assert decompressed(files[0], 100).shape == decompressed(files[1], 100).shape == PIXELS.shape
    with pytest.raises(BadMessage, match=r"EXIF orientation 6, .*set rotate"):
        decompressed(files[6], 100)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_whatever_stands_in_the_tags_is_a_bad_message_or_an_image() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.fromarray(PIXELS).save(out, "JPEG", exif=exif)
    data, random = out.getvalue(), np.random.default_rng(3)
    start = data.index(b"Exif") + 6
    seen = set()
    for _ in range(300):
        broken = bytearray(data)
        for index in random.integers(start, start + 26, 3):
            broken[index] = random.integers(0, 256)
        try:
            seen.add(decompressed(SimpleNamespace(format="jpeg", data=bytes(broken)), 100).shape)
        except BadMessage as error:
            assert "\n" not in str(error)
            seen.add("refused")
    assert seen == {PIXELS.shape, "refused"}
