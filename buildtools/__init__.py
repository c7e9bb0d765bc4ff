"""The build of the CUDA binary: used by setup.py alone, not installed."""
