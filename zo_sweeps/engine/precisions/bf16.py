"""Frozen weights in bfloat16."""

import torch

DTYPE = torch.bfloat16
