"""What moves a robot, free of ROS and of torch: control loop, safety gate, worker process,
monitor."""
