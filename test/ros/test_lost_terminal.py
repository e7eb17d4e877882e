"""A terminal that is closed, an ssh link that is lost, a launcher that is gone: nobody reads any
more what is printed. A recording keeps its index, and a graph ends as by Ctrl-C."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("rosbags", reason="rosbags is not installed")

from support.processes import alive, children
from support.wait import wait_until

VERB = "import sys; from vla_ros.cli.main import main; sys.exit(main())"


class Shown:
    """A verb, and the end of the pipe or terminal that it writes to."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process, self._ours, self.text = process, ours, ""

    def wait_for(self, text: str) -> None:
        while text not in self.text:
            more = os.read(self._ours, 65536).decode()
            assert more, self.text
            self.text += more

    def lose(self) -> None:
        """Nobody reads it any more; a process whose terminal it is gets SIGHUP."""
        os.close(self._ours)


@contextmanager
def shown(words: list[str], env: dict[str, str], terminal: bool) -> Iterator[Shown]:
    ours, theirs = pty.openpty() if terminal else os.pipe()

    def take_terminal() -> None:
        if terminal:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-c", VERB, *words], env=env, start_new_session=True,
        stdin=theirs if terminal else subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        pass_fds=[theirs], preexec_fn=take_terminal,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Shown(process, ours)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_a_recording_keeps_its_index(terminal: bool, ros_env, tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    with shown(["record", "-o", str(bag)], ros_env, terminal) as verb:
        verb.wait_for("recording")
        verb.lose()
        if not terminal:  # it goes on, and has lines to say, until it is asked to end
            time.sleep(1.5)
            assert verb.process.poll() is None
            verb.process.send_signal(signal.SIGTERM)
        assert verb.process.wait(60) == 0
    assert (bag / "metadata.yaml").is_file()


def test_a_graph_ends_as_by_ctrl_c(ros_env) -> None:
    words = ["up", "policy", "-p", "policy.policy=zero"]
    with shown(words, ros_env, terminal=True) as verb:
        verb.wait_for("everything is running")
        nodes = children(verb.process.pid)
        assert len(nodes) >= 2, "policy, monitor"
        verb.lose()
        assert verb.process.wait(60) == 0
    wait_until(lambda: not any(map(alive, nodes)), 15.0, f"the end of {nodes}")


def test_nohup_is_obeyed(ros_env, tmp_path: Path) -> None:
    command = ["nohup", sys.executable, "-c", VERB, "record", "-o", str(tmp_path / "bag")]
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=ros_env, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        wait_until(lambda: "recording" in log.read_text(), 60.0, log.read_text)
        process.send_signal(signal.SIGHUP)
        time.sleep(1.0)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
