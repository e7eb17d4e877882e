"""Which convention is wrong: a policy asked about recorded frames, diagnosed by repair."""
