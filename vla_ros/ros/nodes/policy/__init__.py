"""The policy node: `python -m vla_ros.ros.nodes.policy.node`.

The path of a frame, from the image callback to the published command. The modules that these call
on it (observation, intake, queue, wire, mailbox, serve, safety) return to them.

1. ``nodes/policy/inputs.py``: the image callback validates, joins and offers a frame;
2. ``control/drivers.py``: the loop takes it in and submits it;
3. ``nodes/policy/link.py``: the link hands it to the executor;
4. ``worker/executor.py``: it is written to shared memory, newest wins, and a bell rings;
5. ``worker/worker.py``: the worker process reads it, asks the policy, sends the answer;
6. ``worker/executor.py``: the worker's reader receives it; link and loop queue it;
7. ``control/gate.py``: at the next tick the loop takes the next action to the gate;
8. ``nodes/policy/topics.py``: through the link it is published.
"""
