"""The schedules that ours are measured against; exact, and slow on purpose."""
