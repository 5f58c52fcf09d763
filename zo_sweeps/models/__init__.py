"""What differs between model families, and where models come from.

`identity.status` and `shapes` are for planning (no torch); `load.load` gives the `causal.LanguageModel` that the engine
and the tasks use. A new family is one module in `families`, a new model of a known family one YAML in conf/model.
"""
