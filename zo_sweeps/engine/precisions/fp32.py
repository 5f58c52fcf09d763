"""Frozen weights in float32."""

import torch

DTYPE = torch.float32
