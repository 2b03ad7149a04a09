"""llama.cpp on this computer, run as engines: model files, one engine a process, a fleet of them."""
