import os
import signal
import subprocess
import sys
import time

import pytest

from support.processes import alive
from vla_ros_lab.train.collect import pool

PARENT = """
import os, time
from vla_ros_lab.train.collect import pool

if __name__ == "__main__":
    with pool(1) as processes:
        print(processes.submit(os.getpid).result(), flush=True)
        processes.submit(time.sleep, 60)
        time.sleep(60)
"""


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    assert alive(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 10
    while alive(worker) and time.monotonic() < end:
        time.sleep(0.02)
    assert not alive(worker)


def test_ctrl_c_is_left_to_the_parent():
    with pool(1) as processes:
        (worker,) = [processes.submit(os.getpid).result()]
        running = processes.submit(time.sleep, 0.5)
        os.kill(worker, signal.SIGINT)
        assert running.result() is None
