"""What the benchmarks share: a fast mock engine, a load client, process control, reports. Not part of the product."""
