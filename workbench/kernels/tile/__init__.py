"""Layer 1, templated tile operators: `@triton.jit` functions on tiles, without a grid, from which kernels are composed."""
