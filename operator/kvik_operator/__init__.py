"""The Kvik operator: InferencePool resources in, engine pods and their scale out."""
