"""PeZO's generators of random numbers as hardware: Verilog, its test bench, and what open tools make of it."""
