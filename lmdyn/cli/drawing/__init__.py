"""Drawing the sections of a report: of one observer, side by side, and again only where something changed."""
