"""The policy node: `python -m vla_ros.nodes.policy.node`."""
