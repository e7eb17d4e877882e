"""Measures a flow policy, phase by phase, beside its references on the same inputs, in one run."""
