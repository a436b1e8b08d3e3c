"""Maps of attention heads."""
