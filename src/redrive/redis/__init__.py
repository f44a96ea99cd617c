"""The Redis floor: connections, scripts and failures, for the two adapters that stand on it (broker and claims).

`address` reads the URL; `link` is one connection of the event loop, `lane` keeps one open and finds the node that
takes writes; `blocking` is a connection for threads; `scripts` sends Lua by its digest; `failures` is the table from
what a server says to what redrive raises. Authoritative for time is the server: every script asks it.
"""
