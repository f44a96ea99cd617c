"""Claims, dead letters, groups, redrive jobs and controls in MongoDB, or a server that speaks its protocol."""
