"""What robots' controllers take, beside ~/action: one file an output, chosen by `outputs`."""
