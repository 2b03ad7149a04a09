"""simulate(): a trace through a fleet in virtual time, decided by a live policy on a live ledger."""

from __future__ import annotations

from pointsman.app.simulate.front_end import OnDecision
from pointsman.app.simulate.outcome import Outcome
from pointsman.app.simulate.setup import Setup
from pointsman.app.simulate.simulation import OnProgress, Simulation
from pointsman.core.policies.policy import Policy
from pointsman.core.workload.trace import Trace


def simulate(
    trace: Trace,
    setup: Setup,
    policy: Policy,
    *,
    seed: int = 0,
    policy_seed: int | None = None,
    shuffle_ties: bool = False,
    clients: int | None = None,
    on_progress: OnProgress | None = None,
    on_decision: OnDecision | None = None,
) -> Outcome:
    """Run all requests of a trace to their end.

    Args:
        seed: of the policy's chance, the noise of steps and the order of simultaneous events. Same seed, same outcome.
        policy_seed: of the policy's chance alone, where two that differ only by that are compared; None: `seed`.
        shuffle_ties: events of one moment happen in random order instead of a fixed one.
        clients: closed loop with so many clients; None: requests come when the trace says.
        on_progress: called about 200 times.
        on_decision: called with each request and the decision for it.

    Raises ConfigError for a setup that can't be run, PolicyError for a policy that breaks its contract.
    """
    simulation = Simulation(
        trace,
        setup,
        policy,
        seed=seed,
        policy_seed=policy_seed,
        shuffle_ties=shuffle_ties,
        clients=clients,
        on_decision=on_decision,
    )
    try:
        return simulation.run(on_progress)
    finally:
        simulation.close()
