"""A loader for trainings of a few batches."""


class Resumable:
    """Sized, resumable, without randomness: ``make(i)`` is batch i of each epoch."""

    def __init__(self, length, make):
        self.length, self.make = length, make
        self.position = 0

    def __len__(self):
        return self.length

    def __iter__(self):
        first, self.position = self.position % self.length, 0
        for i in range(first, self.length):
            self.position = i + 1
            yield self.make(i)

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]
