"""CPU kernels in C, compiled on first use; everything here has an equal in PyTorch that needs no compiler."""
