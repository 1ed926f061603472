import torch


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(640, 640), torch.nn.ReLU(), torch.nn.Linear(640, 640)).eval()
