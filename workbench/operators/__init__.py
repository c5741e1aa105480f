"""Descriptions of the operators, by family: sizes, arguments, instances, reference and accuracy."""
