"""A file a family of checkpoints (folder, config, prompt, units, cameras), and the registry."""
