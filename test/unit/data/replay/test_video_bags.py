"""Bags of cameras that send video: their frames, and rows of a data set from them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")
pytest.importorskip("av", reason="PyAV is not installed: pip install '.[video]'")

from support.bags import START, T, action, film_of_video, task, write_bag
from support.video import packets, shade, shade_of
from vla_ros.core.pixels import image_of
from vla_ros.data.bag_frames import pick, read_frames, scan
from vla_ros.data.bags import Bag, BagError, BagMessage
from vla_ros.data.lerobot.from_bags import BagOptions, Bags

TRANSPORTS = ("ffmpeg", "foxglove", "compressed")
IMAGE = "sensor_msgs/msg/Image"


@pytest.fixture(scope="module")
def film():
    return packets(24)


def bag_of(path, film, transport, left_out=(), storage="mcap", compressed="none"):
    entries = [task(START - T, "reach")]
    entries += [e for i, e in enumerate(film_of_video(film, transport)) if i not in left_out]
    entries += [action(START + i * T + 1, [i / 100] * 7) for i in range(len(film))]
    entries.sort(key=lambda entry: entry.at_ns)
    return write_bag(path, entries, storage, compressed=compressed)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_frames_of_a_replay_are_images(tmp_path, film, transport, storage):
    with Bag(bag_of(tmp_path / "bag", film, transport, storage=storage)) as bag:
        picked = pick(bag.topics, {})
        assert (picked.topics["image"].kind, picked.compressed) == (IMAGE, False)
        frames = scan(bag, picked, ("rgb8",), 10.0)
        shown = list(read_frames(bag, picked, frames, (), T // 2))
        topic = picked.topics["image"].name
        images = [image_of(bag.decode(BagMessage(topic, IMAGE, 0, f.parts[-1].data)), 1 << 20)
                  for f in shown]  # fmt: skip
        assert bag.notes == []
    assert [f.image_ns for f in shown] == [START + i * T for i in range(24)]
    assert [abs(shade_of(image) - shade(i)) <= 2 for i, image in enumerate(images)] == [True] * 24


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_rows_of_a_data_set_have_the_image_of_their_moment_and_none_of_a_lost_frame(
    tmp_path, film, transport
):
    path = bag_of(tmp_path / "bag", film, transport, (13,), compressed="message")
    with Bags([path], BagOptions(max_age_s=0.9 * T / 1e9)) as bags:
        rows = list(bags.rows())
        notes = bags.notes()
    numbers = [round(float(row.numbers["action"][0]) * 100) for row in rows]
    assert numbers == [*range(13), *range(20, 24)]
    for number, row in zip(numbers, rows, strict=True):
        assert abs(shade_of(row.images["main"]) - shade(number)) <= 2
    [line] = [note for note in notes if "packets" in note]
    assert line == (
        f"/image/{transport}: 6 of 23 packets left out: video: frames before a packet were lost:"
        " nothing is decoded before the next key frame"
    )


def test_a_bag_of_which_nothing_can_be_decoded_is_refused_with_the_reason(tmp_path, film):
    path = bag_of(tmp_path / "bag", film[1:9], "ffmpeg")
    with pytest.raises(BagError, match="no packet is decoded: video: no key frame has come yet"):
        Bags([path], BagOptions())


def test_a_message_that_is_no_packet_is_a_damaged_bag(tmp_path, film):
    path = bag_of(tmp_path / "bag", film, "foxglove")
    file = next(path.glob("*.mcap"))
    with Bag(path) as bag:
        good = next(bag._recorded({"/image/foxglove"}))
    content = file.read_bytes()
    at = content.index(good.data)
    cut = np.uint32(2**31).tobytes()  # a length beyond the message
    file.write_bytes(content[: at + 12] + cut + content[at + 16 :])
    with Bag(path) as bag, pytest.raises(BagError, match="damaged"):
        list(bag.messages(["/image/foxglove"]))
