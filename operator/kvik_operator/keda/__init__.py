"""The external scaler for KEDA: what the formula says of a pool, over gRPC, to whom the operator gave a certificate."""
