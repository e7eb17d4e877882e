"""The worker process that owns the device, and the handle on it in the node. ROS-free.

In the node: ``executor``, the handle and the thread that keeps a worker alive, with ``spare`` and,
of each worker, ``process``. In the worker: ``worker``. Between them: ``mailbox`` for frames,
``wire`` for everything else.
"""
