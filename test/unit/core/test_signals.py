"""A process that is asked to end by several signals at once ends."""

import signal
import subprocess
import sys

from vla_ros.core.signals import ENDS, kept_back

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


def test_a_signal_that_comes_while_a_process_imports_waits_for_its_handler():
    """As `vla-ros up` starts its nodes: no KeyboardInterrupt wherever they are."""
    program = (
        "import sys, threading, time\n"
        "print('imports', flush=True)\n"
        "time.sleep(0.5)\n"
        "from vla_ros.core.signals import set_on_signal\n"
        "stop = threading.Event()\n"
        "set_on_signal(stop)\n"
        "sys.exit(7 if stop.wait(5.0) else 8)\n"
    )
    with kept_back():
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) & set(ENDS) == set()
    assert child.stdout.readline() == b"imports\n"
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (7, b"")
