"""Our pixels against cv_bridge's: its answers for every encoding, recorded, and itself where it is
installed (tools/golden/cv_bridge)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed")

from vla_ros.core.pixels import ENCODINGS, BadMessage
from vla_ros.ros.common.images import BRIDGED, pixels_of

ROOT = Path(__file__).resolve().parents[4]
with np.load(ROOT / "test" / "golden" / "cv_bridge.npz") as file:
    GOLDEN = dict(file)
NAMES = [key.removeprefix("sent ") for key in GOLDEN if key.startswith("sent ")]
CONVERTED = [name for name in NAMES if f"rgb {name}" in GOLDEN]
#: sensor_msgs' newer names, which cv_bridge does not know yet: the same bytes under the older one.
RENAMED = {"uyvy": "yuv422", "yuyv": "yuv422_yuy2"}
MONO16 = "mono16"  # cv_bridge makes a black image of depth in millimetres


def image(name: str, sent: np.ndarray, padding: int = 0, big: bool = False) -> SimpleNamespace:
    rows = np.concatenate([sent, np.full((len(sent), padding), 255, np.uint8)], 1)
    return SimpleNamespace(
        encoding=name, height=len(sent), width=6, is_bigendian=big, step=rows.shape[1],
        data=rows.tobytes(),
    )  # fmt: skip


def test_what_we_convert_is_what_cv_bridge_converts_and_two_names_more() -> None:
    assert {*ENCODINGS, *BRIDGED} == {*CONVERTED, *RENAMED} - {MONO16}
    assert len(NAMES) == 52


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("name", ENCODINGS)
def test_our_answer_is_cv_bridge_s_to_the_bit(name: str, padding: int) -> None:
    older = RENAMED.get(name, name)
    got = pixels_of(image(name, GOLDEN[f"sent {older}"], padding), 100)
    np.testing.assert_array_equal(got, GOLDEN[f"rgb {older}"])
    assert got.flags.c_contiguous


@pytest.mark.parametrize("name", sorted({*NAMES} - {*CONVERTED} - {*RENAMED} | {MONO16}))
def test_what_cv_bridge_refuses_is_refused_and_so_is_mono16(name: str) -> None:
    with pytest.raises(BadMessage, match=f"encoding '{name}' is not supported"):
        pixels_of(image(name, GOLDEN[f"sent {name}"]), 100)


@pytest.mark.parametrize("name", BRIDGED)
def test_cv_bridge_converts_what_we_do_not_know_padded_or_of_the_other_byte_order(name) -> None:
    pytest.importorskip("cv_bridge", reason="cv_bridge is not installed")
    sent, wanted = GOLDEN[f"sent {name}"], GOLDEN[f"rgb {name}"]
    for padding in (0, 2, 5):
        np.testing.assert_array_equal(pixels_of(image(name, sent, padding), 100), wanted)
    if name.endswith("16"):
        turned = sent.view(np.uint16).byteswap().view(np.uint8)
        np.testing.assert_array_equal(pixels_of(image(name, turned, 2, big=True), 100), wanted)
    with pytest.raises(BadMessage, match="is too short for 6 pixels"):
        pixels_of(SimpleNamespace(**{**vars(image(name, sent)), "step": 5}), 100)
    with pytest.raises(BadMessage, match="exceeds max_image_pixels 20"):
        pixels_of(image(name, sent), 20)


PROBE = """
from types import SimpleNamespace
from vla_ros.core.pixels import BadMessage
from vla_ros.ros.common.images import pixels_of
for _ in range(2):
    try:
        pixels_of(SimpleNamespace(encoding="bayer_rggb8", height=4, width=4, step=4, is_bigendian=0,
                                  data=bytes(16)), 100)
    except BadMessage as error:
        print(error)
"""
ABSENT = "import sys; sys.modules['cv_bridge'] = None"
#: How a cv_bridge that was compiled for another NumPy fails: its class loads, its module does not.
OF_ANOTHER_NUMPY = """
import sys, types
class CvBridge:
    def encoding_to_dtype_with_channels(self, encoding):
        raise SystemError("initialization of cv_bridge_boost raised unreported exception")
sys.modules["cv_bridge"] = types.SimpleNamespace(CvBridge=CvBridge)
"""


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (ABSENT, "install cv_bridge (apt install ros-$ROS_DISTRO-cv-bridge), which converts it"),
        (OF_ANOTHER_NUMPY, "cv_bridge does not load: SystemError: initialization of"),
    ],
)
def test_without_a_cv_bridge_that_loads_the_refusal_says_what_to_do(before: str, why: str) -> None:
    command = [sys.executable, "-c", before + PROBE]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    first, second = found.stdout.splitlines()
    assert first == second and "image_proc's debayer node makes colors of it" in first
    assert why in first
