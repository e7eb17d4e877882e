"""The monitor node: judges the policy from outside."""
