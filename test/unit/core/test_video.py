"""Video of a camera: every image of its own moment, and none that is made of a lost one."""

from __future__ import annotations

import random
import sys

import pytest

pytest.importorskip("av", reason="PyAV is not installed: pip install '.[video]'")

from support.video import packets, shade, shade_of
from vla_ros.core.pixels import BadMessage
from vla_ros.core.video import VideoDecoder, codec_of

CODECS = {"libx264": "h264", "libx265": "h265"}
PERIOD = 33_000_000


def decoded(given, format_, lost=(), most=1_000_000):
    """Number of each packet -> its image's gray, or why it has none."""
    decoder, found = VideoDecoder(most), {}
    for i, packet in enumerate(given):
        if i in lost:
            continue
        try:
            found[i] = shade_of(decoder.put(1 + i * PERIOD, format_, packet))
        except BadMessage as error:
            found[i] = str(error)
    return found


@pytest.fixture(scope="module", params=CODECS)
def film(request):
    return packets(40, request.param), CODECS[request.param]


def test_every_packet_is_its_own_image(film):
    given, format_ = film
    found = decoded(given, format_)
    assert all(abs(found[i] - shade(i)) <= 2 for i in range(40)), found


@pytest.mark.parametrize("lost", [(13,), (13, 14, 15), (10,), (0,), range(12, 19)])
def test_after_a_loss_nothing_is_decoded_before_the_next_key_frame(film, lost):
    given, format_ = film
    found = decoded(given, format_, lost)
    after = next(i for i in found if i > lost[0])
    key = next(i for i in (10, 20, 30) if i > lost[-1])
    for i, what in found.items():
        if after <= i < key:
            assert "nothing is decoded before the next key frame" in what, (i, what)
        else:
            assert abs(what - shade(i)) <= 2, (i, what)


def test_frames_whose_numbers_are_the_same_again_are_lost_too():
    """A number of 4 bits: 16 frames later it follows again."""
    found = decoded(packets(60, key_every=600), "h264", range(20, 36))
    assert all("frames before a packet were lost" in found[i] for i in range(36, 60)), found


REFUSED = {
    "an encoder that reorders": ({"b_frames": "2", "tune": "fastdecode"}, {}, "reorders frames"),
    "images too large": ({}, {"most": 10_000}, "its images of 160x128 exceed max_image_pixels"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_streams_that_are_refused_with_the_reason(case):
    encoder, decoder, says = REFUSED[case]
    found = decoded(packets(12, **encoder), "h264", **decoder)
    assert all(says in what for what in found.values()), found


@pytest.mark.parametrize(
    ("format_", "says"),
    [("vp9", "only h264 and h265"), ("", "only h264 and h265"), ("av1", "only h264 and h265")],
)
def test_other_codecs_are_refused(format_, says):
    with pytest.raises(BadMessage, match=says):
        VideoDecoder(1000).put(1, format_, b"\0\0\0\1abc")


def test_bytes_that_are_no_stream():
    decoder = VideoDecoder(1000)
    for data, says in (
        (b"", "start code"),
        (b"\0\0\0\x20abcd", "start code"),
        (b"\0\0\0\1", "no key frame"),
        (b"\0\0\0\1\x67", "cut off"),
        (b"\0\0\1" + bytes(17 << 20), "at most 16,777,216 are read"),
    ):
        with pytest.raises(BadMessage, match=says):
            VideoDecoder(1000).put(1, "h264", data)
        with pytest.raises(BadMessage):
            decoder.put(1, "h264", data)


def test_damaged_packets_give_images_or_reasons(film):
    given, format_ = film
    draw = random.Random(3)
    for _ in range(60):
        broken = []
        for packet in given[:6]:
            data = bytearray(packet)
            for _ in range(draw.randrange(4)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            broken.append(bytes(data[: draw.randrange(1, len(data) + 1)]))
        for what in decoded(broken, format_).values():
            assert isinstance(what, int) or "\n" not in what


def test_names_of_encoders():
    for name in ("h264", "libx264", "H264_nvenc", "h264_vaapi;nv12;bgr8;bgr8"):
        assert codec_of(name) == "h264"
    for name in ("h265", "hevc", "hevc_nvenc", "libx265"):
        assert codec_of(name) == "hevc"
    for name in ("jpeg", "rgb8; jpeg compressed bgr8", "png", "av1", ""):
        assert codec_of(name) == ""


def test_without_pyav_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(BadMessage, match=r"pip install 'vla_ros\[video\]'"):
        VideoDecoder(1000).put(1, "h264", b"\0\0\0\1abc")
