"""A draft head for a token checkpoint: rollouts of the target, its features, training, judging."""
