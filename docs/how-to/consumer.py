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
        self.newest = (0, -1)  # publication in ns, sequence
        self.moving = False
        self.arm = self.create_publisher(Float64MultiArray, "arm/commands", 10)
        self.create_subscription(ActionCommand, "policy/action", self.on_command, 10)
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.silence = self.create_timer(2 * PERIOD_S, self.stop, clock=steady)

    def on_command(self, command: ActionCommand) -> None:
        self.silence.reset()
        number = (Time.from_msg(command.header.stamp).nanoseconds, command.sequence)
        if number <= self.newest:
            return  # it came before, or a newer one did
        self.newest = number
        fresh = self.get_clock().now() <= Time.from_msg(command.valid_until)
        if command.kind == ActionCommand.KIND_POLICY and fresh:
            self.moving = True
            self.arm.publish(Float64MultiArray(data=command.action))  # move: your driver here
        else:  # HELD: nothing new; STOP: the evidence is too old, or the task was stopped
            self.stop()

    def stop(self) -> None:
        if self.moving:
            self.moving = False
            self.arm.publish(Float64MultiArray())  # stand still: your driver here


if __name__ == "__main__":
    rclpy.init()
    rclpy.spin(Consumer())
