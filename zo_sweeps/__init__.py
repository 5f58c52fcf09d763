"""zo_sweeps: reproduce the papers on zeroth-order fine-tuning of language models, as distributed sweeps."""

__version__ = "0.1.0"
