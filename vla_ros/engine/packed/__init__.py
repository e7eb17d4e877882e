"""The packed pass: layouts, plans, the KV ring, attention over it, captured graphs."""
