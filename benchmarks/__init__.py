"""Benchmarks of cutlass_ops against PyTorch: run `python -m benchmarks --help`."""
