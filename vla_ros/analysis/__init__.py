"""What a model can reach on a device: roofline, speculation, schedules. numpy only; no ROS."""
