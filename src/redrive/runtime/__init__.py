"""The runtime carries out what core decided: app, worker, pipeline, leases, redriver, upkeep, events."""
