"""The recorder node: a run into a bag."""
