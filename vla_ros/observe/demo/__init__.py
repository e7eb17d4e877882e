"""One episode as `vla-ros demo` follows it."""
