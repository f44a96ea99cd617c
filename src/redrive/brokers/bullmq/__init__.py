"""BullMQ's queues in Redis, beside Node.js producers, workers and dashboards. `broker` is the entry."""
