"""Images that must be dropped, each for a reason that the status gives, and those that must not."""

from __future__ import annotations

import io
import random
import time

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from builtin_interfaces.msg import Time
from PIL import Image as Pillow
from sensor_msgs.msg import CompressedImage, Image

from support.wait import repeating, wait_until
from vla_ros.core.types import CommandKind
from vla_ros.core.types import PolicyState as State
from vla_ros.ros.common.convert import stamp_of, to_time

SUPPORTED = ("rgb8", "bgr8", "rgba8", "bgra8", "mono8")
YUV = ("yuv422_yuy2", "yuyv", "yuv422", "uyvy")

#: Fields that differ from a good 8 x 6 rgb8 image, and what the status must say.
BAD_FIELDS = {
    "bayer": ({"encoding": "bayer_rggb12"}, "image_proc's debayer node makes colors of it"),
    "16 bit": ({"encoding": "16UC1"}, "encoding '16UC1'"),
    "float depth": ({"encoding": "32FC1"}, "encoding '32FC1'"),
    "yuv": ({"encoding": "nv21"}, "of usb_cam pixel_format mjpeg2rgb or yuyv2rgb"),
    "no order of colors": ({"encoding": "8UC3"}, "let its publisher say bgr8 or rgb8"),
    "no encoding": ({"encoding": ""}, "encoding ''"),
    "upper case": ({"encoding": "RGB8"}, "encoding 'RGB8'"),
    "terminal codes": ({"encoding": "\x1b[2J\n"}, "encoding '\\x1b[2J\\n'"),
    "long encoding": ({"encoding": "x" * 100_000}, "encoding 'xxxx"),
    "step too short": ({"step": 23}, "step 23 is too short for 8 pixels of rgb8"),
    "step of zero": ({"step": 0}, "step 0 is too short"),
    "data too short": ({"data": bytes(143)}, "data has 143 bytes, step x height is 24 x 6 = 144"),
    "data too long": ({"data": bytes(145)}, "data has 145 bytes"),
    "no data": ({"data": b""}, "data has 0 bytes"),
    "step of the width": ({"encoding": "rgba8"}, "step 24 is too short for 8 pixels of rgba8"),
    "no size": ({"width": 0, "height": 0, "step": 0, "data": b""}, "image size is 0x0"),
    "no width": ({"width": 0, "step": 0, "data": b""}, "image size is 0x6"),
    "8k header, 3 bytes": (
        {"width": 7680, "height": 4320, "step": 23040, "data": b"abc"},
        "image of 7680x4320 exceeds max_image_pixels 2304000",
    ),
    "sizes that overflow 32 bits": (
        {"width": 2**32 - 1, "height": 2**32 - 1, "step": 2**32 - 1, "data": b"abc"},
        "image of 4294967295x4294967295 exceeds",
    ),
}


YUYV = {"encoding": "yuv422_yuy2", "step": 16, "data": bytes(range(96))}
PATIENT = 5.0  # max_age_s: what is judged is the frame, and not how late a busy machine brings it


def shifted(rig, seconds):
    """A good frame whose stamp lies this far from now."""
    message = rig.frame()
    message.header.stamp = to_time(stamp_of(message.header.stamp) + round(seconds * 1e9))
    return message


def with_fields(rig, fields):
    message = rig.frame()
    for name, value in fields.items():
        if name == "data":
            message.data = type(message.data)("B", value)
        else:
            setattr(message, name, value)
    return message


def dropped(rig, message, says):
    """Show one bad image, or what the function makes; the node counts it and says why."""
    before = rig.now()
    rig.show(message() if callable(message) else message)
    after = wait_until(
        lambda: (s := rig.now()).frames_dropped > before.frames_dropped and s, 5.0, says
    )
    assert after.frames_dropped == before.frames_dropped + 1
    assert after.frames_received - before.frames_received in (0, 1)  # by stamp or by content
    assert says in after.last_drop
    assert len(after.last_drop) < 300
    return after


def runs(rig):
    """It takes good frames and acts on them."""
    rig.instruct("reach")
    with rig.filming():
        rig.expect(State.RUNNING)
        rig.wait_for(CommandKind.POLICY, len(rig.commands))
    rig.call("stop")


