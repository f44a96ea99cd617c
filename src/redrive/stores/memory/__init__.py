"""Claims, dead letters and redrive jobs in this process's memory, for tests and for trying things out.

Each store is the plainest form of its port: what a store in a database does in one statement is here one piece of
code without an await in it, so nothing can come in between.
"""

from redrive.stores.memory.claims import MemoryClaimStore
from redrive.stores.memory.controls import MemoryControlStore
from redrive.stores.memory.jobs import MemoryJobStore
from redrive.stores.memory.letters import MemoryLetterStore
from redrive.stores.memory.requests import MemoryRequestStore

__all__ = ["MemoryClaimStore", "MemoryControlStore", "MemoryJobStore", "MemoryLetterStore", "MemoryRequestStore"]
