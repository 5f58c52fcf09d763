"""Frozen weights in float16."""

import torch

DTYPE = torch.float16
