"""Models of recurrent depth: a core that is iterated, and how often."""
