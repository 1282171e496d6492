"""Shared set-up: one thread per process keeps small tests quick and repeatable."""

import torch

torch.set_num_threads(1)
