"""Names of all metrics, with their help texts. One place, so that none is spelt twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Metric:
    """Name without the `_total` of counters, and what it says."""

    name: str
    help: str


REQUESTS = Metric("pointsman_requests", "Requests by route and status sent to the client; 499: the client left first.")
RETRIES = Metric("pointsman_retries", "Attempts made again, by how the engine failed the one before.")
RETRIES_REFUSED = Metric(
    "pointsman_retries_refused", "Requests that an engine failed and that were not sent to another one, by reason."
)
MIGRATIONS = Metric(
    "pointsman_migrations",
    "Streams that went on at another worker, by mechanism and how that ended; begun: all of them.",
)
MIGRATIONS_REFUSED = Metric("pointsman_migrations_refused", "Streams that broke off and ended there, by reason.")
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
DRAINS = Metric("pointsman_drains", "Engines that drain, by phase: finishing, migrating, cut, drained.")
DRAIN_REQUESTS = Metric(
    "pointsman_drain_requests", "Requests at draining engines that did not end in time, by how: migrated, cut."
)
TURNED_AWAY = Metric(
    "pointsman_turned_away", "Answers of 503 for want of room, by what: connections, descriptors, bodies."
)
BODIES_BYTES = Metric("pointsman_bodies_bytes", "Bodies of requests that are being read or answered.")
LOOP_LATE = Metric("pointsman_event_loop_late_seconds", "How late the last tick of a second was: the loop was busy.")
PHASE = Metric("pointsman_front_end_phase_info", "What it does: serving, leaving, refusing, cutting.")
RELOADS = Metric("pointsman_reloads", "Configurations that were to be read again, by outcome: applied, refused.")
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

DISCOVERY_CONNECTED = Metric(
    "pointsman_discovery_connected", "1: the place that names engines can be read; 0: they stay as they were."
)
DISCOVERY_ENGINES = Metric("pointsman_discovery_engines", "Engines that a place names, kept ones included.")
DISCOVERY_KEPT = Metric("pointsman_discovery_kept_engines", "Engines kept for a while that their place names no more.")
DISCOVERY_IGNORED = Metric(
    "pointsman_discovery_ignored_records", "Records of engines that can't be used, by place and reason."
)
DISCOVERY_TROUBLES = Metric("pointsman_discovery_troubles", "Times that a place that names engines could not be read.")
DISCOVERY_MISSED = Metric(
    "pointsman_discovery_missed_changes", "Times that a listing found what the watch of a place had missed."
)
DISCOVERY_REFUSED = Metric(
    "pointsman_discovery_refused_engines", "Times that an engine was refused whose name or URL another one has."
)

WORKER_READY = Metric("pointsman_worker_ready", "1: gets requests; 0: does not, the label state says why.")
WORKER_RUNNING = Metric("pointsman_worker_running_requests", "Requests of this front end at the worker.")
WORKER_FOREIGN = Metric("pointsman_worker_foreign_requests", "Requests of others at the worker, from its metrics.")
WORKER_QUEUED = Metric("pointsman_worker_queued_requests", "Requests waiting at the worker, from its metrics.")
WORKER_PREFILL = Metric("pointsman_worker_prefill_tokens", "Prompt tokens sent there that wait for their first token.")
WORKER_KV = Metric("pointsman_worker_kv_tokens", "KV tokens that requests of this front end hold at the worker.")
WORKER_TRANSFERS_OUT = Metric("pointsman_worker_transfers_out", "Transfers of KV from the worker under way.")
WORKER_TRANSFERS_IN = Metric("pointsman_worker_transfers_in", "Transfers of KV to the worker under way.")
WORKER_PREFILLS = Metric("pointsman_worker_prefills", "Prompts that the worker computed for another one.")
WORKER_KV_USE = Metric("pointsman_worker_kv_use", "Share of the worker's KV cache in use, from its metrics.")
WORKER_GPU_USE = Metric("pointsman_worker_gpu_use", "How busy the worker's GPUs are, 0 to 1, where that is told.")
WORKER_GPU_MEMORY = Metric(
    "pointsman_worker_gpu_memory", "Share of its GPUs' memory that is used, 0 to 1, where that is told."
)
WORKER_HEALTH = Metric(
    "pointsman_worker_health", "1: it is so, 0: it is not, -1: unknown; by fact: live, ready, serving."
)
WORKER_STANDING = Metric(
    "pointsman_worker_standing", "0: trusted, 1: in doubt, 2: left out, 3: left out until a trial passes."
)
WORKER_KEPT = Metric(
    "pointsman_worker_kept", "1: used although it should be left out, since too many others of its model are."
)
HEALTH_CHANGES = Metric(
    "pointsman_worker_health_changes", "Changes of a worker's health, by what became of it and why."
)
HEALTH_CHANGES_LOST = Metric(
    "pointsman_health_changes_lost", "Changes of health that were never logged: too many came."
)
CANARIES = Metric("pointsman_canaries", "Small generations sent to see whether tokens flow, by how they went.")
CANARY_TIME = Metric("pointsman_canary_seconds", "What the worker's last canary took that passed.")
WORKER_DISPATCHED = Metric("pointsman_worker_dispatched", "Attempts sent to the worker.")
WORKER_FAILED = Metric("pointsman_worker_failed", "Attempts that failed at the worker.")
WORKER_FAULTS = Metric("pointsman_worker_faults", "Attempts that failed at the worker, by how.")
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

TRANSFERS = Metric(
    "pointsman_transfers",
    "Requests whose KV was to be moved between engines, by kind (apart: a prefill elsewhere; pull: blocks that another "
    "engine held) and outcome: moved, answered (by the prefill leg), fallback, failed, cancelled.",
)
TRANSFER_FALLBACKS = Metric(
    "pointsman_transfer_fallbacks",
    "Requests whose KV was to be moved and whose prompt was computed where they were answered after all, by reason.",
)
KV_LEFT_ALONE = Metric(
    "pointsman_kv_left_alone",
    "Times that a worker gave or took no KV for a while, as transfers in a row were of no use; by side: gives, takes.",
)
TRANSFER_BYTES = Metric("pointsman_transfer_bytes", "KV moved between engines for requests, where engines told.")
TRANSFER_TIME = Metric("pointsman_transfer_seconds", "What moving KV took for a request, where engines told.")
TRANSFER_SAVED = Metric(
    "pointsman_transfer_saved_ms",
    "By how much first tokens of requests whose KV was to be moved came sooner than was predicted without that.",
)
TRANSFER_LOST = Metric("pointsman_transfer_lost_ms", "By how much they came later than was predicted without it.")
KV_PAIRS_REFUSED = Metric(
    "pointsman_kv_pairs_refused",
    "Pairs of an engine for prefill and one for decode, of one model, between which no KV can be moved; "
    "/v1/status says why.",
)

REPLICAS = Metric(
    "pointsman_replicas", "Other front ends that are heard, by whether all that they told is known or was asked for."
)
REPLICA_MESSAGES = Metric(
    "pointsman_replica_messages",
    "Messages between front ends by what became of them (sent, received, dropped, refused), and how often some were "
    "lost (gaps), everything was told (wholes), or one was gone (gone).",
)
REPLICA_REFUSED = Metric("pointsman_replica_connections_refused", "Connections between front ends refused, by where.")
REPLICA_NOT_TOLD = Metric(
    "pointsman_replica_prompts_not_told", "Prompts that other front ends were not told of, as too many waited."
)
WORKER_OTHERS = Metric("pointsman_worker_other_requests", "Requests of other front ends at the worker, as they told.")

KEY_FAULTS = Metric(
    "pointsman_key_faults", "Requests refused for their API key, by reason: missing, malformed, unknown, expired."
)
KEY_REQUESTS = Metric("pointsman_key_requests", "Requests let in, by id of their API key; beyond 50 ids: others.")
KEYS = Metric("pointsman_keys", "API keys in force, by whether they are good or expired.")
KEYS_RELOADS = Metric(
    "pointsman_keys_reloads", "Times that the file of keys changed, by what came of it: read, broken."
)
KEYS_BROKEN = Metric(
    "pointsman_keys_file_broken", "1: the file of keys can't be read, those read before hold; 0: it can."
)
TENANT_REQUESTS = Metric("pointsman_tenant_requests", "Requests let in, by tenant; beyond 50 tenants: others.")
TENANT_TOKENS = Metric("pointsman_tenant_tokens", "Tokens that were delivered and charged, by tenant.")
TENANT_LIMITED = Metric("pointsman_tenant_limited", "Requests refused with 429 for a limit, by tenant and limit.")
TENANT_RUNNING = Metric("pointsman_tenant_running_requests", "Requests of tenants with limits, all replicas together.")
LIMIT_ACCOUNTS = Metric("pointsman_limit_accounts", "Parties whose use of their limits is counted.")
LIMITS_TOLD = Metric("pointsman_limits_told", "Messages on used limits to other replicas.")
LIMITS_UNREADABLE = Metric(
    "pointsman_limits_unreadable", "Messages of other replicas on limits that could not be read."
)
CERTIFICATE_RELOADS = Metric(
    "pointsman_certificate_reloads", "Times that files of certificates changed, by what came of it: read, broken."
)
CERTIFICATES_BROKEN = Metric(
    "pointsman_certificates_broken", "1: files of certificates can't be used, those read before hold; 0: they can."
)
TLS_HANDSHAKES = Metric(
    "pointsman_tls_handshakes", "TLS handshakes of clients, by port (tls, admin_tls) and outcome: done, or why not."
)
ADMIN_REFUSED = Metric("pointsman_admin_refused", "Requests to the admin port without its key.")

LINKS_KNOWN = Metric("pointsman_links", "Directions between two machines of which a transfer or a probe was seen.")
LINK_FLOOR = Metric("pointsman_link_floor_ms", "Learned set-up time of a transfer of KV; of at most 256 directions.")
LINK_SPEED = Metric("pointsman_link_bytes_per_ms", "Learned bandwidth, by class of size of the transfer.")
LINK_SPREAD = Metric("pointsman_link_spread", "P90 of actual over predicted times of transfers.")
LINK_SEEN = Metric("pointsman_link_seen", "Transfers and probes that the figures rest on, older ones counting less.")
NODE_PROBES = Metric("pointsman_node_probes", "Probes that this node made, by outcome: whole, broken, failed.")
NODE_SERVED = Metric("pointsman_node_probes_served", "Probes of other nodes that this node answered.")
NODE_REFUSED = Metric("pointsman_node_refused", "Strangers that were refused, by where: http (no token), probe.")
