"""A process that is asked to end by several signals at once ends."""

import subprocess
import sys

STORM = """
import os, signal, threading
from vla_ros.core.signals import set_on_signal

class Slow(threading.Event):
    def set(self):
        with self._cond:  # the second signal finds the lock held
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            self._flag = True
            self._cond.notify_all()

stop = Slow()
set_on_signal(stop)
os.kill(os.getpid(), signal.SIGTERM)
assert stop.wait(5)
"""


def test_signals_that_come_within_each_other_do_not_hang_the_process():
    done = subprocess.run([sys.executable, "-c", STORM], timeout=20, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
