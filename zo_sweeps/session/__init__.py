"""A sweep from its plan to its tables, and what follows: trained weights, packages, verification, cleaning up."""
