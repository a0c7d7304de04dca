"""What only a machine with a CUDA device can show."""
