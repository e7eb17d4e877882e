"""Coverage-guided nonsense to the pure parts: what reads bytes and touches no ROS graph.

    make fuzz-pure                     each part for two minutes (SECONDS=120), with atheris
    python -m endurance.fuzz_pure cdr --seconds 600

Atheris (libFuzzer) changes bytes and keeps what reaches new code, in build/fuzz-pure/PART: the next
run goes on there. A part may raise what its callers expect and nothing else. Exit status: 0 nothing
was found, 1 something was: the bytes are in build/fuzz-pure/PART-found.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import yaml

ROOT = Path(__file__).resolve().parents[2]
OWN = ROOT / "build" / "fuzz-pure"
MAX_PIXELS = 1 << 16
Part = Callable[[bytes], None]


def image() -> Part:
    """Raw images of any encoding, size and step, and compressed ones."""
    from vla_ros.core.pixels import ENCODINGS, BadMessage, decompressed, image_of

    names = (*ENCODINGS, "", "bayer_rggb8")

    def run(data: bytes) -> None:
        if len(data) < 8:
            return
        kind, width, height, step, rest = data[0], data[1], data[2], data[3], data[4:]
        raw = SimpleNamespace(
            encoding=names[kind % len(names)], width=width, height=height, step=step, data=rest
        )
        with contextlib.suppress(BadMessage):
            assert image_of(raw, MAX_PIXELS).shape == (height, width, 3)
        with contextlib.suppress(BadMessage):
            shown = decompressed(SimpleNamespace(format="jpeg", data=data), MAX_PIXELS)
            assert shown.shape[2] == 3 and shown.size <= 3 * MAX_PIXELS

    return run


def cdr() -> Part:
    """Serialized messages: what passes the look at the structure ends inside its bytes."""
    from sensor_msgs.msg import JointState
    from trajectory_msgs.msg import JointTrajectory

    from vla_ros.core.pixels import BadMessage
    from vla_ros.msg import PolicyStatus
    from vla_ros.ros.common.serialized import (
        check,
        header_stamp,
        read_compressed,
        read_image,
        read_text,
    )

    kinds = (JointState, JointTrajectory, PolicyStatus)
    readers: list[Callable[[bytes], object]] = [
        header_stamp, read_image, read_compressed, read_text,
        *[partial(check, message_type=kind) for kind in kinds],
    ]  # fmt: skip

    def run(data: bytes) -> None:
        for reader in readers:
            with contextlib.suppress(BadMessage):
                reader(data)

    return run


def wire() -> Part:
    """What a worker says: reports, however they are cut; garbage is a ValueError."""
    from vla_ros.runtime.worker.wire import ReportStream

    def run(data: bytes) -> None:
        whole = _reports(ReportStream(), [data])
        assert _reports(ReportStream(), [data[:3], data[3:]]) == whole

    def _reports(stream: ReportStream, parts: list[bytes]) -> object:
        try:
            return [repr(report) for part in parts for report in stream.feed(part, 1)]
        except ValueError:
            return "garbage"

    return run


def mailbox() -> Part:
    """Letters of any number and size: the newest comes out as it went in."""
    import numpy as np

    from vla_ros.runtime.worker.mailbox import MAX_ARRAYS, MailboxReader, MailboxWriter

    writer = MailboxWriter(64, 256)
    reader = MailboxReader(writer.fileno(), writer.head_room, writer.array_room)

    def run(data: bytes) -> None:
        cuts = sorted(data[: 1 + data[0] % (MAX_ARRAYS + 1)]) if data else []
        head, *parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        arrays = [np.frombuffer(part, np.uint8) for part in parts]
        before = reader.newest
        try:
            number = writer.write(head, arrays)
        except ValueError:
            assert reader.newest == before
            return
        letter = reader.read(before)
        assert letter is not None and (letter.sequence, letter.head) == (number, head)
        assert [bytes(a) for a in letter.arrays] == [part for part in parts if part]

    return run


def bag(name: str = "cut.mcap") -> Part:
    """Files of a bag, whole, damaged or cut short."""
    from vla_ros.data.bags import Bag, BagError

    folder = Path(tempfile.mkdtemp())

    def run(data: bytes) -> None:
        (folder / name).write_bytes(data)
        with contextlib.suppress(BagError), Bag(folder / name) as opened:
            for message in opened.messages([topic.name for topic in opened.topics]):
                opened.decode(message)

    return run


def json_text() -> Part:
    """JSON: what is read is what Python's own reader has, and BadFile is all that is raised."""
    from vla_ros.core.files import BadFile, parse_json

    def run(data: bytes) -> None:
        try:
            found = parse_json(data, "x")
        except BadFile as error:
            assert "\n" not in str(error)
            return
        assert repr(found) == repr(json.loads(data.decode()))

    return run


