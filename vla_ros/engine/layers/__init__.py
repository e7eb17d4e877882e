"""The packed pass: layouts, plans, the KV cache, attention over it, captured graphs."""
