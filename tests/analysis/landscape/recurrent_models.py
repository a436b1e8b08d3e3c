"""Language models of recurrent layers of each kind, by name."""

from torch import nn

from lmdyn.models import LSTMLanguageModel


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, layers=1, bias=True, width=5, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(11, width)
        self.rnn = kind(width, 6, num_layers=layers, bias=bias, batch_first=True)
        self.output = nn.Linear(6, 11)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, input_ids):
        return self.output(self.rnn(self.embedding(input_ids))[0])


MODULES = {
    "lstm": lambda: Recurrent(layers=2),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn_without_bias": lambda: Recurrent(nn.RNN, layers=3, bias=False),
    "ours": lambda: LSTMLanguageModel(vocab_size=11, embedding_size=5, hidden_size=6),
    "tied": lambda: LSTMLanguageModel(vocab_size=11, embedding_size=6, hidden_size=6, tie_weights=True),
}
