"""What a join costs, measured in the lab beside a machine that polls as public samples do. See docs/benchmarks.md."""
