"""What turns between tenants promise, measured: a quiet tenant's waiting time beside a backlog, and what it costs."""
