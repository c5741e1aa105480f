"""Choice of template and instance for a problem on a device: among those of layer 3, by family."""
