"""Learning of words: sparsity, loss by part of speech, word by word, facts."""
