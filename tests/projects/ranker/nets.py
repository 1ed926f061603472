from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.score = nn.Linear(16, 4)

    def forward(self, x, *, scale):
        ranked = self.score(self.hidden(x).relu()) * scale
        return {"scores": ranked, "best": ranked.argmax(dim=1), "total": ranked.sum()}


def build():
    return Ranker().eval()
