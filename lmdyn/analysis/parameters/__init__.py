"""Functions of a module's parameters: losses and gradients at other weights than the module's own."""
