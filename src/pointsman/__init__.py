"""pointsman: directs the traffic of LLM inference."""

__version__ = "0.1.0"
