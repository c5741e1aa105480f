"""Choice of a template and an instance of layer 3 for a problem on a device, one module a family."""
