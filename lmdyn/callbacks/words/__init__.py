"""What is learned of words: sparsity, loss by part of speech, token by token, facts."""
