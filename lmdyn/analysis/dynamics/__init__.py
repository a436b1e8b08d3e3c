"""An encoder iterated as a map: exponents, synchronization, attractors, dimensions, transients."""
