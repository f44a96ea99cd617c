"""Topology of an AMQP broker as values: model, recipes, definitions, plan, and the proof that nothing is lost."""
