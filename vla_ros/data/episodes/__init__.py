"""Success of a policy over many episodes: plan, episodes, store, statistics, report.

Never imports rclpy; torch only where a model runs. Episodes through the ROS graph are played by
:mod:`vla_ros.cli.eval.graph`, those straight on the engine by :mod:`vla_ros.evaluation.direct`;
both give the same :class:`vla_ros.evaluation.records.Record`.
"""
