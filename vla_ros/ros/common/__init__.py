"""What every node of this package is made of.

``parameters``, ``qos``: what a node has. ``listening``, ``serialized``: what comes in, and whether
it can be a message. ``convert``: images, stamps, diagnostics. ``spin``, ``ending``: how a node
runs and ends. ``peer``: nodes beside a graph. ``compat``: what distros differ in.
"""
