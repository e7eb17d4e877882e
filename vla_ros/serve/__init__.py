"""One policy for many clients, over the network."""