def yaml_text() -> Part:
    """YAML: plain values, with the same from Python's own reader."""
    from vla_ros.core.files import BadFile
    from vla_ros.core.yaml_files import parse_yaml

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        try:
            found = parse_yaml(text, "x")
        except BadFile as error:
            assert "\n" not in str(error)
            return
        assert repr(found) == repr(yaml.safe_load(text))

    return run


def of_file(
    name: str, load: Callable[[], tuple[Callable[[Path], object], type[Exception]]]
) -> Callable[[], Part]:
    """A part for a reader of a path: it reads a file of these bytes, or raises its one error."""

    def part() -> Part:
        reader, expected = load()
        path = Path(tempfile.mkdtemp()) / name

        def run(data: bytes) -> None:
            path.write_bytes(data)
            try:
                reader(path)
            except expected as error:
                assert "\n" not in str(error)

        return run

    return part


def _arrays() -> tuple[Callable[[Path], object], type[Exception]]:
    from vla_ros.core.files import BadFile, read_arrays

    return read_arrays, BadFile


def _header() -> tuple[Callable[[Path], object], type[Exception]]:
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.io.files import header

    return header, CheckpointError


def _tokenizer() -> tuple[Callable[[Path], object], type[Exception]]:
    from vla_ros.engine.errors import CheckpointError
    from vla_ros.engine.io.tokenizer_file import open_tokenizer

    return lambda path: open_tokenizer(path).encode("Pick up: 12 \u00e4"), CheckpointError


def urdf() -> Part:
    """A robot's description, for the page and for the limits of its joints."""
    from vla_ros.core.urdf import read_joints
    from vla_ros.viz.robot_model import read

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for reader in (read_joints, lambda text: read(text).places({})):
            with contextlib.suppress(ValueError):
                reader(text)

    return run


PARTS: dict[str, Callable[[], Part]] = {
    "image": image, "cdr": cdr, "wire": wire, "mailbox": mailbox, "bag": bag,
    "database": partial(bag, "cut.db3"), "json": json_text, "yaml": yaml_text,
    "arrays": of_file("x.npz", _arrays), "header": of_file("x.safetensors", _header),
    "tokenizer": of_file("tokenizer.json", _tokenizer), "urdf": urdf,
}  # fmt: skip


_TEXTS = {
    "json": ['{"a": [1, -2.5e3, "\\u00e9\\"", null, true]}', "[" * 70],
    "yaml": [
        "a: &x {b: [1, 2.5, no]}\nc: *x\nd: {<<: *x, e: 2020-01-01}\n",
        "- |\n  text\n- !!int 7\n",
    ],
    "urdf": [
        '<robot name="r"><link name="a"><visual><geometry><box size="1 2 3"/></geometry>'
        '</visual></link><link name="b"/><joint name="j" type="revolute"><parent link="a"/>'
        '<child link="b"/><origin xyz="1 2 3" rpy="0 0 1"/><axis xyz="0 0 1"/>'
        '<limit velocity="1"/><mimic joint="k" multiplier="2"/></joint></robot>'
    ],
}


