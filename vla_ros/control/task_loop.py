"""What a control loop is told to do: a task is said, stopped, resumed and taken up."""

from __future__ import annotations

from vla_ros.control.goals import Outcome
from vla_ros.control.worker_loop import WorkerLoop
from vla_ros.core import Instruction


class TaskLoop(WorkerLoop):
    """The part of the loop that knows of instructions. Methods with a leading underscore want the
    lock to be held."""

    def set_instruction(self, text: str) -> bool:
        """A new task, or the empty text to :meth:`stop`. Returns whether it is another one.

        After the return no action of the old task will be published. A task that was stopped is
        not begun again.
        """
        with self.lock:
            if not text:
                return self.stop("an empty instruction was said")
            if self._goal_outweighs(text):
                return False
            if self.lasting.latch.withholds(text):
                self._outlet.warn("stopped", "stopped: resume, or give another instruction")
                return False
            if text == self.instruction.text:
                return False
            self.goals.end(Outcome.PREEMPTED, f"the topic said '{text}'")
            self.lasting.latch.release()
            self._take_up(text)
            return True

    def stop(self, why: str = "~/stop was called") -> bool:
        """The robot stands still until :meth:`resume` or another instruction; the same one said
        again does not start it. Returns whether there was a task. A goal ends, and says ``why``."""
        with self.lock:
            self.goals.end(Outcome.CANCELED, why)
            self.lasting.latch.catch(self.instruction.text)
            if not self.instruction.text:
                return False
            self._take_up("")
            return True

    def resume(self) -> bool:
        """Go on with the task that was stopped. False: there is none, or a goal runs."""
        with self.lock:
            latch = self.lasting.latch
            if not latch.holds or self.goals.current is not None:
                return False
            self._take_up(latch.release() or self.instruction.text)
            return True

    def _take_up(self, text: str) -> None:
        """This is the task from now on."""
        self.instruction = Instruction(text, self.instruction.epoch)
        self._flush()
        before = self.safety
        self._wait(self._lacks())
        if self.safety == before:
            self._outlet.changed(before, before)  # whoever asked waits for the new epoch
        self._resubmit()
