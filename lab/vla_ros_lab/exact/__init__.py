"""`vla-ros verify --exact`: every lossless way of a policy held to a plain reference."""
