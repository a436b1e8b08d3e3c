"""Tools for drawing figures, independent of their content."""
