"""Executes ActionCommands as a driver should: each once, none after valid_until, none for long."""

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.time import Time
from std_msgs.msg import Float64MultiArray

from vla_ros.msg import ActionCommand

PERIOD_S = 0.05  # of the policy node: 1 / control_rate_hz


class Consumer(Node):
    def __init__(self) -> None:
        super().__init__("consumer")
        self.newest: dict[bytes, tuple[int, int]] = {}  # of its writer: epoch, sequence
        self.moving = False
        self.arm = self.create_publisher(Float64MultiArray, "arm/commands", 10)
        self.create_subscription(ActionCommand, "policy/action", self.on_command, 10)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.silence = self.create_timer(2 * PERIOD_S, self.on_silence, clock=steady)

    def on_command(self, command: ActionCommand, info: dict) -> None:
        if command.kind not in (ActionCommand.KIND_POLICY, ActionCommand.KIND_TAKEOVER):
            self.stop()  # HELD: nothing new; STOP: too old, or stopped. Always
            return
        gid = info.get("publisher_gid")  # a policy that is started anew is another; since Kilted
        writer = bytes(gid["data"]) if gid else b""
        number = (command.epoch, command.sequence)
        if number <= self.newest.get(writer, (-1, -1)):
            return  # it came before, or a newer one did: it keeps no watchdog alive
        self.newest = {writer: number}
        if self.get_clock().now() > Time.from_msg(command.valid_until):
            self.stop()
            return
        self.silence.reset()
        self.moving = True
        self.arm.publish(Float64MultiArray(data=command.action))  # move: your driver here

    def on_silence(self) -> None:
        self.newest.pop(b"", None)  # who has no name may be started anew
        self.stop()

    def stop(self) -> None:
        if self.moving:
            self.moving = False
            self.arm.publish(Float64MultiArray())  # stand still: your driver here


if __name__ == "__main__":
    rclpy.init()
    rclpy.spin(Consumer())
