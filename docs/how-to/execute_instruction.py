"""Tell a policy node what to do, and wait until it is done."""

import sys

import rclpy
from rclpy.action import ActionClient

from vla_ros.action import ExecuteInstruction

rclpy.init()
node = rclpy.create_node("caller")
client = ActionClient(node, ExecuteInstruction, "policy/execute_instruction")
goal = ExecuteInstruction.Goal(
    instruction=sys.argv[1], time_limit_s=30.0, success_topic="/task_done"
)


def tell(message):
    now = message.feedback
    print(f"{now.elapsed_s:.1f} s, {now.actions} actions, {now.reason}", flush=True)


client.wait_for_server()
sent = client.send_goal_async(goal, feedback_callback=tell)
rclpy.spin_until_future_complete(node, sent, timeout_sec=5.0)
if not sent.done():
    sys.exit("no answer: it may run all the same, call /policy/stop")
if not sent.result().accepted:
    sys.exit("rejected: the policy node is not active")
ended = sent.result().get_result_async()  # sent.result().cancel_goal_async() stops the robot
rclpy.spin_until_future_complete(node, ended)
result = ended.result().result
print(f"outcome {result.outcome}: {result.message}, after {result.duration_s:.1f} s")
sys.exit(result.outcome != ExecuteInstruction.Result.OUTCOME_SUCCESS)
