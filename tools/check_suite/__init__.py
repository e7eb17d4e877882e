"""`make check-suite`: planted faults, and what `vla-ros check` says of them."""
