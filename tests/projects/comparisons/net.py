import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.tanh(self.linear(x)) + 0.5 * x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Block(), Block()
        self.eval()

    def forward(self, x):
        return torch.sigmoid(self.second(self.first(x)))


class Edge(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eval()

    def forward(self, x):
        return torch.where(x >= 0, x + 1, x - 1)
