"""The loss as a function of the weights: along lines, its curvature, and which weights pay for its change."""