def test_every_kind_of_bad_image_is_dropped_with_the_reason(start_policy):
    rig = start_policy(max_age_s=PATIENT)
    rig.bring_up()
    rig.connect()
    for fields, says in BAD_FIELDS.values():
        status = dropped(rig, with_fields(rig, fields), says)
        if "encoding '" in says:
            known = ", ".join((*SUPPORTED, *YUV))
            assert f" is not supported, only {known}: " in status.last_drop
    runs(rig)

    # All of them again amid good ones: the robot goes on as if they had not come.
    rig.instruct("reach again")  # the one before was stopped
    with rig.filming():
        running = rig.expect(State.RUNNING)

        def counted():
            """The node keeps the newest frame alone: they are shown until one was seen."""
            for fields, _ in BAD_FIELDS.values():
                rig.show(with_fields(rig, fields))
            return rig.status.last.frames_dropped > running.frames_dropped

        wait_until(counted, 10.0, "a dropped frame", every=0.1)
        assert rig.status.last.state == State.RUNNING
    rig.check_commands(PATIENT)


def test_stamps_that_cannot_be_are_dropped(start_policy):
    rig = start_policy(max_age_s=PATIENT)
    rig.bring_up()
    rig.connect()
    zero = rig.frame()
    zero.header.stamp = Time()
    dropped(rig, zero, "stamp is zero: the camera driver must fill header.stamp")
    before_1970 = rig.frame()
    before_1970.header.stamp = Time(sec=-5, nanosec=7)
    dropped(rig, before_1970, "stamp is zero")
    dropped(rig, lambda: shifted(rig, 10.0), "ms in the future: synchronize the clocks")
    last = rig.frame()
    last.header.stamp = Time(sec=2**31 - 1, nanosec=2**32 - 1)
    dropped(rig, last, "in the future")
    old = dropped(rig, lambda: shifted(rig, -PATIENT - 0.2), "older than max_age: ").last_drop
    assert int(old.split()[-2]) >= 1e3 * (PATIENT + 0.2), old

    received = rig.now().frames_received
    good = rig.frame()
    rig.show(good)
    wait_until(lambda: rig.now().frames_received == received + 1, 5.0, "the good frame")
    dropped(rig, good, "stamp repeated")
    earlier = rig.frame()
    earlier.header.stamp = to_time(stamp_of(good.header.stamp) - 20_000_000)
    dropped(rig, earlier, "out of order by 20.0 ms")
    runs(rig)


@pytest.mark.parametrize("encoding", SUPPORTED)
def test_supported_encodings_come_through_with_their_colors(encoding):
    from vla_ros.core.pixels import image_of

    rgb = np.random.default_rng(3).integers(0, 256, (5, 7, 3), np.uint8)
    alpha = np.full((5, 7, 1), 9, np.uint8)
    sent = {
        "rgb8": rgb,
        "bgr8": rgb[:, :, ::-1],
        "rgba8": np.concatenate([rgb, alpha], 2),
        "bgra8": np.concatenate([rgb[:, :, ::-1], alpha], 2),
        "mono8": rgb[:, :, :1],
    }[encoding]
    wanted = np.repeat(rgb[:, :, :1], 3, 2) if encoding == "mono8" else rgb
    for padding in (0, 11):
        rows = np.concatenate([sent.reshape(5, -1), np.full((5, padding), 255, np.uint8)], 1)
        message = raw_image(rows, encoding)
        got = image_of(message, 1000)
        assert got.dtype == np.uint8
        assert got.flags.c_contiguous
        np.testing.assert_array_equal(got, wanted)


def raw_image(rows, encoding):
    message = Image(height=5, width=7, encoding=encoding, step=rows.shape[1])
    message.data.frombytes(rows.tobytes())
    return message


def test_supported_encodings_are_taken_in_by_the_node(start_policy):
    rig = start_policy(max_age_s=PATIENT)
    rig.bring_up()
    rig.connect()
    dropped_before = rig.now().frames_dropped
    for channels, encoding in ((3, "rgb8"), (3, "bgr8"), (4, "rgba8"), (4, "bgra8"), (1, "mono8")):
        received = rig.now().frames_received
        step = 8 * channels + 5
        rig.show(with_fields(rig, {"encoding": encoding, "step": step, "data": bytes(6 * step)}))
        wait_until(lambda n=received: rig.now().frames_received == n + 1, 5.0, encoding)
    assert rig.now().frames_dropped == dropped_before


