"""Parts that every node of this package shares.

``parameters``, ``qos``: a node's parameters and profiles. ``listening``, ``serialized``:
subscriptions, and the check of serialized messages. ``convert``: stamps, diagnostics. ``spin``,
``ending``: how a node runs and ends. ``peer``: nodes beside a graph. ``compat``: differences of
distros.
"""
