"""Draft trees as arithmetic, without torch: shape, passes saved, what is learned for them."""
