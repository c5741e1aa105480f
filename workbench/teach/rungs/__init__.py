"""The ladders of the lessons: kernels from the simplest version up to the shipped kernel, rung by rung."""
