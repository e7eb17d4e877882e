"""Episodes of a simulated robot under somebody's commands, in lock-step or real time. No ROS.

``state``: the nouns. ``desk``: what the threads share. ``body``: commands become motion.
``lockstep``, ``realtime``: when the world takes its steps. ``runner``: one episode after another.
"""

from vla_ros.sim.episode.runner import EpisodeRunner

__all__ = ["EpisodeRunner"]
