// Prints how old the observation of each command of the policy is, in C++.
#include <cstdio>

#include "rclcpp/rclcpp.hpp"
#include "vla_ros/msg/action_command.hpp"

using vla_ros::msg::ActionCommand;

int main(int argc, char ** argv)
{
  rclcpp::init(argc, argv);
  auto node = std::make_shared<rclcpp::Node>("listener");
  auto print = [&](const ActionCommand & command) {
      if (command.kind != ActionCommand::KIND_POLICY) {return;}
      const auto age = node->now() - rclcpp::Time(command.observation_stamp);
      std::printf("#%lu %s %.3f s old:", command.sequence, command.decoding.c_str(), age.seconds());
      for (double value : command.action) {std::printf(" %.4f", value);}
      std::printf("\n");
      std::fflush(stdout);
    };
  auto commands = node->create_subscription<ActionCommand>("policy/action", 10, print);
  rclcpp::spin(node);
  rclcpp::shutdown();
}
