"""A stranger's file is read whole, or refused in one line before it costs anything."""

from __future__ import annotations

import json
import os
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from support.hostile import GB, SPECIAL, bounded, laughs
from vla_ros.core.files import (
    BadFile,
    open_file,
    parse_json,
    read_arrays,
    read_bytes,
    read_json,
    read_text,
    sha256_of,
)
from vla_ros.core.yaml_files import compose_yaml, parse_yaml, read_yaml

READERS = {
    "bytes": lambda path: read_bytes(path, 1000),
    "text": read_text,
    "json": read_json,
    "yaml": read_yaml,
    "nodes": compose_yaml,
}


def refusal(read, *arguments) -> str:
    with pytest.raises(BadFile) as caught:
        read(*arguments)
    text = str(caught.value)
    assert "\n" not in text and len(text) < 400
    return text


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_of_a_size_is_refused_before_it_is_read(tmp_path, kind, reader):
    path = tmp_path / "config.json"
    SPECIAL[kind](path)
    told = refusal(READERS[reader], path)
    assert str(path) in told and ("a file is wanted" in told or "bytes" in told)


def test_a_pipe_that_takes_a_files_place_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "config.json"
    path.write_text("{}")
    seen = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(type(path), "stat", lambda self: seen)
    assert "a named pipe" in refusal(open_file, path)


def test_a_file_that_is_missing_is_an_error_of_the_system(tmp_path):
    for read in READERS.values():
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "none.json")


def test_a_link_to_a_file_is_followed(tmp_path):
    (tmp_path / "blob").write_text('{"a": 1}')
    (tmp_path / "config.json").symlink_to("blob")
    assert read_json(tmp_path / "config.json") == {"a": 1}


def test_a_limit_is_the_last_size_that_is_read(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    assert len(read_bytes(tmp_path / "a", 1000)) == 1000
    assert "1,000 bytes, and at most 999" in refusal(read_bytes, tmp_path / "a", 999)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"x" * 999)
    with open_file(path) as stream:
        path.write_bytes(b"x" * 1001)
        assert len(stream.read()) == 1001
    grown = threading.Event()

    class Grows(type(path)):  # its size is that of before
        def stat(self):
            grown.set()
            return super().stat()

    assert "1,001 bytes" in refusal(read_bytes, Grows(path), 1000) and grown.is_set()


@pytest.mark.parametrize(
    "text",
    ['{"a": [1, 2, {"b": "]]]\\"[[["}]}', '"\\\\"', "[]", "3", '["\\\\\\"["]', '"\\u00e9é"'],
)
def test_json_is_what_json_says(text):
    assert parse_json(text, "x") == json.loads(text)


def test_brackets_are_counted_as_python_does(tmp_path):
    for depth in (1, 64):
        assert parse_json("[" * depth + "]" * depth, "x") is not None
    assert "65 deep" in refusal(parse_json, "[" * 65 + "]" * 65, "x")
    assert "65 deep" in refusal(parse_json, '{"a":' * 65 + "1" + "}" * 65, "x")
    assert parse_json(json.dumps(["[" * 500 + '"\\' * 500]), "x")


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"a": "', "]", "\\", '"' * 99, "[" + "9" * 5000 + "]", "\ud800", b"\xff\xfe1"],
)
def test_what_is_no_json_is_refused(text):
    assert refusal(parse_json, text, "config.json").startswith("config.json is no ")


