"""Pictures of rounding errors, and of the online softmax."""
