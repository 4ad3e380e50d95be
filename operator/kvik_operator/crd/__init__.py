"""The InferencePool as the operator reads it: a typed view, the effective values and conditions. Pure."""
