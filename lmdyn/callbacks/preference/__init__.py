"""Two towers: which of them predicts which words better, and clusters of words."""
