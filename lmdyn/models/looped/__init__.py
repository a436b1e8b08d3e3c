"""Models of recurrent depth: a core that is iterated, and the number of iterations."""
