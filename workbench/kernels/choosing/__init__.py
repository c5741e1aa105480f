"""Which template and instance a problem gets on a device: the choice among layer 3, by family."""
