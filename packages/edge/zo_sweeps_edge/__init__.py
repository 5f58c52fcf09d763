"""Training inside an inference engine: exported programs whose forward call is a training step."""
