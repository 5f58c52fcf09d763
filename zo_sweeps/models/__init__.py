"""Models: their families, sources, identity and loading.

`identity.status` is for planning (no torch, for the families with a module of their own); `load.load` returns the
`causal.LanguageModel` that the engine and the tasks use. A new family is one module in `families`, a new model of a
known family one YAML in conf/model.
"""
