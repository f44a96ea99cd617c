"""Campaigns on a real Redis of their own: faults (workers killed, the server killed or crashed, connections cut), and
a rate that four processes share.

The server is the oldest of this machine, or the one `CAMPAIGN_REDIS` says (`7`, `8`).
"""
