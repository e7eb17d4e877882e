"""What stands in for Humble's gaps, with a node that has only what Humble's has."""

import inspect

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from rcl_interfaces.msg import SetParametersResult

from vla_ros.ros.common import compat


class Timer:
    cancelled = False

    def cancel(self):
        self.cancelled = True


class HumbleNode:
    """Sets parameters as Humble does: judged first, then in force; timers run later."""

    def __init__(self):
        self.values, self.judges, self.timers = {}, [], []

    def add_on_set_parameters_callback(self, judge):
        self.judges.append(judge)

    def create_timer(self, period, callback):
        assert period == 0.0
        self.timers.append((Timer(), callback))
        return self.timers[-1][0]

    def destroy_timer(self, timer):
        self.timers = [(t, c) for t, c in self.timers if t is not timer]

    def set(self, **values):
        good = all(judge(values).successful for judge in self.judges)
        self.values |= values if good else {}
        for _, callback in list(self.timers):
            callback()


class LaterNode(HumbleNode):
    def add_post_set_parameters_callback(self, apply):
        self.apply = apply

    def set(self, **values):
        super().set(**values)
        self.apply(values)


@pytest.mark.parametrize("kind", [HumbleNode, LaterNode])
def test_applied_once_with_the_values_in_force(kind):
    node, seen = kind(), []
    good = SetParametersResult(successful=True)
    compat.on_parameters(node, lambda _: good, lambda new: seen.append((dict(new), node.values)))
    node.set(rate=3)
    assert (seen, node.timers) == ([({"rate": 3}, {"rate": 3})], [])


def test_what_was_refused_is_not_applied():
    node, seen = HumbleNode(), []
    compat.on_parameters(node, lambda _: SetParametersResult(successful=False), seen.append)
    node.set(rate=3)
    assert (seen, node.timers, node.values) == ([], [], {})


def test_without_information_the_message_does_not_say_when_it_came(monkeypatch):
    heard = []

    def callback(message, info):
        heard.append((message, info["received_timestamp"]))

    says = compat.listener(callback)  # Jazzy and Kilted
    with pytest.raises(TypeError, match="missing"):  # rclpy asks so whether both are wanted
        inspect.signature(says).bind("a message")
    says("a message", {"received_timestamp": 5})
    says(("from the events executor", {"received_timestamp": 6}))
    monkeypatch.setattr(compat, "Subscription", object)
    compat.listener(callback)("a message")
    assert heard == [("a message", 5), ("from the events executor", 6), ("a message", 0)]
