"""The LSTM language model of Saphra (2021) and of the word-level language modelling example of PyTorch."""

from lmdyn.models.recurrent import RecurrentModule


class LSTMLanguageModel(RecurrentModule):
    """Predicts the next word with a stack of LSTM layers.

    The defaults are the language model of Saphra & Lopez 2019: two layers of 200, dropout 0.2, SGD with gradients
    clipped at 0.25, a learning rate that "begins at 20 and is quartered whenever loss fails to improve", batches of 40
    windows of 35 words. Embedding and decoder weights start in U(-0.1, 0.1), the decoder's bias at 0.

    Sites: ``embedding``, ``lstm.layers.0`` … ``lstm.layers.{n-1}`` and ``decoder``.

    Logged: ``train_loss`` (mean over the batch's tokens), ``val_loss``, ``val_perplexity``, ``test_loss``,
    ``test_perplexity`` (mean over all tokens, and its exponential), in nats.

    Args:
        vocab_size: number of word types; None uses that of the datamodule's tokenizer, which is then recorded.
        embedding_size: number of dimensions of the word vectors.
        hidden_size: number of dimensions of each layer.
        num_layers: number of LSTM layers.
        dropout: probability of zeroing an entry of the word vectors, between layers, and of the last output.
        tie_weights: whether to use one matrix for the word vectors and the decoder (Press & Wolf 2017).
        optimizer: creates the optimizer from the parameters.
        anneal_factor: divisor of the learning rate after a validation whose loss is not the lowest so far; None never
            anneals.
        gradient_clip_val: maximum norm of the gradient; None does not clip. The Trainer's setting takes precedence.
        init_range: embedding and decoder weights start uniformly within ± this value.

    Raises:
        ValueError: for ``tie_weights`` with different sizes; if ``anneal_factor`` is not above 1; when the layers are
            built, if ``vocab_size`` is None and no datamodule has a tokenizer.

    Reference: Saphra & Lopez 2019, section 3 (Saphra 2021, chapter 4).

    Example:
        >>> import torch
        >>> model = LSTMLanguageModel(vocab_size=10, embedding_size=4, hidden_size=4)
        >>> first = model(torch.tensor([[1, 2, 3]]))
        >>> first.logits.shape
        torch.Size([1, 3, 10])
        >>> second = model(torch.tensor([[4, 5]]), state=first.state)  # continues after 1, 2, 3
    """
