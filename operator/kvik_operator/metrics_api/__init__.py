"""The custom and external metrics APIs, by which a HorizontalPodAutoscaler sees what the operator sees of a pool."""