@pytest.mark.parametrize("encoding", YUV)
def test_yuv_is_converted_as_cv_bridge_does(encoding):
    """Bit for bit, also beyond the limited range; rows may be longer than their pixels."""
    cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
    from vla_ros.core.pixels import image_of

    uyvy = encoding in ("yuv422", "uyvy")
    code = cv2.COLOR_YUV2RGB_UYVY if uyvy else cv2.COLOR_YUV2RGB_YUY2
    sent = np.random.default_rng(3).integers(0, 256, (64, 128, 2), np.uint8)
    rows = np.concatenate([sent.reshape(64, -1), np.full((64, 10), 255, np.uint8)], 1)
    message = Image(height=64, width=128, encoding=encoding, step=rows.shape[1])
    message.data.frombytes(rows.tobytes())
    got = image_of(message, 10_000)
    np.testing.assert_array_equal(got, cv2.cvtColor(sent, code))
    assert got.flags.c_contiguous


def test_yuv_of_known_colors():
    """White, black and the red of color bars (ITU-R BT.601, 75 %), without OpenCV."""
    from vla_ros.core.pixels import BadMessage, image_of

    pixels = bytes([235, 128, 16, 128, 65, 100, 65, 212])
    message = Image(height=1, width=4, encoding="yuv422_yuy2", step=8)
    message.data.frombytes(pixels)
    white, black, red, same = image_of(message, 100)[0].tolist()
    assert (white, black) == ([255] * 3, [0] * 3)
    assert red == same and np.abs(np.array(red) - (191, 0, 0)).max() <= 1
    message.width = 3
    with pytest.raises(BadMessage, match="pixels in pairs, the image 3 in a row"):
        image_of(message, 100)


def test_the_default_of_usb_cam_runs(start_policy):
    rig = start_policy(max_age_s=PATIENT)
    rig.bring_up("reach")
    with repeating(lambda: rig.show(with_fields(rig, YUYV)), 0.05):
        rig.expect(State.RUNNING)
    assert rig.now().frames_dropped == 0


def test_a_mosaic_runs_where_cv_bridge_is_installed(start_policy):
    pytest.importorskip("cv_bridge", reason="cv_bridge is not installed")
    rig = start_policy(max_age_s=PATIENT)
    rig.bring_up("reach")
    mosaic = {"encoding": "bayer_rggb8", "step": 8, "data": bytes(range(48))}
    with repeating(lambda: rig.show(with_fields(rig, mosaic)), 0.05):
        rig.expect(State.RUNNING)
    assert rig.now().frames_dropped == 0
    line = "bayer_rggb8 images are converted by cv_bridge"
    assert rig.node.log.count(line) == 1


# Compressed


def encoded(rig, kind="JPEG", size=(8, 6), mode="RGB"):
    stream = io.BytesIO()
    color = int(stamp_of(rig.frame().header.stamp)) % 250
    Pillow.new(mode, size, color).save(stream, kind)
    return stream.getvalue()


def compressed(rig, data, kind="jpeg"):
    message = CompressedImage(format=kind)
    message.header.stamp = rig.ros.node.get_clock().now().to_msg()
    message.data.frombytes(data)
    return message


