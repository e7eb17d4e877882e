"""Writing bags of a running graph, without ROS: see :mod:`vla_ros.nodes.recorder.node`.

Nothing here may hold up whoever hands in a message: queues are bounded, what does not fit is
counted and left out.
"""
