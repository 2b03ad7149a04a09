"""One file a policy: `decide(request, view, timing, now_ms, rng) -> Decision`, pure."""
