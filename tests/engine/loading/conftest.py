"""The machine's cores are shared by all tests that run at the same time."""

import torch

torch.set_num_threads(1)
