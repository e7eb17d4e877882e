"""Success of a policy over many episodes: plan, episodes, store, statistics, report.

Never imports rclpy; torch only where a model runs. Episodes through the ROS graph are played by
:mod:`vla_ros.ros.listeners.graph_runner`, those straight on the engine by
:mod:`vla_ros.data.episodes.play`; both give the same
:class:`vla_ros.data.episodes.records.Record`.
"""
