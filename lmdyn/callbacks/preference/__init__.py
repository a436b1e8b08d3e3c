"""Two towers: which of them predicts which words."""
