"""Health of workers: what probes, traffic and canaries say of them, and when that excludes one."""
