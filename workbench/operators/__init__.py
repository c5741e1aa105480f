"""What is known of each operator, by family: its sizes, arguments, instances, reference and accuracy."""
