"""Layer 1, templated tile operators: `@triton.jit` functions on tiles, of which kernels are composed."""
