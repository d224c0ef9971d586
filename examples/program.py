"""A program without any support for sweeper. It is measured unchanged, with its child processes:

python -m sweeper workload=command workload.argv=[python,program.py,--batch,'{batch}'] batch=1,64
"""

import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--width", type=int, default=256)
arguments = parser.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Sequential(*(torch.nn.Linear(arguments.width, arguments.width) for _ in range(4))).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = model(torch.randn(arguments.batch, 256, arguments.width, device=device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}: loss {loss.item():.4f}")
