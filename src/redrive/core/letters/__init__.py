"""Dead letters: the record, its groups, its review states, and how to select many."""
