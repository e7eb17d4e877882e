"""The LIBERO benchmark behind the protocol of :mod:`vla_ros.sim.env`.

LIBERO and robosuite are imported when an environment is made, never before; nothing here is
copied from them. `files` and `assets` find them and their settings.
"""
