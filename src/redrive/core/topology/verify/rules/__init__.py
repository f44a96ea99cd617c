"""The rules: each module looks at a `Situation` for one family of losses."""
