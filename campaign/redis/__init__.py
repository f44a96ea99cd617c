"""Fault campaigns on a real Redis: a private server that writes to disk before it answers, a proxy that cuts
connections, workers that are killed.

The server is the oldest of this machine, or the one `CAMPAIGN_REDIS` says (`7`, `8`).
"""
