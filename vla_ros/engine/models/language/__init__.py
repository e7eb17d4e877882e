"""Language models over packed attention: our own, and transformers' classes."""
