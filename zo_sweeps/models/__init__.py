"""Models: their families, sources, identity and loading.

`identity.status` is for planning (no torch, for the families with a module of their own); `load.load` returns the
`causal.CausalModel` that the engine and the tasks use. A new family is one module in `families`, a new model of a
known family one YAML in conf/model.
"""

import logging

# Where the extra [edge] is installed, transformers imports torchao with its quantizers, which warns of kernels for GPUs
# and of a deprecated call of its own into torch. Neither is used here.
logging.getLogger("torchao").setLevel(logging.ERROR)
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "is an Enum subclass" not in str(record.msg))
