"""What a robot does not need: training, reports, benchmarks, roofline, precision study. Only cli/
imports it."""
