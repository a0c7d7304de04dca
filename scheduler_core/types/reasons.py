"""Why something happened, as data: each value is stored in evidence and shown to people."""

from enum import StrEnum


class Outcome(StrEnum):
    """How an offered request ended. Offered requests = the sum over outcomes, always."""

    FINISHED = "finished"
    FAILED = "failed"
    REJECTED = "rejected"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    CUT_OFF = "cut_off"


class Timeout(StrEnum):
    """Which limit of its tier a request went over."""

    QUEUE = "queue_timeout"
    TOTAL = "total_timeout"


class Defer(StrEnum):
    """Why a waiting request was not admitted in a step."""

    NO_BLOCKS = "no_blocks"
    NO_BUDGET = "no_budget"
    BATCH_FULL = "batch_full"
    BATCH_RUNNING = "batch_running"
    WAITING_FOR_BATCH = "waiting_for_batch"
    PREEMPTED_THIS_STEP = "preempted_this_step"
    HOST_FULL = "host_full"
    TENANT_QUOTA = "tenant_quota"
    PROMPT_PENDING = "prompt_pending"


class Reject(StrEnum):
    """Why a request was refused at submit."""

    NEVER_FITS_POOL = "never_fits_pool"
    OVER_MODEL_LENGTH = "over_model_length"
    OVER_STEP_BUDGET = "over_step_budget"
    QUEUE_FULL = "queue_full"
    OVER_TENANT_QUOTA = "over_tenant_quota"
    ESTIMATED_WAIT = "estimated_wait"
    QUEUED_TOKENS = "queued_tokens"
    KV_SATURATED = "kv_saturated"
    PREDICTED_TTFT = "predicted_ttft"
    PREDICTED_TPOT = "predicted_tpot"


class Preempt(StrEnum):
    """Why a running request lost its blocks."""

    NO_BLOCKS = "no_blocks"
    PRIORITY = "priority"
    OPERATOR = "operator"
    REVOKED = "revoked"
    CACHE_RESET = "cache_reset"
    TENANT_QUOTA = "tenant_quota"


class Stall(StrEnum):
    """Why a resident request was granted nothing in a step."""

    BUDGET_SPENT = "budget_spent"
    HELD_BY_POLICY = "held_by_policy"
    OTHERS_PREFILL = "others_prefill"
    IN_FLIGHT = "in_flight"


class Disposal(StrEnum):
    """What becomes of a request at the gate, exactly one of these for every request (A0)."""

    QUEUE = "queue"
    THROTTLE = "throttle"
    REJECT = "reject"
    DEGRADE = "degrade"