def deep(rig):
    """A depth image's PNG: 16 bits a pixel."""
    stream = io.BytesIO()
    Pillow.fromarray(np.arange(64 * 48, dtype=np.uint16).reshape(48, 64)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.long
def test_compressed_images_are_decoded_and_corrupt_ones_dropped(start_policy):
    rig = start_policy(image_transport="compressed", max_age_s=PATIENT)
    rig.bring_up("reach")  # without a task nothing is decoded
    rig.expect(lambda s: s.instruction == "reach")
    rig.connect(CompressedImage, "image/compressed")
    rig.call("resume")
    rig.expect(lambda s: s.instruction == "reach")

    def show(data, kind="jpeg"):
        message = compressed(rig, data, kind)
        rig.show(message, "image/compressed")

    def is_dropped(data, says, kind="jpeg"):
        before = rig.status.last.frames_dropped
        show(data, kind)
        wait_until(lambda: rig.status.last.frames_dropped == before + 1, 5.0, says)
        assert says in rig.status.last.last_drop
        assert len(rig.status.last.last_drop) < 300

    neither = "is neither JPEG nor PNG"
    photo = encoded(rig, size=(64, 48))
    is_dropped(photo[: len(photo) // 2], "format 'jpeg', is corrupt")
    is_dropped(photo[:20], neither)
    is_dropped(b"\xff\xd8" + bytes(500), "")
    is_dropped(b"", neither)
    is_dropped(b"hello", neither)
    is_dropped(encoded(rig, "GIF", mode="L"), neither)
    is_dropped(encoded(rig, "BMP"), neither, kind="x" * 100_000)
    is_dropped(encoded(rig, "PNG", size=(7680, 4320), mode="1"), "7680x4320 exceeds")
    for kind in ("JPEG", "PNG"):
        for mode in ("RGB", "L"):
            received = rig.status.last.frames_received
            show(encoded(rig, kind, mode=mode), kind.lower())
            wait_until(lambda n=received: rig.status.last.frames_received == n + 1, 5.0, kind)
    is_dropped(deep(rig), "pixels of I;16, not of 8 bits")


def test_decompressed_images_have_the_right_colors_and_garbage_is_a_bad_message():
    from vla_ros.core.pixels import BadMessage, decompressed

    rgb = np.random.default_rng(4).integers(0, 256, (48, 64, 3), np.uint8)
    rgb[:, :32] = (200, 40, 10)  # flat: JPEG keeps it
    files = {}
    for kind in ("PNG", "JPEG"):
        stream = io.BytesIO()
        Pillow.fromarray(rgb).save(stream, kind)
        files[kind] = stream.getvalue()
        message = CompressedImage(format=kind.lower())
        message.data.frombytes(files[kind])
        got = decompressed(message, 10_000)
        wrong = np.abs(got[:, :16].astype(int) - rgb[:, :16]).max()
        assert wrong == 0 if kind == "PNG" else wrong < 12
    random = np.random.default_rng(5)
    for data in files.values():
        for _ in range(150):
            broken = bytearray(data)
            for index in random.integers(0, min(200, len(broken)), 5):
                broken[index] = random.integers(0, 256)
            message = CompressedImage(format="jpeg")
            message.data.frombytes(bytes(broken[: random.integers(1, len(broken) + 1)]))
            try:
                image = decompressed(message, 10_000)
            except BadMessage as error:
                assert "\n" not in str(error)
                assert len(str(error)) < 200
            else:
                assert image.dtype == np.uint8
                assert image.shape[2] == 3
                assert image.size <= 30_000


def test_stop_is_answered_beside_a_camera_that_takes_longer_to_decode_than_to_send(start_policy):
    """4K JPEG at 30 Hz, which no machine keeps up with: it is decoded beside the thread that serves
    ~/stop."""
    from vla_ros.core.pixels import decompressed

    noise = np.random.default_rng(6).integers(0, 256, (270, 480, 3), np.uint8)
    stream = io.BytesIO()
    Pillow.fromarray(noise).resize((3840, 2160)).save(stream, "JPEG", quality=90)
    rig = start_policy(
        policy="zero",
        max_age_s=PATIENT,
        detect_frozen=False,
        image_transport="compressed",
        max_image_pixels=9_000_000,
    )
    message = compressed(rig, stream.getvalue())

    def show():
        message.header.stamp = rig.ros.node.get_clock().now().to_msg()
        rig.show(message, "image/compressed")

    rig.bring_up("reach")
    answered, decoded = [], []
    for _ in range(5):
        began = time.monotonic()
        decompressed(message, 9_000_000)
        decoded.append(time.monotonic() - began)
    with repeating(show, 1 / 30):
        for _ in range(15):
            rig.expect(State.RUNNING, timeout=30.0)
            time.sleep(random.uniform(0.0, decoded[0]))  # at any moment of an image's decoding
            began = time.monotonic()
            rig.call("stop")
            answered.append(time.monotonic() - began)
            rig.call("resume")
    took, decode = np.median(answered), np.median(decoded)
    print(f"stop {1e3 * took:.1f} ms, an image {1e3 * decode:.1f} ms")
    assert took < decode / 3
