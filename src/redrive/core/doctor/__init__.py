"""Doctor: pure checks of what a server, a store and the settings say; what is at risk, and the command that helps."""

from redrive.core.doctor.finding import Finding, Level, worst_first
from redrive.core.doctor.redis import RedisReading, check_redis, memory_of

__all__ = ["Finding", "Level", "RedisReading", "check_redis", "memory_of", "worst_first"]