@pytest.mark.parametrize(
    "text",
    [
        laughs(),
        "a: &a [*a]",
        "a: &a {<<: *a}",
        "[" * 5000,
        "- " * 5000,
        "? " * 5000,
        "a: " + "1:" * 200_000 + "1",
        "[" + "a," * 200_000 + "]",
        "&a [" + "x, " * 999 + "]\n---\n",
        "a: !!python/object/apply:os.system [id]",
        "a: !!timestamp x",
        "a: 2020-99-99",
        "a: !!bool x",
        "a: !!int x",
        "'",
        "\x00",
    ],
)
def test_yaml_that_is_too_much_or_none_is_refused_with_its_line(text):
    """In a minute of a processor: the first took that alone."""
    program = (
        "import sys, time\nfrom vla_ros.core.yaml_files import parse_yaml\n"
        "from vla_ros.core.files import BadFile\n"
        "try: print('read', type(parse_yaml(sys.stdin.read(), 'contract.yaml')))\n"
        "except BadFile as e: print(e)"
    )
    told = bounded(program, given=text)
    assert told.startswith("contract.yaml") and told.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: 2\na: 3\n", 3), ("x: {a: 1, a: 1}\n", 1), ("1: a\n1: b\n", 2)]
)
def test_a_name_that_stands_twice_is_refused(text, line):
    """The second was taken and the first passed over, a limit perhaps."""
    with pytest.raises(BadFile, match=f"line {line}: .*stands twice"):
        parse_yaml(text, "mine.yaml")


def test_aliases_that_stand_for_little_are_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("base: &b {x: 1, y: [1, 2]}\nmore: {<<: *b, z: *b}\n")
    assert read_yaml(path)["more"] == {"x": 1, "y": [1, 2], "z": {"x": 1, "y": [1, 2]}}
    assert compose_yaml(path).value[1][0].start_mark.line == 1
    assert parse_yaml("", "x") is None


def test_a_wide_json_costs_no_memory(tmp_path):
    """60 MB of empty brackets are 1.5 GB of Python's: they are counted before they are made."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"[" + b"[]," * 20_000_000 + b"0]")
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from vla_ros.core.files import TOKENIZER, BadFile, read_json\n"
        "try: read_json(Path(sys.argv[1]), TOKENIZER)\nexcept BadFile as e: print(e)"
    )
    assert "40,000,002 values" in bounded(program, path, memory=GB)


def test_arrays_are_what_numpy_has(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0))
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros(3, np.int32), y=np.array(True))
    assert read_arrays(tmp_path / "a.npy")[""].tolist() == [0, 1, 2, 3, 4, 5]
    found = read_arrays(tmp_path / "b.npz")
    assert set(found) == {"x", "y"} and found["x"].dtype == np.int32 and bool(found["y"])


def _claims(path, shape: str) -> None:
    """An array file whose header says more than it has."""
    head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (117 - len(head)) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(8))


def _bomb(path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.npy", bytes(100 << 20))


ARRAYS = {
    "a bomb": _bomb,
    "10^15 numbers": lambda path: _claims(path, "(1000000000000000,)"),
    "10^30 numbers": lambda path: _claims(path, f"({10**30},)"),
    "-1 numbers": lambda path: _claims(path, "(-1,)"),
    "a pickle": lambda path: np.save(path.open("wb"), np.array([object()]), allow_pickle=True),
    "text": lambda path: path.write_text("1 2 3"),
    "a cut archive": lambda path: path.write_bytes(b"PK\x03\x04 cut"),
    "nothing": lambda path: path.touch(),
    **SPECIAL,
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_what_holds_no_arrays_is_refused(tmp_path, kind):
    path = tmp_path / "actions.npz"
    ARRAYS[kind](path)
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from vla_ros.core.files import BadFile, read_arrays\n"
        "try: print(read_arrays(Path(sys.argv[1])))\nexcept BadFile as e: print(e)"
    )
    told = bounded(program, path, memory=GB)
    assert told.startswith(str(path)) and told.count("\n") == 1


def test_a_hash_is_of_a_file_and_of_nothing_else(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a").startswith("ba7816bf")
    os.mkfifo(tmp_path / "b")
    assert "a named pipe" in refusal(sha256_of, tmp_path / "b")


ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda p: p.name)
def test_every_shipped_file_is_read_by_the_rules_for_strangers(path):
    """libero.yaml had a name twice: the rule was new, and no graph with it could be read."""
    assert read_yaml(path)
