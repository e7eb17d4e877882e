"""What every node of this package is made of.

``parameters``, ``qos``: what a node has. ``listening``, ``structure``, ``serialized``,
``arrivals``: what comes in, and whether it can be a message. ``images``, ``convert``: pictures,
stamps. ``spin``, ``ending``, ``leaving``: how a node runs and ends. ``peer``, ``spectating``:
nodes beside a graph. ``compat``: what distros differ in.
"""
