"""Pictures of coordinate descriptors and of the matrices that they describe."""