def _tiny_tokenizer() -> bytes:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    made = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2, "<s>": 3}, [("a", "b")]))
    made.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "_")])
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>"])
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 3)])
    return made.to_str().encode()


def _seeds(part: str) -> list[bytes]:
    """A good one each, from which the fuzzer sets out."""
    if part in ("bag", "database"):
        from support.bags import START, film, task, write_bag

        storage, ending = ("mcap", "*.mcap") if part == "bag" else ("sqlite3", "*.db3")
        frames = film(1) if part == "bag" else []
        with tempfile.TemporaryDirectory() as folder:
            write_bag(Path(folder) / "b", [task(START, "reach"), *frames], storage)
            return [next((Path(folder) / "b").glob(ending)).read_bytes()]
    if part in _TEXTS:
        return [text.encode() for text in _TEXTS[part]]
    if part == "arrays":
        import numpy as np

        streams = [io.BytesIO(), io.BytesIO()]
        np.save(streams[0], np.arange(3.0))
        np.savez_compressed(streams[1], x=np.arange(3.0))
        return [stream.getvalue() for stream in streams]
    if part == "header":
        text = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        return [struct.pack("<Q", len(text)) + text + bytes(4)]
    if part == "tokenizer":
        return [_tiny_tokenizer()]
    if part == "wire":
        from vla_ros.core.types import PolicyInfo
        from vla_ros.runtime.worker.wire import PolicyLoaded, encode_report

        return [encode_report(PolicyLoaded(PolicyInfo("zero"), 8))]
    if part == "cdr":  # a message of nothing, and one with a name and a number
        named = struct.pack("<4xiII4sI4sI4xd", 1, 2, 4, b"map\0", 1, b"a\0\0\0", 1, 0.5)
        return [b"\0\1\0\0" + bytes(64), b"\0\1\0\0" + named[4:]]
    return [bytes([0, 2, 2, 6, *range(12)])]


def _child(part: str, rest: list[str]) -> None:
    import atheris

    with atheris.instrument_imports(include=["vla_ros", "rosbags"]):
        run = PARTS[part]()
    atheris.Setup([part, *rest], run)
    atheris.Fuzz()


def _fuzz(part: str, seconds: int) -> bool:
    """One part in a process of its own; whether nothing was found."""
    corpus, found = OWN / part, OWN / f"{part}-found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(_seeds(part)):
        (corpus / f"seed{number}").write_bytes(seed)
    words = [f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096", "-max_len=8192"]
    words += [f"-artifact_prefix={found}/", "-print_final_stats=1", str(corpus)]
    command = [sys.executable, "-m", "endurance.fuzz_pure", part, "--child", *words]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    reached = [int(number) for number in re.findall(r" cov: (\d+) ", done.stderr)] or [0]
    executed = re.findall(r"number_of_executed_units: +(\d+)", done.stderr) or ["0"]
    kept = len(list(corpus.iterdir()))
    print(
        f"{part}: {executed[-1]} executed, places reached {reached[0]} to {reached[-1]}, "
        f"{kept} inputs kept; {'nothing was found' if not done.returncode else 'FOUND'}",
        flush=True,
    )
    if done.returncode:
        print(done.stderr[-3000:])
    return done.returncode == 0


def main() -> int:
    """Run, count, say."""
    if "--child" in sys.argv:
        at = sys.argv.index("--child")
        _child(sys.argv[at - 1], sys.argv[at + 1 :])
    parser = argparse.ArgumentParser(prog="fuzz_pure", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=int, default=120, help="of each part (120)")
    args = parser.parse_args()
    if wrong := set(args.parts) - set(PARTS):
        parser.error(f"{sorted(wrong)[0]}: there are {', '.join(PARTS)}")
    good = [_fuzz(part, args.seconds) for part in args.parts or PARTS]
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
