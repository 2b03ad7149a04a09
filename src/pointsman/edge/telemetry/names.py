"""Names of all metrics, with their help texts. One place, so that none is spelt twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """Name without the `_total` of counters, and what it says."""

    name: str
    help: str


REQUESTS = Metric("pointsman_requests", "Requests by route and status sent to the client; 499: the client left first.")
RETRIES = Metric("pointsman_retries", "Attempts made again, by reason.")
FALLBACKS = Metric("pointsman_policy_fallbacks", "Decisions in which a policy could not do what its name says.")
GUARDS_LIFTED = Metric(
    "pointsman_guards_lifted", "Decisions in which a guard would have left no worker, and so excluded none."
)
STREAM_ERRORS = Metric("pointsman_stream_errors", "Streams that broke, held an error event or had no end, by reason.")
MISSING_USAGE = Metric("pointsman_missing_usage", "Finished answers in which the engine reported no usage.")
TTFT = Metric(
    "pointsman_ttft_seconds", "From a request's arrival to the first event of its stream; plain answers have none."
)
ITL = Metric("pointsman_itl_seconds", "Mean time between the events of one stream, an observation a stream.")
DURATION = Metric("pointsman_request_duration_seconds", "From a request's arrival to the end of its answer.")
DECISION = Metric("pointsman_decision_seconds", "From the fleet's view to the recorded decision.")
IN_FLIGHT = Metric("pointsman_requests_in_flight", "Requests admitted and not ended, by whether a worker has them.")
TOKENS = Metric("pointsman_tokens", "Tokens of finished requests as engines reported them, by kind.")
INDEXED_BLOCKS = Metric("pointsman_indexed_blocks", "Distinct prompt blocks in the indexes: exact (KV events), text.")
CONNECTIONS = Metric("pointsman_connections", "Open connections, by side.")
POLICY = Metric("pointsman_policy_info", "The policy in force.")

ROLLOUT_SHARE = Metric("pointsman_rollout_share", "Share of the traffic that the rollout's policy decides, 0 to 1.")
ROLLED_BACK = Metric("pointsman_rollout_rolled_back", "1: the rollout was rolled back; 0: it runs.")
ROLLOUT_ERRORS = Metric("pointsman_rollout_errors", "Decisions that the rollout's policy failed to make.")
ARM_REQUESTS = Metric("pointsman_arm_requests", "Requests of the rollout that ended, by arm (base, trial) and how.")
ARM_TTFT = Metric("pointsman_arm_ttft_seconds", "As pointsman_ttft_seconds, by arm of the rollout.")
ARM_ITL = Metric("pointsman_arm_itl_seconds", "As pointsman_itl_seconds, by arm of the rollout.")
SHADOW_DECISIONS = Metric(
    "pointsman_shadow_decisions", "Decisions of shadow policies, by whether they agreed with the one that was made."
)
SHADOW_TIME = Metric("pointsman_shadow_seconds", "Time spent in decisions of shadow policies.")

DECISIONS = Metric("pointsman_decisions_kept", "Decisions in memory, by whether their requests run or ended.")
DECISIONS_BYTES = Metric("pointsman_decisions_bytes", "About what decisions in memory take that ended.")
DECISIONS_DROPPED = Metric("pointsman_decisions_dropped", "Decisions that made room for later ones in memory.")
PREDICTION_RATIO = Metric(
    "pointsman_prediction_ratio", "Observed over predicted time of finished requests, by what: ttft, tpot; 1 = right."
)
LOG_ROWS = Metric("pointsman_decision_log_rows", "Rows written to the decision log.")
LOG_DROPPED = Metric("pointsman_decision_log_dropped", "Rows of the decision log that could not be written.")

TOKENIZED = Metric("pointsman_prompts_tokenized", "Prompts turned into token ids, by where: loop, thread, engine.")
NOT_TOKENIZED = Metric("pointsman_prompts_not_tokenized", "Prompts looked up by their text instead, by reason.")
PARTLY_TOKENIZED = Metric("pointsman_prompts_partly_tokenized", "Prompts of which only a beginning is certain.")

FEED_BATCHES = Metric("pointsman_kv_feed_batches", "Batches of KV events applied.")
FEED_EVENTS = Metric("pointsman_kv_feed_events", "KV events applied.")
FEED_GAPS = Metric("pointsman_kv_feed_gaps", "Times that batches of KV events were missing.")
FEED_LOSSES = Metric("pointsman_kv_feed_losses", "Times that missing batches could not be had any more.")
FEED_REPLAYS = Metric("pointsman_kv_feed_replays", "Replays that were asked for.")
FEED_RESTARTS = Metric("pointsman_kv_feed_restarts", "Times that the sequence of events began anew.")
FEED_UNUSABLE = Metric("pointsman_kv_feed_unusable", "Batches and events that could not be used.")
FEED_LAG = Metric("pointsman_kv_feed_lag_seconds", "From an engine's time stamp to when its last batch was applied.")

WORKER_READY = Metric("pointsman_worker_ready", "1: gets requests; 0: does not, the label state says why.")
WORKER_RUNNING = Metric("pointsman_worker_running_requests", "Requests of this front end at the worker.")
WORKER_FOREIGN = Metric("pointsman_worker_foreign_requests", "Requests of others at the worker, from its metrics.")
WORKER_QUEUED = Metric("pointsman_worker_queued_requests", "Requests waiting at the worker, from its metrics.")
WORKER_PREFILL = Metric("pointsman_worker_prefill_tokens", "Prompt tokens sent there that wait for their first token.")
WORKER_KV = Metric("pointsman_worker_kv_tokens", "KV tokens that requests of this front end hold at the worker.")
WORKER_KV_USE = Metric("pointsman_worker_kv_use", "Share of the worker's KV cache in use, from its metrics.")
WORKER_GPU_USE = Metric("pointsman_worker_gpu_use", "How busy the worker's GPUs are, 0 to 1, where that is told.")
WORKER_DISPATCHED = Metric("pointsman_worker_dispatched", "Attempts sent to the worker.")
WORKER_FAILED = Metric("pointsman_worker_failed", "Attempts that failed at the worker.")
WORKER_CANCELLED = Metric("pointsman_worker_cancelled", "Requests whose client left while they were at the worker.")
WORKER_PREDICTED = Metric(
    "pointsman_worker_predicted_cached_tokens", "Prompt tokens thought to be cached at the worker when it was chosen."
)
WORKER_REPORTED = Metric("pointsman_worker_reported_cached_tokens", "Prompt tokens that the worker reported as cached.")
WORKER_KV_CONFIDENCE = Metric(
    "pointsman_worker_kv_confidence",
    "What the exact view of the worker's cache is worth, 0 to 1; used from 0.5 on.",
)
WORKER_KV_BLOCKS = Metric("pointsman_worker_kv_blocks", "Blocks that the worker's KV events say it holds on the GPU.")
WORKER_DRIFT = Metric(
    "pointsman_worker_cache_drift", "Predicted less reported cached tokens as a share of prompt tokens, lately."
)
TIME_ERROR = Metric(
    "pointsman_time_model_error_ratio",
    "Mean of |predicted - seen| / seen, lately, by what was predicted: step, ttft.",
)
TIME_SAMPLES = Metric("pointsman_time_model_samples", "Predictions that the error is taken over.")
TIME_FACTOR = Metric("pointsman_time_model_worker_factor", "How many times as long as its class the worker takes.")
TIME_COEFFICIENT = Metric(
    "pointsman_time_model_coefficient",
    "Learned step time of the worker: a ms a step, b ms a sequence, c ms a 1,000 context tokens, d ms a prefill token.",
)
WORKER_PROMPT = Metric(
    "pointsman_worker_prompt_tokens", "Prompt tokens of requests for which the worker reported what was cached."
)
